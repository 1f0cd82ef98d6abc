"""The accelerator command set, asked of a real APU process: data, statuses, snapshots, the log."""

import struct
from collections.abc import Iterator
from itertools import pairwise

import pytest

from csd_spec import fields
from csd_spec.descriptors import IdentifyData, LogEntryType
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE, AdminOpcode, IoOpcode, Operation
from csd_spec.status import StatusId
from nvme_spec import opcodes as nvme
from nvme_spec.commands import GetLogPage
from support.apu import BUFFER, MEDIA, Board, board, program
from support.bpf import exit_, insn, mov

# Status code type and status code (NVM Express Base Specification 2.0, section 3.3.3.2.1).
INVALID_OPCODE = 0x001
INVALID_FIELD = 0x002
INVALID_NAMESPACE = 0x00B
SEQUENCE_ERROR = 0x00C
LBA_OUT_OF_RANGE = 0x080
INVALID_LOG_PAGE = 0x109
# The command set's own, status code type 7.
DISABLED = 0x7C0
INVALID_ACCELERATOR = 0x7C1
INVALID_FIRMWARE = 0x7C2
INVALID_BUFFERS = 0x7C3
INVALID_ARGUMENTS = 0x7C4
FIRMWARE_REFUSED = 0x7C5

RETURN_0 = program(mov(0, 0), exit_)
FOREVER = program(mov(0, 0), insn(0x05, offset=-1), exit_)

NOBODY = 2
IO_COMMANDS: dict[IoOpcode, fields.Cdws] = {
    IoOpcode.SEND_DATA: fields.DataTransfer(0, NOBODY).encode(),
    IoOpcode.READ_DATA: fields.DataTransfer(0, NOBODY).encode(),
    IoOpcode.SEND_FIRMWARE: fields.FirmwareTransfer(0, NOBODY, 0).encode(),
    IoOpcode.READ_FIRMWARE: fields.FirmwareTransfer(0, NOBODY, 0).encode(),
    IoOpcode.LOCAL_INPUT: fields.LocalStorage(0, 1, NOBODY).encode(),
    IoOpcode.LOCAL_OUTPUT: fields.LocalStorage(0, 1, NOBODY).encode(),
    IoOpcode.APPEND_LOCAL_INPUT: fields.LocalStorage(0, 1, NOBODY).encode(),
    IoOpcode.APPEND_LOCAL_OUTPUT: fields.LocalStorage(0, 1, NOBODY).encode(),
    IoOpcode.GRANT_LOCAL_STORAGE: fields.LocalStorage(0, 1, NOBODY).encode(),
    IoOpcode.CONTROL: fields.Control(Operation.STOP, NOBODY).encode(),
}


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    with board() as made:
        yield made


@pytest.fixture
def off(booted: Board) -> Board:
    """As after power-on."""
    booted.reset_controller()
    booted.ended.clear()
    return booted


@pytest.fixture
def apu(off: Board) -> Board:
    """Enabled."""
    assert off.enable() == 0
    return off


def test_identify_names_accelerators_and_their_buffers(off: Board) -> None:
    status, data = off.command(True, AdminOpcode.IDENTIFY, fields.Identify(64).encode(), length=256)
    one = (56, 0, 0, 1, BUFFER, 2, BUFFER), (56, 3, 0, 1, BUFFER, 2, BUFFER)
    expected = struct.pack("<4sI8x", b"WDC0", 16 + 2 * 56)
    for item in one:
        expected += struct.pack("<IH2xI12xI4xQI4xQ", *item)
    assert (status, data) == (0, expected.ljust(256, b"\0"))
    assert len(IdentifyData.decode(data).accelerators) == 2


def test_a_short_identify_gives_the_first_bytes(off: Board) -> None:
    status, data = off.command(True, AdminOpcode.IDENTIFY, fields.Identify(2).encode(), length=8)
    assert (status, data) == (0, b"WDC0" + struct.pack("<I", 128))


@pytest.mark.parametrize("opcode", IO_COMMANDS, ids=lambda opcode: opcode.name)
def test_disabled_refuses_every_io_command(off: Board, opcode: IoOpcode) -> None:
    assert off.command(False, opcode, IO_COMMANDS[opcode])[0] == DISABLED


@pytest.mark.parametrize("opcode", IO_COMMANDS, ids=lambda opcode: opcode.name)
def test_no_command_finds_an_accelerator_that_is_not_there(apu: Board, opcode: IoOpcode) -> None:
    assert apu.command(False, opcode, IO_COMMANDS[opcode])[0] == INVALID_ACCELERATOR


def test_status_and_log_of_no_accelerator_are_refused(off: Board) -> None:
    cdws = fields.GetStatus(8, NOBODY).encode()
    assert off.command(True, AdminOpcode.GET_STATUS, cdws, length=32)[0] == INVALID_ACCELERATOR
    cdws = GetLogPage(0xC0, 0, lsi=NOBODY).encode()
    assert off.command(True, 0x02, cdws, length=4)[0] == INVALID_ACCELERATOR


@pytest.mark.parametrize(
    ("admin", "opcode"),
    [(True, 0xC1), (True, 0xFF), (False, 0x80), (False, 0x9D), (False, 0xC0), (True, 0x81)],
)
def test_an_unknown_opcode_is_refused_enabled_or_not(off: Board, admin: bool, opcode: int) -> None:
    cdws = (0, 0, 0, 0, 0, 0)
    assert off.command(admin, opcode, cdws)[0] == INVALID_OPCODE
    off.enable()
    assert off.command(admin, opcode, cdws)[0] == INVALID_OPCODE


def test_unknown_operations_are_refused(apu: Board) -> None:
    cdws = fields.GlobalControl(2).encode()
    assert apu.command(True, AdminOpcode.GLOBAL_CONTROL, cdws)[0] == INVALID_FIELD
    assert apu.control(4) == INVALID_FIELD
    assert apu.send_data(b"still") == 0


def test_disable_keeps_what_was_configured(apu: Board) -> None:
    assert apu.send_firmware(RETURN_0) == 0
    assert apu.disable() == 0
    assert apu.control(Operation.SELECT_FIRMWARE) == DISABLED
    assert apu.enable() == 0
    assert apu.control(Operation.SELECT_FIRMWARE) == 0


# Data


def test_input_comes_in_pieces_and_ends_where_the_last_one_does(apu: Board) -> None:
    assert apu.send_data(b"abcdefgh") == 0
    assert apu.send_data(b"ijkl", offset=8) == 0
    assert apu.send_data(b"EFGH", offset=4) == 0
    plan = apu.config.accelerators[0].plan
    arena = apu.buffers.arena(0)
    assert bytes(arena[plan.input_offset : plan.input_offset + 12]) == b"abcdEFGHijkl"
    assert apu.run(RETURN_0, b"four").consumed == 4


@pytest.mark.parametrize("offset", [BUFFER - 4, BUFFER, (1 << 34) - 4])
def test_a_transfer_past_the_end_of_a_buffer_is_refused(apu: Board, offset: int) -> None:
    assert apu.send_data(b"12345678", offset=offset) == INVALID_FIELD
    cdws = fields.DataTransfer(2, 0, offset // 4).encode()
    assert apu.command(False, IoOpcode.READ_DATA, cdws, length=8)[0] == INVALID_FIELD


def test_the_last_bytes_of_a_buffer_can_be_moved(apu: Board) -> None:
    assert apu.send_data(b"last", offset=BUFFER - 4) == 0
    assert len(apu.read_data(8, offset=BUFFER - 8)) == 8


# Firmware


def test_firmware_is_read_back_with_zeroes_behind_it(apu: Board) -> None:
    assert apu.send_firmware(RETURN_0, 5) == 0
    size = len(RETURN_0)
    status, data = apu.read_firmware(size + 64, 5)
    assert (status, data) == (0, RETURN_0 + bytes(64))
    assert apu.result == size
    assert apu.read_firmware(8, 5, offset=size - 4)[1] == RETURN_0[-4:] + bytes(4)
    assert apu.read_firmware(8, 5, offset=1 << 20) == (0, bytes(8))


def test_firmware_ids_that_do_not_exist(apu: Board) -> None:
    assert apu.send_firmware(RETURN_0, 16) == INVALID_FIRMWARE
    assert apu.read_firmware(4, 1)[0] == INVALID_FIRMWARE
    assert apu.control(Operation.SELECT_FIRMWARE, firmware=1) == INVALID_FIRMWARE
    assert apu.control(Operation.START, firmware=1) == INVALID_FIRMWARE
    assert apu.control(Operation.START, firmware=KEEP_ACTIVE_FIRMWARE) == INVALID_FIRMWARE
    assert apu.log_types()[-1] == LogEntryType.INVALID_FIRMWARE


@pytest.mark.parametrize(
    "image",
    [b"", b"\x7fELF", bytes(200), RETURN_0[:-64], program(exit_[:4] * 2), program(mov(0, 0))],
    ids=["nothing", "magic", "zeroes", "cut short", "bad opcode", "no exit"],
)
def test_refused_firmware_leaves_what_was_there_and_says_why(apu: Board, image: bytes) -> None:
    assert apu.send_firmware(RETURN_0) == 0
    assert apu.send_firmware(image) == FIRMWARE_REFUSED
    entry = apu.log().entries[-1]
    assert entry.type == LogEntryType.ACCELERATOR_ERROR and "refused" in entry.text
    assert apu.read_firmware(len(RETURN_0))[1] == RETURN_0


def test_firmware_that_is_larger_than_one_command_comes_in_pieces(apu: Board) -> None:
    image = program(mov(0, 3), exit_, padding=150_000)
    piece = 64 * 1024
    assert apu.send_firmware(image[:piece]) == 0
    assert apu.read_firmware(4)[0] == INVALID_FIRMWARE
    assert apu.send_firmware(image[2 * piece :], offset=2 * piece) == INVALID_FIELD
    assert apu.send_firmware(image[piece : 2 * piece], offset=piece) == 0
    assert apu.send_firmware(image[2 * piece :], offset=2 * piece) == 0
    assert apu.read_firmware(4096, offset=piece)[1] == image[piece : piece + 4096]


def test_large_firmware_in_one_piece_replaces_what_was_there(apu: Board) -> None:
    first, second = (program(mov(0, value), exit_, padding=70_000) for value in (1, 2))
    assert apu.run(first, b"data").return_value == 1
    assert apu.run(second, b"data").return_value == 2


def test_firmware_has_a_largest_size(apu: Board) -> None:
    image = program(mov(0, 3), exit_, padding=1_100_000)
    assert apu.send_firmware(image[: 512 * 1024]) == FIRMWARE_REFUSED


# Local storage


@pytest.mark.parametrize("opcode", [IoOpcode.LOCAL_INPUT, IoOpcode.LOCAL_OUTPUT])
def test_local_storage_that_is_not_there(apu: Board, opcode: IoOpcode) -> None:
    pages = MEDIA // 4096
    assert apu.local(opcode, pages, 1) == LBA_OUT_OF_RANGE
    assert apu.local(opcode, (1 << 64) - 1, 1) == LBA_OUT_OF_RANGE
    assert apu.local(opcode, 0, 0) == INVALID_FIELD
    assert apu.local(opcode, 0, 1, nsid=9) == INVALID_NAMESPACE
    assert apu.local(opcode, 0, BUFFER // 4096 + 1) == INVALID_BUFFERS


def test_input_past_the_end_is_refused_output_is_cut_there(apu: Board) -> None:
    pages = MEDIA // 4096
    assert apu.local(IoOpcode.LOCAL_INPUT, pages - 1, 2) == LBA_OUT_OF_RANGE
    assert apu.local(IoOpcode.LOCAL_OUTPUT, pages - 1, 4096) == 0
    assert apu.log_types()[-1] == LogEntryType.INVALID_OUTPUT_BUFFER
    assert apu.run(RETURN_0, b"data").produced == 4096


def test_appended_ranges_may_not_outgrow_the_buffer(apu: Board) -> None:
    half = BUFFER // 4096 // 2
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 0, half) == 0
    assert apu.local(IoOpcode.APPEND_LOCAL_OUTPUT, half, half + 1) == INVALID_BUFFERS
    assert apu.local(IoOpcode.APPEND_LOCAL_OUTPUT, half, half) == 0
    assert apu.run(RETURN_0, b"data").produced == BUFFER


def test_a_grant_is_of_blocks_that_are_there(apu: Board) -> None:
    pages = MEDIA // 4096
    assert apu.grant(pages - 1, 1, writable=True) == 0
    assert apu.grant(pages - 1, 2) == apu.grant(pages, 1) == LBA_OUT_OF_RANGE
    assert apu.grant((1 << 64) - 1, 1) == LBA_OUT_OF_RANGE
    assert apu.grant(0, 0) == INVALID_FIELD
    assert apu.local(IoOpcode.GRANT_LOCAL_STORAGE, 0, 1, nsid=9) == INVALID_NAMESPACE


def test_there_are_so_many_grants_until_they_are_replaced(apu: Board) -> None:
    limit = apu.config.limits.grants
    assert {apu.grant(page % 8, 1) for page in range(limit)} == {0}
    assert apu.grant(9, 1) == INVALID_BUFFERS
    assert apu.log_types()[-1] == LogEntryType.ACCELERATOR_ERROR
    assert apu.grant(9, 1, replace=True) == apu.grant(10, 1) == 0


# Control


def test_start_wants_an_input(apu: Board) -> None:
    assert apu.send_firmware(RETURN_0) == 0
    assert apu.control(Operation.START) == INVALID_BUFFERS
    assert apu.log_types()[-1] == LogEntryType.INVALID_INPUT_BUFFER
    assert apu.status().status == StatusId.IDLE


@pytest.mark.parametrize(
    "arguments",
    [
        struct.pack("<I", 3),
        struct.pack("<II", 4, 9),
        struct.pack("<II", 0xFFFF_FFFF, 0),
        struct.pack("<II", 5, 0x0101_0101),
    ],
)
def test_a_malformed_argument_list_is_refused(apu: Board, arguments: bytes) -> None:
    assert apu.send_firmware(RETURN_0) == apu.send_data(b"data") == 0
    assert apu.control(Operation.START, arguments=arguments) == INVALID_ARGUMENTS
    assert apu.log_types()[-1] == LogEntryType.ACCELERATOR_ERROR
    assert apu.status().status == StatusId.IDLE


def test_while_a_job_runs_its_accelerator_takes_nothing_that_it_uses(apu: Board) -> None:
    assert apu.send_firmware(FOREVER) == apu.send_data(b"data") == 0
    assert apu.control(Operation.START) == 0
    assert apu.status().status == StatusId.RUNNING
    read = fields.DataTransfer(1, 0).encode()
    refused = [
        apu.control(Operation.START),
        apu.control(Operation.SELECT_FIRMWARE),
        apu.send_data(b"more"),
        apu.command(False, IoOpcode.READ_DATA, read, length=4)[0],
        apu.local(IoOpcode.LOCAL_INPUT, 0, 1),
        apu.local(IoOpcode.APPEND_LOCAL_OUTPUT, 0, 1),
    ]
    refused.append(apu.grant(0, 1))
    assert refused == [SEQUENCE_ERROR] * 7
    assert apu.send_firmware(RETURN_0, 1) == 0
    assert apu.send_data(b"data", accelerator=3) == 0
    assert apu.control(Operation.STOP) == 0
    assert apu.status().status == StatusId.STOPPED


def test_stop_and_reset_of_an_idle_accelerator_succeed(apu: Board) -> None:
    assert apu.control(Operation.STOP) == apu.control(Operation.RESET) == 0
    assert apu.status().status == StatusId.IDLE


def test_reset_blanks_one_accelerator_and_no_other(apu: Board) -> None:
    for accelerator in (0, 3):
        assert apu.run(RETURN_0, b"data", accelerator).status == StatusId.DONE
    assert apu.control(Operation.RESET) == 0
    assert [apu.status(key).status for key in (0, 3)] == [StatusId.IDLE, StatusId.DONE]
    assert apu.read_firmware(4)[0] == INVALID_FIRMWARE
    assert apu.read_firmware(4, accelerator=3)[0] == 0
    assert apu.send_firmware(RETURN_0) == 0
    assert apu.control(Operation.START) == INVALID_BUFFERS


def test_start_takes_its_firmware_and_makes_it_the_active_one(apu: Board) -> None:
    for identifier in (1, 2):
        image = program(mov(0, 10 * identifier), exit_)
        assert apu.send_firmware(image, identifier) == 0
    assert apu.send_data(b"data") == 0
    values = []
    for firmware in (2, KEEP_ACTIVE_FIRMWARE, 1):
        assert apu.control(Operation.START, firmware=firmware) == 0
        values.append(apu.wait().return_value)
    assert values == [20, 20, 10]
    assert apu.control(Operation.SELECT_FIRMWARE, firmware=2) == 0
    cdws = fields.GetStatus(16, 0).encode()
    _, data = apu.command(True, AdminOpcode.GET_STATUS, cdws, length=64)
    assert struct.unpack_from("<IIQ", data, 32) == (0, 2, 10)


# Status and log


def test_the_status_is_laid_out_as_documented(apu: Board) -> None:
    apu.run(program(mov(0, -2), exit_), b"12345678")
    cdws = fields.GetStatus(32, 0).encode()
    status, data = apu.command(True, AdminOpcode.GET_STATUS, cdws, length=128)
    expected = struct.pack("<II24x", 128, 2)
    for capability, firmware, amount in ((0, 0, (1 << 64) - 2), (1, 0, 8), (2, 0, BUFFER)):
        expected += struct.pack("<IIQ16x", capability, firmware, amount)
    assert (status, data) == (0, expected)


def test_a_retained_status_holds_until_it_is_read_without_retaining(apu: Board) -> None:
    assert apu.status(retain=True).status == StatusId.IDLE
    assert apu.send_firmware(RETURN_0) == apu.send_data(b"data") == 0
    assert apu.control(Operation.START) == 0
    apu.until(lambda: bool(apu.ended))
    assert apu.status(retain=True).status == StatusId.IDLE
    assert apu.status().status == StatusId.IDLE
    assert apu.status().status == StatusId.DONE


def test_a_retained_log_holds_while_it_is_read_in_pieces(apu: Board) -> None:
    apu.control(Operation.SELECT_FIRMWARE, firmware=9)
    first = apu.log(retain=True)
    apu.control(Operation.SELECT_FIRMWARE, firmware=10)
    cdws = GetLogPage(0xC0, 3, rae=True, offset=16).encode()
    _, piece = apu.command(True, nvme.AdminOpcode.GET_LOG_PAGE, cdws, length=16)
    assert piece == first.encode()[16:32]
    assert apu.log() == first
    assert apu.log().entries[-1].text != first.entries[-1].text


def test_other_log_pages_and_offsets_past_the_end_are_refused(off: Board) -> None:
    cdws = GetLogPage(0xC1, 0).encode()
    assert off.command(True, 0x02, cdws, length=4)[0] == INVALID_LOG_PAGE
    cdws = GetLogPage(0xC0, 0, offset=1 << 40).encode()
    assert off.command(True, 0x02, cdws, length=4)[0] == INVALID_FIELD


def test_a_full_log_drops_the_oldest_and_counts_them(apu: Board) -> None:
    limit = apu.config.limits.log_entries
    before = apu.log()
    for _ in range(limit + 8):
        apu.control(Operation.SELECT_FIRMWARE, firmware=9)
    after = apu.log()
    assert len(after.entries) == limit
    assert after.lost == before.lost + len(before.entries) + 8
    assert {entry.type for entry in after.entries} == {LogEntryType.INVALID_FIRMWARE}
    assert all(a.timestamp <= b.timestamp for a, b in pairwise(after.entries))

"""Jobs in a real APU process: what a program reads and leaves, and how its end is told."""

import errno
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from csd_spec.descriptors import LogEntryType, encode_arguments
from csd_spec.fields import GlobalControl
from csd_spec.opcodes import AdminOpcode, IoOpcode, Operation
from csd_spec.status import StatusId
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.mailbox.messages import JobEnded, WriteBack
from support.apu import BUFFER, CONFIG, MEDIA, Board, board, program
from support.bpf import call, exit_, insn, lddw, load, mov, mov_reg, store
from support.bpf_btf import Line, btf_parts
from support.bpf_elf import Name, elf, text
from support.engines import with_constants

PRINT, SET_OUTPUT_LENGTH = 1, 4

RETURN_7 = program(mov(0, 7), exit_)
COPY_8 = program(load(6, 1), store(2, 6), mov(0, -1), exit_)
PRINT_INPUT = program(call(PRINT), mov(0, 0), exit_)
FOREVER = program(call(PRINT), insn(0x05, offset=-1), exit_)

ADD = Path(__file__).parents[2] / "examples" / "add"


def output_of(length: int) -> bytes:
    """A program that writes AAAAAAAA and says that its output has `length` bytes."""
    value = 0x4141_4141_4141_4141
    return program(
        lddw(6, value), store(2, 6), mov(1, length), call(SET_OUTPUT_LENGTH), mov(0, 0), exit_
    )


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    namespaces = (NamespaceConfig(1, MEDIA), NamespaceConfig(2, 16 * 4096, 512))
    with board(replace(CONFIG, namespaces=namespaces)) as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    booted.reset_controller()
    booted.ended.clear()
    booted.write_backs.clear()
    booted.read_checks.clear()
    booted.read_error = (0, 0)
    booted.write_error = 0
    booted.hold_write_backs = False
    for memory in booted.media.values():
        memory.view[:] = b"." * memory.size
    return booted


# Buffers


def test_a_program_copies_its_input_and_its_return_value_is_told(apu: Board) -> None:
    status = apu.run(COPY_8, b"ABCDEFGH12345678")
    assert status.status == StatusId.DONE
    assert (status.consumed, status.produced, status.return_value) == (16, BUFFER, -1)
    assert apu.read_data(12) == b"ABCDEFGH\0\0\0\0"


def test_the_output_is_zeroed_at_start(apu: Board) -> None:
    apu.run(COPY_8, b"ABCDEFGH")
    apu.run(RETURN_7, b"ABCDEFGH")
    assert apu.read_data(BUFFER) == bytes(BUFFER)


def test_the_next_equal_job_finds_nothing_of_the_one_before(apu: Board) -> None:
    """It adds up a variable, its stack, its argument and its output, and overwrites them."""
    variable = 0x1000_0000 + CONFIG.accelerators[0].plan.data_offset
    code = [lddw(8, variable), mov(0, 0), mov(6, -1)]
    for register, offset in ((8, 0), (10, -8), (5, 20), (2, 0)):
        size = 0x00  # 32 bits
        code += [
            load(7, register, offset, size),
            insn(0x0F, 0, 7),
            store(register, 6, offset, size),
        ]
    image = with_constants(*code, exit_)
    assert apu.enable() == apu.send_firmware(image) == apu.send_data(bytes(4)) == 0
    for turn in (1, 1, 2, 1):
        arguments = encode_arguments([struct.pack("<I", turn)])
        assert apu.control(Operation.START, arguments=arguments) == 0
        status = apu.wait()
        total = int.from_bytes(b"vari", "little") + turn
        assert (status.status, status.return_value) == (StatusId.DONE, total)
    assert apu.run(program(lddw(1, variable), load(0, 1, 4, 0), exit_)).return_value == 0


def test_a_program_is_told_its_lengths_and_finds_its_arguments_in_the_context(apu: Board) -> None:
    image = program(
        *(store(2, register, 8 * index) for index, register in enumerate((3, 4))),
        *(piece for at in range(0, 32, 8) for piece in (load(6, 5, at), store(2, 6, 16 + at))),
        mov(0, 0),
        exit_,
    )
    arguments = encode_arguments([b"\x11\x22\x33\x44", b"xyz"])
    assert apu.enable() == apu.send_firmware(image) == apu.send_data(bytes(20)) == 0
    assert apu.control(Operation.START, arguments=arguments) == 0
    assert apu.wait().status == StatusId.DONE
    context = struct.pack("<IIQ", 2, 2, 16) + b"\x08\0\0\0\x11\x22\x33\x44\x07\0\0\0xyz\0"
    assert apu.read_data(48) == struct.pack("<QQ", 20, BUFFER) + context


def test_a_program_sets_the_length_of_its_output(apu: Board) -> None:
    assert apu.run(output_of(5), b"data").produced == 5


def test_accelerators_have_buffers_and_jobs_of_their_own(apu: Board) -> None:
    apu.run(COPY_8, b"for zero", accelerator=0)
    apu.run(COPY_8, b"for  two", accelerator=3)
    assert [apu.read_data(8, key) for key in (0, 3)] == [b"for zero", b"for  two"]


def test_a_jobs_end_is_announced_once_when_its_status_is_final(apu: Board) -> None:
    apu.enable()
    apu.send_firmware(RETURN_7, accelerator=3)
    apu.send_data(b"data", 3)
    assert apu.control(Operation.START, 3) == 0
    apu.until(lambda: bool(apu.ended))
    assert apu.status(3).status == StatusId.DONE
    assert apu.ended == [JobEnded(3, 0xC0)]


# The log


def test_what_a_program_prints_comes_between_its_start_and_its_end(apu: Board) -> None:
    before = len(apu.log().entries)
    apu.run(PRINT_INPUT, b"hello, \xce\xbb\0\0\0")
    entries = apu.log().entries[before:]
    types = [entry.type for entry in entries]
    assert types == [0x101, 0x100, 0x102]
    assert entries[1].text == "hello, λ"


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (program(mov(1, 0), load(0, 1), exit_), LogEntryType.MEMORY_FAULT),
        (
            program(mov_reg(1, 10), mov(2, 8192), insn(0x1F, 1, 2), store(1, 1), exit_),
            LogEntryType.MEMORY_FAULT,
        ),
        (program(mov(1, -1), call(SET_OUTPUT_LENGTH), exit_), LogEntryType.ACCELERATOR_ERROR),
        (program(insn(0x85, src=1, imm=-1), exit_), LogEntryType.LIMIT_EXCEEDED),
    ],
    ids=["null pointer", "below the stack", "output too long", "endless calls"],
)
def test_a_fault_fails_the_job_and_says_what_it_was(
    apu: Board, image: bytes, kind: LogEntryType
) -> None:
    status = apu.run(image, b"data")
    assert status.status == StatusId.FAILED
    entry = apu.log().entries[-1]
    assert entry.type == kind and entry.text
    assert apu.run(COPY_8, b"ABCDEFGH").status == StatusId.DONE


def test_a_fault_s_entry_names_instruction_function_line_and_address(apu: Board) -> None:
    code = text(mov(1, 16), load(0, 1), exit_)
    image = elf([code, *btf_parts({".text": [Line(8, 42)]})], [Name("prog")])
    assert apu.run(image, b"data").status == StatusId.FAILED
    assert (
        apu.log()
        .entries[-1]
        .text.startswith(
            "memory access out of bounds at instruction 1 (prog, sum.c:42): a read of 8 bytes at 0x10 "
        )
    )


def test_with_the_platform_s_status_a_job_is_done_whatever_came_of_it() -> None:
    fault = program(mov(1, 0), load(0, 1), exit_)
    with board(replace(CONFIG, platform_status=True)) as apu:
        # A program that is not there is a failure all the same.
        assert apu.enable() == 0
        assert apu.send_data(b"data") == 0
        assert apu.send_firmware(b"no ELF file.") != 0
        assert apu.control(Operation.START) != 0
        assert apu.status().status == StatusId.FAILED
        assert apu.run(fault, b"data").status == StatusId.DONE
        assert apu.log_types()[-1] == LogEntryType.MEMORY_FAULT
        apu.write_error = errno.EIO
        assert apu.local(IoOpcode.LOCAL_OUTPUT, 0, 1) == 0
        assert apu.run(COPY_8, b"ABCDEFGH").status == StatusId.DONE
        assert apu.log_types()[-1] == LogEntryType.INVALID_OUTPUT_BUFFER


def test_a_program_refused_says_which_instruction_and_why(apu: Board) -> None:
    assert apu.enable() == 0
    assert apu.send_firmware(program(mov(1, 16), insn(0xFF), exit_)) != 0
    assert apu.log().entries[-1].text == (
        "firmware 0 was refused: instruction 1 (prog): opcode 0xff does not exist"
    )


def test_functions_have_stack_frames_as_the_configuration_says() -> None:
    accelerators = tuple(replace(one, frame_size=8192) for one in CONFIG.accelerators)
    limits = replace(CONFIG.limits, frame_size=8192)
    with board(replace(CONFIG, accelerators=accelerators, limits=limits)) as apu:
        image = program(store(10, 3, -8192), load(0, 10, -8192), exit_)
        assert apu.run(image, b"12345678").return_value == 8
        assert apu.send_firmware(program(store(10, 3, -8200), exit_)) != 0
        assert "has 8192 bytes at most" in apu.log().entries[-1].text


def test_a_print_without_an_end_is_a_memory_fault(apu: Board) -> None:
    image = program(mov_reg(1, 10), insn(0x07, 1, imm=1 << 30), call(PRINT), exit_)
    assert apu.run(image, b"data").status == StatusId.FAILED
    assert apu.log_types()[-1] == LogEntryType.MEMORY_FAULT


# Local storage


def test_input_is_read_from_its_ranges_in_order(apu: Board) -> None:
    apu.media[1].view[5 * 4096 : 5 * 4096 + 8] = b"page five"[:8]
    apu.media[2].view[:8] = b"zero two"
    image = program(load(6, 1), store(2, 6), load(6, 1, 8192), store(2, 6, 8), mov(0, 0), exit_)
    assert apu.enable() == apu.send_firmware(image) == 0
    assert apu.local(IoOpcode.LOCAL_INPUT, 5, 2) == 0
    assert apu.local(IoOpcode.APPEND_LOCAL_INPUT, 0, 1, nsid=2) == 0
    assert apu.control(Operation.START) == 0
    status = apu.wait()
    assert (status.status, status.consumed) == (StatusId.DONE, 3 * 4096)
    assert apu.read_data(16) == b"page fivzero two"


def test_the_latest_input_wins(apu: Board) -> None:
    apu.enable()
    apu.send_firmware(COPY_8)
    apu.local(IoOpcode.LOCAL_INPUT, 0, 1)
    apu.send_data(b"by host!")
    apu.control(Operation.START)
    assert apu.wait().consumed == 8
    apu.local(IoOpcode.LOCAL_INPUT, 0, 1)
    apu.control(Operation.START)
    assert apu.wait().consumed == 4096
    assert apu.read_data(8) == b"........"


def test_blocks_that_cannot_be_read_fail_the_job_before_it_begins(apu: Board) -> None:
    apu.read_error = (5, 3 * 4096)
    apu.enable()
    apu.send_firmware(COPY_8)
    apu.local(IoOpcode.LOCAL_INPUT, 2, 2)
    apu.local(IoOpcode.APPEND_LOCAL_INPUT, 9, 1)
    assert apu.control(Operation.START) == 0
    assert apu.wait().status == StatusId.FAILED
    (asked,) = apu.read_checks
    assert (asked.nsid, asked.ranges) == (1, ((2 * 4096, 2 * 4096), (9 * 4096, 4096)))
    (text,) = apu.log_texts(LogEntryType.INVALID_INPUT_BUFFER)
    assert "byte 12288" in text
    assert "Input/output error" in text
    apu.read_error = (0, 0)
    apu.control(Operation.START)
    assert apu.wait().status == StatusId.DONE


def test_output_goes_to_its_ranges_before_the_job_is_done(apu: Board) -> None:
    apu.hold_write_backs = True
    assert apu.enable() == apu.send_firmware(COPY_8) == apu.send_data(b"ABCDEFGH") == 0
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 7, 2) == 0
    assert apu.control(Operation.START) == 0
    apu.until(lambda: bool(apu.write_backs))
    (write_back,) = apu.write_backs
    source = apu.config.accelerators[0].plan.output_offset
    assert write_back == WriteBack(write_back.tag, 0, source, ((1, 7 * 4096, 8192),))
    assert apu.status().status == StatusId.RUNNING
    assert not apu.ended
    apu.complete(write_back)
    assert apu.wait().produced == 8192
    written = bytes(apu.media[1].view[7 * 4096 : 9 * 4096])
    assert written == b"ABCDEFGH" + bytes(8184)


def test_an_output_in_two_namespaces_is_written_at_once(apu: Board) -> None:
    apu.hold_write_backs = True
    apu.enable()
    apu.send_firmware(COPY_8)
    apu.send_data(b"ABCDEFGH")
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 3, 1) == 0
    assert apu.local(IoOpcode.APPEND_LOCAL_OUTPUT, 1, 1, nsid=2) == 0
    apu.control(Operation.START)
    apu.until(lambda: bool(apu.write_backs))
    (whole,) = apu.write_backs
    source = apu.config.accelerators[0].plan.output_offset
    assert (whole.source, whole.ranges) == (source, ((1, 3 * 4096, 4096), (2, 4096, 4096)))
    assert not whole.more
    apu.complete(whole)
    assert apu.wait().status == StatusId.DONE


@pytest.mark.parametrize(
    ("nsid", "length", "written"), [(1, 5, 4096), (2, 5, 512), (2, 513, 1024), (1, 0, 0)]
)
def test_a_short_output_is_written_in_whole_blocks(
    apu: Board, nsid: int, length: int, written: int
) -> None:
    apu.enable()
    apu.send_firmware(output_of(length))
    apu.send_data(b"data")
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 1, 4, nsid=nsid) == 0
    apu.control(Operation.START)
    assert apu.wait().produced == length
    after = bytes(apu.media[nsid].view[4096 : 3 * 4096])
    assert after == (b"A" * 8 + bytes(8192))[:written].ljust(8192, b".")


def test_a_write_back_that_fails_fails_the_job(apu: Board) -> None:
    apu.write_error = errno.ENOSPC
    apu.enable()
    apu.send_firmware(COPY_8)
    apu.send_data(b"ABCDEFGH")
    apu.local(IoOpcode.LOCAL_OUTPUT, 1, 1)
    apu.control(Operation.START)
    assert apu.wait().status == StatusId.FAILED
    entry = apu.log().entries[-1]
    assert entry.type == LogEntryType.INVALID_OUTPUT_BUFFER and "space" in entry.text


def test_stop_during_the_write_back_waits_for_it(apu: Board) -> None:
    apu.hold_write_backs = True
    apu.enable()
    apu.send_firmware(COPY_8)
    apu.send_data(b"ABCDEFGH")
    apu.local(IoOpcode.LOCAL_OUTPUT, 1, 1)
    apu.control(Operation.START)
    apu.until(lambda: bool(apu.write_backs))
    tag = apu.send_control(Operation.STOP)
    assert apu.status().status == StatusId.RUNNING
    assert not apu.is_answered(tag)
    apu.complete(apu.write_backs[0])
    apu.answer(tag)
    assert apu.status().status == StatusId.DONE


def test_a_reset_leaves_the_buffer_to_the_write_back_before_it(apu: Board) -> None:
    apu.hold_write_backs = True
    apu.enable()
    apu.send_firmware(COPY_8)
    apu.send_data(b"ABCDEFGH")
    apu.local(IoOpcode.LOCAL_OUTPUT, 1, 1)
    apu.control(Operation.START)
    apu.until(lambda: bool(apu.write_backs))
    reset = apu.send_reset()
    asked = apu.send(True, AdminOpcode.GLOBAL_CONTROL, GlobalControl(0).encode())
    kept = apu.config.accelerators[0].plan.output_offset
    assert bytes(apu.buffers.arena(0)[kept : kept + 8]) == b"ABCDEFGH"
    apu.complete(apu.write_backs[0])
    assert bytes(apu.media[1].view[4096:4104]) == b"ABCDEFGH"
    apu.answer(reset)
    apu.answer(asked)
    assert bytes(apu.buffers.arena(0)[kept : kept + 8]) == bytes(8)
    assert apu.status().status == StatusId.IDLE
    apu.send_firmware(RETURN_7)
    apu.send_data(b"data")
    assert apu.control(Operation.START) == 0, "what was asked behind the reset was done after it"
    assert apu.wait().return_value == 7


# Stop and reset while a program runs


@pytest.fixture
def looping(apu: Board) -> Board:
    """Accelerator 0 runs a program that never ends, and has said so."""
    before = apu.log_texts(0x100).count("looping")
    apu.enable()
    apu.send_firmware(FOREVER)
    apu.send_data(b"looping\0")
    assert apu.control(Operation.START) == 0
    apu.until_so(lambda: apu.log_texts(0x100).count("looping") > before)
    return apu


def test_stop_ends_the_program_and_keeps_the_configuration(looping: Board) -> None:
    assert looping.control(Operation.STOP) == 0
    assert looping.status().status == StatusId.STOPPED
    assert looping.log_texts(LogEntryType.JOB_FINISHED)[-1] == "stopped by the host"
    assert looping.ended == []
    assert looping.send_firmware(COPY_8) == 0
    assert looping.control(Operation.START) == 0
    assert looping.wait().status == StatusId.DONE
    assert looping.read_data(8) == b"looping\0"


def test_stop_touches_no_other_accelerator(looping: Board) -> None:
    looping.send_firmware(FOREVER, accelerator=3)
    looping.send_data(b"other\0\0\0", 3)
    looping.control(Operation.START, 3)
    assert looping.control(Operation.STOP) == 0
    assert looping.status(3).status == StatusId.RUNNING
    assert looping.control(Operation.STOP, 3) == 0


def test_disabling_stops_the_jobs(looping: Board) -> None:
    assert looping.disable() == 0
    assert looping.status().status == StatusId.STOPPED


def test_an_accelerators_reset_ends_the_program_and_blanks(looping: Board) -> None:
    assert looping.control(Operation.RESET) == 0
    status = looping.status()
    assert (status.status, status.consumed, status.produced) == (StatusId.IDLE, 0, 0)
    assert looping.log_texts(LogEntryType.JOB_FINISHED)[-1] == "ended by a reset"
    assert looping.read_firmware(4)[0] == 0x7C2


def test_a_controller_reset_ends_the_program_and_is_power_on(looping: Board) -> None:
    looping.reset_controller()
    assert looping.status().status == StatusId.IDLE
    assert looping.send_data(b"data") == 0x7C0
    assert looping.enable() == 0
    assert looping.read_firmware(4)[0] == 0x7C2
    assert looping.run(RETURN_7, b"data").return_value == 7


# The platform's own example


def test_the_addition_example_runs_on_the_tensor_accelerator(apu: Board) -> None:
    model_and_inputs = (ADD / "input.bin").read_bytes()
    expected = (ADD / "expected.bin").read_bytes()
    model_length = len(model_and_inputs) - 2 * len(expected)
    padded = model_and_inputs + bytes(-len(model_and_inputs) % 4)
    assert apu.enable() == apu.send_firmware((ADD / "program.o").read_bytes()) == 0
    assert apu.send_data(padded) == 0
    lengths = [struct.pack("<I", length) for length in (model_length, len(expected))]
    assert apu.control(Operation.START, arguments=encode_arguments(lengths)) == 0
    status = apu.wait()
    assert (status.status, status.return_value) == (StatusId.DONE, 0), apu.log().entries
    assert status.produced == len(expected)
    assert apu.read_data(len(expected)) == expected

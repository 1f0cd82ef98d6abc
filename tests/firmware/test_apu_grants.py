"""Programs that read and write blocks by themselves, in a real APU process."""

import errno
import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from csd_spec import fields
from csd_spec.descriptors import LogEntryType
from csd_spec.opcodes import IoOpcode, Operation
from csd_spec.status import StatusId
from potash_firmware.apu.channel import FromWorker, Gathered, JobExecuted
from potash_firmware.apu.config import NamespaceConfig
from potash_firmware.apu.job import Step
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import ByteRange, Grant, Subsystem
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    MAX_RANGES,
    JobEnded,
    Outcome,
    ReadCheck,
    ReadChecked,
    ToRpu,
    WriteBack,
)
from support.apu import BUFFER, CONFIG, MEDIA, Board, board, program
from support.bpf import exit_, insn, load, mov, mov_reg, store
from support.workers import PlayedSupervisor

READ_LBA, WRITE_LBA, LOG = 8, 9, 5
PAGE, BLOCK = 4096, 512
SECOND = 256 * PAGE
SCATTERED = SECOND // BLOCK // 2

ARENA = 0x1000_0000
INPUT = ARENA + 8 * PAGE
OUTPUT = INPUT + BUFFER

CALLS = program(
    # For each six numbers of the input, a helper's and its arguments; the values go to the output.
    mov_reg(6, 1),
    mov_reg(7, 2),
    load(8, 6),
    insn(0x55, 8, offset=2),
    mov(0, 0),
    exit_,
    insn(0x15, 8, offset=10, imm=99),  # 99 is no helper, but waiting without end
    *(load(register, 6, 8 * register) for register in range(1, 6)),
    insn(0x8D, 8),
    store(7, 0),
    insn(0x07, 6, imm=48),
    insn(0x07, 7, imm=8),
    insn(0x05, offset=-15),
    insn(0x05, offset=-1),
)
"""As many helpers as the input says."""

FOREVER = 99

TEXT = 48 * 20
"""Where the input has bytes for the calls."""


def calls(*listed: tuple[int, ...], text: bytes = b"") -> bytes:
    """The input of CALLS."""
    data = b"".join(struct.pack("<6Q", *call, *[0] * (6 - len(call))) for call in listed)
    return data.ljust(TEXT, b"\0") + text.ljust(-(-len(text) // 4) * 4, b"\0")


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    namespaces = (NamespaceConfig(1, MEDIA), NamespaceConfig(2, SECOND, BLOCK))
    with board(replace(CONFIG, namespaces=namespaces)) as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    booted.reset_controller()
    booted.ended.clear()
    booted.write_backs.clear()
    booted.write_error = 0
    booted.hold_write_backs = False
    for nsid, memory in booted.media.items():
        for page in range(memory.size // PAGE):
            memory.view[page * PAGE : (page + 1) * PAGE] = bytes([(nsid * 64 + page) % 256]) * PAGE
    assert booted.enable() == booted.send_firmware(CALLS) == 0
    return booted


def grant(apu: Board, start: int, pages: int, *, writable: bool = False, nsid: int = 1) -> None:
    cdws = fields.LocalStorage(start, pages, 0, writable).encode()
    assert apu.command(False, IoOpcode.GRANT_LOCAL_STORAGE, cdws, nsid=nsid)[0] == 0


def run(apu: Board, *listed: tuple[int, ...], text: bytes = b"") -> StatusId:
    assert apu.send_data(calls(*listed, text=text)) == 0
    assert apu.control(Operation.START) == 0
    return StatusId(apu.wait().status)


def values(apu: Board, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}Q", apu.read_data(8 * count)))


def media(apu: Board) -> dict[int, bytes]:
    return {nsid: bytes(memory.view) for nsid, memory in apu.media.items()}


def test_a_program_reads_the_blocks_that_were_granted(apu: Board) -> None:
    grant(apu, 5, 2)
    grant(apu, 1, 1, nsid=2)
    first, second = OUTPUT + 1024, OUTPUT + 1024 + 2 * PAGE
    done = run(apu, (READ_LBA, 1, 5, 2, first, 2 * PAGE), (READ_LBA, 2, 15, 1, second, 8192))
    assert done == StatusId.DONE
    assert values(apu, 2) == [2 * PAGE, BLOCK]
    got = apu.read_data(2 * PAGE + BLOCK + 4, offset=1024)
    assert got == b"\x45" * PAGE + b"\x46" * PAGE + b"\x81" * BLOCK + bytes(4)


def test_what_a_program_writes_reaches_the_media_when_its_job_ends(apu: Board) -> None:
    grant(apu, 4, 4, writable=True)
    grant(apu, 0, 2, writable=True, nsid=2)
    before = media(apu)
    apu.hold_write_backs = True
    text = INPUT + TEXT
    listed = (
        (WRITE_LBA, 1, 6, 1, text, PAGE),
        (WRITE_LBA, 2, 3, 2, text, 2 * BLOCK),
        (WRITE_LBA, 1, 4, 1, text + PAGE, PAGE),
        (READ_LBA, 1, 4, 1, OUTPUT + 1024, PAGE),
        (WRITE_LBA, 1, 7, 1, text, PAGE),
    )
    assert apu.send_data(calls(*listed, text=b"A" * PAGE + b"B" * PAGE)) == 0
    assert apu.control(Operation.START) == 0
    apu.until(lambda: len(apu.write_backs) == 1)
    assert apu.status().status == StatusId.RUNNING
    assert media(apu) == before
    for held in apu.write_backs:
        apu.complete(held)
    assert apu.wait().status == StatusId.DONE
    expected = {nsid: bytearray(data) for nsid, data in before.items()}
    expected[1][4 * PAGE : 5 * PAGE] = b"B" * PAGE
    expected[1][6 * PAGE : 8 * PAGE] = b"A" * 2 * PAGE
    expected[2][3 * BLOCK : 5 * BLOCK] = b"A" * 2 * BLOCK
    assert media(apu) == expected
    assert values(apu, 5) == [PAGE, 2 * BLOCK, PAGE, PAGE, PAGE]
    assert apu.read_data(PAGE, offset=1024) == b"B" * PAGE
    assert apu.log_texts(LogEntryType.JOB_FINISHED)[-1].endswith(
        f"{3 * PAGE + 2 * BLOCK} bytes written to granted blocks"
    )


def test_output_and_written_blocks_are_both_there(apu: Board) -> None:
    grant(apu, 0, 64, writable=True)
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 8, 1) == 0
    assert run(apu, (WRITE_LBA, 1, 9, 1, INPUT + TEXT, PAGE), text=b"W" * PAGE) == StatusId.DONE
    assert bytes(apu.media[1].view[8 * PAGE : 8 * PAGE + 16]) == struct.pack("<QQ", PAGE, 0)
    assert bytes(apu.media[1].view[9 * PAGE : 10 * PAGE]) == b"W" * PAGE


def test_the_outputs_own_blocks_are_not_written_by_the_program(apu: Board) -> None:
    grant(apu, 0, 64, writable=True)
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 8, 2) == 0
    before = media(apu)
    assert run(apu, (WRITE_LBA, 1, 9, 1, INPUT + TEXT, PAGE), text=b"W" * PAGE) == StatusId.FAILED
    assert "blocks of the job's output" in apu.log().entries[-1].text
    assert media(apu) == before


WRITES = (WRITE_LBA, 1, 4, 1, INPUT + TEXT, PAGE)


@pytest.mark.parametrize(
    "bad",
    [
        (WRITE_LBA, 1, 8, 1, INPUT, PAGE),
        (WRITE_LBA, 1, 7, 2, INPUT, 2 * PAGE),
        (WRITE_LBA, 1, 3, 1, INPUT, PAGE),
        (WRITE_LBA, 1, 4, 1, INPUT, PAGE - 1),
        (WRITE_LBA, 1, 16, 1, INPUT, PAGE),
        (WRITE_LBA, 2, 4, 1, INPUT, BLOCK),
        (WRITE_LBA, 1, 4, 1, 0, PAGE),
        (READ_LBA, 1, 17, 1, OUTPUT, PAGE),
        (READ_LBA, 1, 4, 1, OUTPUT, PAGE - 1),
        (READ_LBA, 1, 4, 1, 0, PAGE),
        (READ_LBA, 7, 4, 1, OUTPUT, PAGE),
        (READ_LBA, 1, 2**64 - 1, 2, OUTPUT, PAGE),
    ],
)
def test_a_job_that_does_something_wrong_has_written_nothing(
    apu: Board, bad: tuple[int, ...]
) -> None:
    grant(apu, 4, 4, writable=True)
    grant(apu, 16, 1)
    before = media(apu)
    assert run(apu, WRITES, bad, text=b"W" * PAGE) == StatusId.FAILED
    assert apu.write_backs == [] and media(apu) == before
    assert apu.log_types()[-1] in (LogEntryType.ACCELERATOR_ERROR, LogEntryType.MEMORY_FAULT)
    assert run(apu, WRITES, text=b"W" * PAGE) == StatusId.DONE
    assert bytes(apu.media[1].view[4 * PAGE : 5 * PAGE]) == b"W" * PAGE


def start_and_wait_until_it_has_written(apu: Board) -> None:
    """A job that gathers a block, says so, and goes on for ever."""
    grant(apu, 4, 4, writable=True)
    said = (LOG, 0, INPUT + TEXT, 4)
    assert apu.send_data(calls(WRITES, said, (FOREVER,), text=b"W" * PAGE)) == 0
    before = apu.log_texts(LogEntryType.PROGRAM_OUTPUT).count("WWWW")
    assert apu.control(Operation.START) == 0
    apu.until_so(lambda: apu.log_texts(LogEntryType.PROGRAM_OUTPUT).count("WWWW") > before)


def test_a_job_that_is_stopped_has_written_nothing(apu: Board) -> None:
    before = media(apu)
    start_and_wait_until_it_has_written(apu)
    assert apu.control(Operation.STOP) == 0
    assert apu.status().status == StatusId.STOPPED
    assert apu.write_backs == [] and media(apu) == before


def test_a_job_whose_process_is_killed_has_written_nothing(apu: Board) -> None:
    before = media(apu)
    start_and_wait_until_it_has_written(apu)
    os.kill(apu.worker(0), signal.SIGKILL)
    assert apu.wait().status == StatusId.FAILED
    assert apu.write_backs == [] and media(apu) == before


def test_nothing_of_a_job_is_left_for_the_next(apu: Board) -> None:
    start_and_wait_until_it_has_written(apu)
    assert apu.control(Operation.STOP) == 0
    assert run(apu, (READ_LBA, 1, 4, 1, OUTPUT + 1024, PAGE)) == StatusId.DONE
    assert apu.read_data(PAGE, offset=1024) == b"\x44" * PAGE
    assert apu.write_backs == []


def test_a_write_that_fails_fails_the_job(apu: Board) -> None:
    grant(apu, 4, 4, writable=True)
    apu.write_error = errno.ENOSPC
    assert run(apu, WRITES, text=b"W" * PAGE) == StatusId.FAILED
    assert "No space left" in apu.log_texts(LogEntryType.INVALID_OUTPUT_BUFFER)[-1]


def test_without_a_grant_there_is_nothing_to_read(apu: Board) -> None:
    assert run(apu, (READ_LBA, 1, 0, 1, OUTPUT, PAGE)) == StatusId.FAILED
    assert "not granted for reading" in apu.log().entries[-1].text


SCATTER = program(
    # Blocks 0, 2, 4, … of namespace 2, as many as the input says; each is its number.
    load(6, 1),
    mov_reg(9, 2),
    mov(7, 0),
    store(9, 7),
    mov(1, 2),
    mov_reg(2, 7),
    mov(3, 1),
    mov_reg(4, 9),
    mov(5, BLOCK),
    insn(0x85, imm=WRITE_LBA),
    insn(0x07, 7, imm=2),
    insn(0x07, 6, imm=-1),
    insn(0x55, 6, offset=-10),
    mov(0, 0),
    exit_,
)


def test_blocks_here_and_there_take_several_messages(apu: Board) -> None:
    """More ranges than one message to the RPU holds, and the blocks between them stay."""
    before = media(apu)[2]
    assert run_scatter_again(apu) == StatusId.DONE
    assert len(apu.write_backs) == -(-SCATTERED // MAX_RANGES) > 1
    after = bytes(apu.media[2].view)
    for lba in range(1, 2 * SCATTERED, 2):
        assert after[lba * BLOCK : (lba + 1) * BLOCK] == before[lba * BLOCK : (lba + 1) * BLOCK]


@pytest.mark.parametrize(
    "wanted",
    [
        ByteRange(1, 3 * PAGE, PAGE),
        ByteRange(1, 7 * PAGE, 2 * PAGE),
        ByteRange(1, 9 * PAGE, PAGE),
        ByteRange(1, 4 * PAGE + 1, PAGE),
        ByteRange(1, 4 * PAGE, 1),
        ByteRange(1, 2**64 - PAGE, PAGE),
        ByteRange(3, 4 * PAGE, PAGE),
    ],
)
def test_a_worker_that_wants_more_than_was_granted_is_not_believed(wanted: ByteRange) -> None:
    sent = list(_told(Gathered((ByteRange(1, 4 * PAGE, PAGE), wanted)), RETURNED))
    assert sent == [None]


def test_a_worker_that_wants_more_than_there_is_room_for_is_not_believed() -> None:
    again = [Gathered((ByteRange(1, 4 * PAGE, 4 * PAGE),) * 512)] * 3
    assert list(_told(*again[:2], RETURNED))[-1] is not None
    assert list(_told(*again, RETURNED)) == [None]


def test_a_worker_that_wants_what_was_granted_is_believed() -> None:
    wanted = ByteRange(1, 5 * PAGE, 3 * PAGE)
    source = CONFIG.accelerators[0].plan.writes_offset
    (write_back, _) = _told(Gathered((wanted,)), RETURNED)
    assert isinstance(write_back, WriteBack)
    assert write_back == WriteBack(write_back.tag, 0, source, ((1, 5 * PAGE, 3 * PAGE),))


def test_a_query_writes_no_blocks_whatever_is_granted() -> None:
    gathered = Gathered((ByteRange(1, 5 * PAGE, 3 * PAGE),))
    assert list(_told(RETURNED, runs=DeviceProgram.QUERY))[-1] == JobEnded(0, 0xC0)
    assert list(_told(gathered, RETURNED, runs=DeviceProgram.QUERY)) == [None]


RETURNED = JobExecuted(1, Outcome.RETURNED)


def _told(*said: FromWorker, runs: bytes | DeviceProgram = b"image") -> Iterator[ToRpu | None]:
    """What the RPU is told when a worker says this; None at the end where it was not believed."""
    sent: list[ToRpu] = []
    config = replace(CONFIG, namespaces=(NamespaceConfig(1, MEDIA),))
    accelerator = Subsystem.create(config, lambda: 0.0).accelerators[0]
    granted = (Grant(1, 4, 4, True), Grant(1, 9, 1, False))
    accelerator.buffers = replace(accelerator.buffers, granted=granted)
    with open("/dev/null") as media, PlayedSupervisor(config) as supervisor:
        jobs = Jobs(config, {0: accelerator}, supervisor, sent.append, {1: media.fileno()})
        jobs.runners[0].start(Step(0, runs, b""))
        for check in [one for one in sent if isinstance(one, ReadCheck)]:
            jobs.handle(ReadChecked(check.tag))
        supervisor.say(*said)
        yield from (message for message in sent if not isinstance(message, ReadCheck))
        yield None if supervisor.killed else JobEnded(0, 0xC0)


def test_what_a_job_writes_here_and_there_is_one_write_back(apu: Board) -> None:
    """One tag for all parts, of which the last says that it is the last; and one answer."""
    apu.hold_write_backs = True
    grant(apu, 0, SECOND // PAGE, writable=True, nsid=2)
    assert apu.send_firmware(SCATTER) == apu.send_data(struct.pack("<Q", SCATTERED)) == 0
    assert apu.control(Operation.START) == 0
    apu.until(lambda: bool(apu.write_backs) and not apu.write_backs[-1].more)
    assert len({item.tag for item in apu.write_backs}) == 1
    assert [item.more for item in apu.write_backs[:-1]] == [True] * (len(apu.write_backs) - 1)
    assert sum(len(item.ranges) for item in apu.write_backs) == SCATTERED
    assert apu.status().status == StatusId.RUNNING
    apu.complete(apu.write_backs[-1], errno.EIO)
    assert apu.wait().status == StatusId.FAILED
    apu.hold_write_backs = False
    assert run_scatter_again(apu) == StatusId.DONE


def run_scatter_again(apu: Board) -> StatusId:
    """Run the job that `scatter` began once more, and look at what it leaves."""
    grant(apu, 0, SECOND // PAGE, writable=True, nsid=2)
    assert apu.send_firmware(SCATTER) == apu.send_data(struct.pack("<Q", SCATTERED)) == 0
    assert apu.control(Operation.START) == 0
    status = StatusId(apu.wait().status)
    written = bytes(apu.media[2].view)
    numbers = [struct.unpack_from("<Q", written, lba * BLOCK)[0] for lba in range(0, 2048, 2)]
    assert numbers == list(range(0, 2048, 2))
    return status


def test_errors_of_a_program_are_errors_in_the_log(apu: Board) -> None:
    assert run(apu, (LOG, 1, INPUT + TEXT, 3), text=b"bad!") == StatusId.DONE
    assert apu.log_texts(LogEntryType.ACCELERATOR_ERROR)[-1] == "bad"

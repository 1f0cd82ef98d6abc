"""Programs on memory ranges in a real APU: what they see, what they leave, and what ends them."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from potash_firmware.apu import channel
from potash_firmware.apu.worker import Worker
from potash_firmware.bpf import Engine
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    ERASE,
    NEXT_HOST,
    CloseEngine,
    Execute,
    Executed,
    MemoryRange,
    OpenEngine,
    Outcome,
)
from potash_firmware.mailbox.shared import SharedMemory
from support.apu import program
from support.bpf import ATOMIC, DW, JA, JMP, MEM, ST, STX, B, exit_, insn, lddw, mov, mov_reg
from support.engines import (
    BASE,
    CONFIG,
    NSID,
    PAGE,
    STACK,
    EngineBoard,
    engine_board,
    load,
    store,
    with_constants,
)
from support.processes import children, descriptors, name

RETURNED, FAULTED = Outcome.RETURNED, Outcome.FAULTED

SEVEN = program(mov(0, 7), exit_)
ENDLESS = program(insn(JMP | JA, offset=-1))


@pytest.fixture(scope="module")
def native() -> Iterator[EngineBoard]:
    with engine_board() as made:
        yield made


@pytest.fixture(scope="module")
def limited() -> Iterator[EngineBoard]:
    """One that interprets, a thousand instructions for a second at most, one execution at a
    time."""
    limits = replace(CONFIG.limits, instructions=1000, seconds=1.0, engine_workers=1)
    with engine_board(replace(CONFIG, limits=limits, engine=Engine.INTERPRETER)) as made:
        yield made


@pytest.fixture(params=["native", "limited"])
def board(request: pytest.FixtureRequest) -> EngineBoard:
    """With each engine."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, EngineBoard)
    return found


def stopped_worker(board: EngineBoard) -> int:
    """The one worker that there is, which hangs."""
    assert board.execute(board.program(SEVEN)) == (RETURNED, 7)
    (pid,) = workers(board)
    os.kill(pid, signal.SIGSTOP)
    return pid


def workers(board: EngineBoard) -> list[int]:
    return [pid for pid in children(board.fork_server()) if name(pid) == "potash-engine"]


def test_a_program_sees_its_ranges_parameters_and_data(board: EngineBoard) -> None:
    """It writes its registers, and then its context, into the second range."""
    first, handle = board.memory(b"first", 2)
    second, other = board.memory(pages=1)
    words = 16
    copied = (
        piece for at in range(words) for piece in (load(6, 5, 8 * at), store(2, 40 + 8 * at, 6))
    )
    registers = (store(2, 8 * index, index + 1) for index in range(5))
    image = board.program(program(*registers, *copied, load(0, 1), exit_))
    ranges = ((handle, PAGE, PAGE), (other, 0, PAGE), (handle, 0, PAGE))
    with closing(first), closing(second):
        first.view[PAGE : PAGE + 8] = struct.pack("<Q", 1 << 63 | 5)

        def said(parameters: tuple[int, int], data: bytes) -> bytes:
            found = board.execute(image, *ranges, parameters=parameters, data=data)
            assert found == (RETURNED, 1 << 63 | 5)
            return bytes(second.view[40 : 40 + 8 * words])

        # Version 2, no arguments, a list of 3 bytes; parameters and ranges are behind it.
        given = said((3, 1 << 40), b"abc")
        source, target, *lengths, _ = struct.unpack("<5Q", second.view[:40])
        assert (target - source, lengths) == (PAGE, [PAGE, PAGE])
        places = struct.pack("<6Q", source, PAGE, target, PAGE, target + PAGE, PAGE)
        expected = struct.pack("<IIQ 8s QQQ", 2, 0, 3, b"abc", 3, 1 << 40, 3) + places
        assert given == expected + bytes(8 * words - len(expected))
        # Without data, the parameters are four arguments of 32 bits.
        expected = struct.pack("<IIQ 8I QQQ", 2, 4, 32, 8, 2, 8, 1, 8, 3, 8, 0, 1 << 32 | 2, 3, 3)
        assert said((1 << 32 | 2, 3), b"") == expected + places + bytes(8)


def test_what_a_program_writes_is_in_the_memory_at_once(board: EngineBoard) -> None:
    memory, handle = board.memory(pages=3)
    with closing(memory):
        image = program(mov(0, 9), lddw(3, 0x1122_3344_5566_7788), store(2, 8, 3), exit_)
        ranges = ((handle, 0, PAGE), (handle, 2 * PAGE, PAGE))
        assert board.execute(board.program(image), *ranges) == (RETURNED, 9)
        expected = bytearray(3 * PAGE)
        expected[2 * PAGE + 8 : 2 * PAGE + 16] = struct.pack("<Q", 0x1122_3344_5566_7788)
        assert bytes(memory.view) == expected


@pytest.mark.parametrize(
    ("offset", "text"),
    [(PAGE, "out of bounds"), (PAGE - 4, "out of bounds"), (1 << 30, "out of bounds")],
)
def test_nothing_behind_the_last_range_is_reached(
    board: EngineBoard, offset: int, text: str
) -> None:
    memory, handle = board.memory(b"x", 4)
    with closing(memory):
        image = program(lddw(3, offset), insn(0x0F, 2, 3), load(0, 2), exit_)
        ranges = ((handle, 0, PAGE), (handle, PAGE, PAGE))
        assert board.execute(board.program(image), *ranges) == (FAULTED, 0)
        assert text in board.texts()[-1]
        assert board.execute(board.program(SEVEN)) == (RETURNED, 7)


def test_without_ranges_there_is_nothing_to_reach(board: EngineBoard) -> None:
    assert board.execute(board.program(program(mov_reg(0, 1), exit_))) == (RETURNED, 0)
    assert board.execute(board.program(program(load(0, 1), exit_))) == (FAULTED, 0)


def test_constants_are_read_only(board: EngineBoard) -> None:
    context_pages = (1 << 20) // PAGE + 1
    data = BASE + STACK * PAGE
    rodata = data + (1 + context_pages) * PAGE
    for address, contents in ((rodata, b"constant"), (data, b"variable")):
        image = with_constants(lddw(1, address), load(0, 1), exit_)
        expected = RETURNED, int.from_bytes(contents, "little")
        assert board.execute(board.program(image)) == expected
    image = with_constants(lddw(1, data), insn(ST | MEM | B, 1, 0, 0, 1), mov(0, 0), exit_)
    assert board.execute(board.program(image)) == (RETURNED, 0)
    for at in (rodata, rodata - 4, rodata + PAGE - 8):
        image = with_constants(lddw(1, at), mov(0, 0), store(1, 0, 0), exit_)
        assert board.execute(board.program(image)) == (FAULTED, 0)
        assert "write to read-only memory" in board.texts()[-1]


def test_nothing_of_one_execution_is_left_for_the_next(native: EngineBoard) -> None:
    """Stack, data, context and ranges: a program fills all that it reaches, another one looks."""
    first, handle = native.memory(b"secret", 4)
    second, other = native.memory(pages=1)
    with closing(first), closing(second):
        context_pages = (1 << 20) // PAGE + 1
        reach = (STACK + context_pages + 4) * PAGE
        fill = [mov_reg(1, 10), insn(0x07, 1, imm=-PAGE), lddw(2, BASE + reach), mov(3, -1)]
        loop = [store(1, 0, 3), insn(0x07, 1, imm=8), insn(0xAD, 1, 2, -3)]
        image = program(*fill, *loop, mov(0, 1), exit_)
        assert native.execute(native.program(image), (handle, 0, 4 * PAGE)) == (RETURNED, 1)
        assert bytes(first.view) == b"\xff" * 4 * PAGE

        own = (STACK + context_pages) * PAGE  # the next one's stack and context
        look = [mov_reg(1, 10), insn(0x07, 1, imm=-PAGE), lddw(2, BASE + own), mov(0, 0)]
        loop = [load(3, 1), insn(0x4F, 0, 3), insn(0x07, 1, imm=8), insn(0xAD, 1, 2, -4)]
        found = native.program(program(*look, *loop, exit_))
        outcome, value = native.execute(found, (other, 0, PAGE))
        assert outcome is RETURNED
        assert value & 0xFF00_0000_0000_0000 == 0  # addresses and lengths of its context are small
        behind = program(lddw(1, BASE + own + PAGE), load(0, 1), exit_)
        assert native.execute(native.program(behind), (other, 0, PAGE)) == (FAULTED, 0)


def test_functions_have_stack_frames_as_the_configuration_says() -> None:
    large = program(insn(ST | MEM | DW, 10, 0, -8192, 5), load(0, 10, -8192), exit_)
    too_large = program(insn(ST | MEM | DW, 10, 0, -8200, 5), mov(0, 0), exit_)
    with engine_board(replace(CONFIG, limits=replace(CONFIG.limits, frame_size=8192))) as board:
        assert board.execute(board.program(large)) == (RETURNED, 5)
        assert board.check(board.program(large)) is RETURNED
        assert board.check(board.program(too_large)) is not RETURNED
        assert "has 8192 bytes at most" in board.texts()[-1]


def test_a_worker_has_what_its_execution_names_and_no_more(limited: EngineBoard) -> None:
    first, handle = limited.memory()
    second, other = limited.memory()
    with closing(first), closing(second):

        def held() -> set[int]:
            (pid,) = workers(limited)
            folder = f"/proc/{pid}/fd"
            files = {os.stat(f"{folder}/{fd}").st_ino for fd in os.listdir(folder)}
            with open(f"/proc/{pid}/maps") as maps:
                mapped = {int(line.split()[4]) for line in maps}
            return (files | mapped) & {os.fstat(one.fd).st_ino for one in (first, second)}

        seven = limited.program(SEVEN)
        try:
            for named, expected in (((handle,), first), ((other,), second), ((), None)):
                limited.execute(seven, *((one, 0, PAGE) for one in named))
                assert held() == ({os.fstat(expected.fd).st_ino} if expected else set())
        except PermissionError:
            pytest.skip("this user may not look at its workers")


def test_a_limit_that_is_exceeded_is_in_the_log(limited: EngineBoard) -> None:
    assert limited.execute(limited.program(ENDLESS)) == (FAULTED, 0)
    assert "instruction limit exceeded" in limited.texts()[-1]


def test_executions_run_at_once_and_are_cancelled_one_by_one(native: EngineBoard) -> None:
    endless = native.program(ENDLESS)
    tags = [native.begin(endless) for _ in range(3)]
    seven = native.program(SEVEN)
    assert native.execute(seven) == (RETURNED, 7)  # beside the three
    native.cancel(tags[1])
    assert native.end_of(tags[1]) == (Outcome.CANCELLED, 0)
    assert native.execute(seven) == (RETURNED, 7)
    assert not native.ended_executions
    for tag in (tags[0], tags[2], 99):  # the last of which is none
        native.cancel(tag)
    assert native.end_of(tags[0]) == native.end_of(tags[2]) == (Outcome.CANCELLED, 0)


def test_one_that_waits_for_a_worker_can_be_cancelled(limited: EngineBoard) -> None:
    stopped_worker(limited)
    running, waiting = (limited.begin(limited.program(SEVEN)) for _ in range(2))
    limited.cancel(waiting)
    assert limited.end_of(waiting) == (Outcome.CANCELLED, 0)
    limited.cancel(running)
    assert limited.end_of(running) == (Outcome.CANCELLED, 0)


def test_the_loss_of_a_worker_ends_its_execution_alone(limited: EngineBoard) -> None:
    pid = stopped_worker(limited)
    tags = [limited.begin(limited.program(SEVEN)) for _ in range(2)]
    os.kill(pid, signal.SIGKILL)
    assert limited.end_of(tags[0]) == (Outcome.LOST, 0)
    assert limited.end_of(tags[1]) == (RETURNED, 7)
    assert any("was ended by SIGKILL" in text for text in limited.texts())


def test_a_worker_that_hangs_is_ended_at_the_time_limit(limited: EngineBoard) -> None:
    stopped_worker(limited)
    assert limited.execute(limited.program(SEVEN)) == (Outcome.EXPIRED, 0)
    assert "took more than 1 s" in limited.texts()[-1]
    assert limited.execute(limited.program(SEVEN)) == (RETURNED, 7)


def test_the_loss_of_the_fork_server_ends_executions_and_the_next_ones_run(
    native: EngineBoard,
) -> None:
    seven = native.program(SEVEN)
    native.execute(seven)
    tag = native.begin(native.program(ENDLESS))
    native.until_so(lambda: bool(workers(native)))
    os.kill(native.fork_server(), signal.SIGKILL)
    assert native.end_of(tag) == (Outcome.LOST, 0)
    assert native.execute(seven) == (RETURNED, 7)


@pytest.mark.parametrize("scope", [CONTROLLER_RESET, NEXT_HOST])
def test_a_reset_ends_executions(native: EngineBoard, scope: object) -> None:
    seven = native.program(SEVEN)
    native.execute(seven)
    before = workers(native)
    tag = native.begin(native.program(ENDLESS))
    native.reset_controller(scope)  # type: ignore[arg-type]  # a ResetScope
    assert native.ended_executions.pop(tag).outcome is Outcome.CANCELLED
    assert not set(before) & set(workers(native))
    assert native.execute(seven) == (RETURNED, 7)  # programs stay


def test_erasing_clears_what_programs_have_left_but_ends_none(limited: EngineBoard) -> None:
    limited.execute(limited.program(ENDLESS))
    assert limited.texts()
    before = workers(limited)
    limited.reset_controller(ERASE)
    assert not limited.texts()
    assert limited.execute(limited.program(SEVEN)) == (RETURNED, 7)
    assert not set(before) & set(workers(limited))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what a worker has mapped")
def test_what_is_forgotten_is_freed_and_names_nothing(native: EngineBoard) -> None:
    memory, handle = native.memory()
    with closing(memory):
        seven = native.program(SEVEN)
        assert native.execute(seven, (handle, 0, PAGE)) == (RETURNED, 7)
        native.forget(handle)
        assert native.execute(seven, (handle, 0, PAGE)) == (Outcome.REFUSED, 0)
        native.forget(seven)
        assert native.execute(seven) == (Outcome.REFUSED, 0)
        needle = os.fstat(memory.fd).st_ino

        def is_mapped() -> bool:
            for pid in (native.process.pid, *workers(native)):
                with suppress(FileNotFoundError, ProcessLookupError):  # one that goes
                    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
                    if any(int(line.split()[4]) == needle for line in maps):
                        return True
            return False

        native.until_so(lambda: not is_mapped())


def test_a_closed_engine_cancels_and_is_gone(native: EngineBoard) -> None:
    tag = native.begin(native.program(ENDLESS))
    native.port.send(CloseEngine(NSID))
    assert native.end_of(tag) == (Outcome.CANCELLED, 0)
    assert native.execute(native.program(SEVEN)) == (Outcome.REFUSED, 0)
    native.port.send(OpenEngine(NSID))
    assert native.execute(native.program(SEVEN)) == (RETURNED, 7)


def test_a_program_is_checked_before_it_runs(native: EngineBoard) -> None:
    assert native.check(native.program(SEVEN)) is RETURNED
    assert native.check(native.program(b"this is no ELF file")) is Outcome.REFUSED
    assert native.texts()[-1].startswith("a program was refused: ")
    assert native.check(999) is Outcome.REFUSED
    assert native.execute(native.program(b"this is no ELF file")) == (Outcome.REFUSED, 0)


def test_a_check_that_a_reset_ends_says_nothing_of_the_program(limited: EngineBoard) -> None:
    tag = limited.begin_check(limited.program(SEVEN))
    limited.reset_controller(ERASE)
    assert limited.verdict(tag) in (Outcome.LOST, RETURNED)  # which it was may have come first


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 2 * PAGE), (PAGE, PAGE), ((1 << 64) - PAGE, 2 * PAGE)]
)
def test_a_range_outside_its_memory_is_refused(
    native: EngineBoard, offset: int, length: int
) -> None:
    memory, handle = native.memory()
    with closing(memory):
        program_handle = native.program(SEVEN)
        assert native.execute(program_handle, (handle, offset, length)) == (Outcome.REFUSED, 0)
        assert native.execute(program_handle, (handle, 0, PAGE)) == (RETURNED, 7)


def test_more_than_an_arena_reaches_is_refused(native: EngineBoard) -> None:
    memory = SharedMemory(4 << 30, "large")
    with closing(memory):
        _, small = native.memory()
        from potash_firmware.mailbox.messages import ShareMemory

        native.port.send(ShareMemory(5000, 4 << 30, memory.fd))
        seven = native.program(SEVEN)
        assert native.execute(seven, (5000, 0, 4 << 30)) == (Outcome.REFUSED, 0)
        assert native.execute(seven, (5000, 0, 3 << 30)) == (RETURNED, 7)
        assert native.execute(seven, (small, 0, PAGE)) == (RETURNED, 7)


def test_two_programs_share_memory_while_both_run(native: EngineBoard) -> None:
    """Each stores a number and waits for the other's, which it looks at by an atomic operation."""
    memory, handle = native.memory()
    with closing(memory):

        def waiting(mine: int, other: int) -> bytes:
            fetch = insn(STX | ATOMIC | DW, 1, 3, other, 0x01)  # adds 0 and gives what was there
            loop = [mov(3, 0), fetch, insn(0x15, 3, 0, -3, 0)]
            return program(mov(2, 1), store(1, mine, 2), *loop, mov(0, mine), exit_)

        tags = [
            native.begin(native.program(waiting(mine, other)), (handle, 0, PAGE))
            for mine, other in ((0, 8), (8, 0))
        ]
        assert [native.end_of(tag) for tag in tags] == [(RETURNED, 0), (RETURNED, 8)]


def test_a_message_that_names_nothing_is_refused(native: EngineBoard) -> None:
    assert native.execute(12345) == (Outcome.REFUSED, 0)
    tag = native.begin(0, nsid=8)
    assert native.end_of(tag) == (Outcome.REFUSED, 0)
    native.port.send(Execute(5, NSID, 0, ranges=(MemoryRange(12345, 0, PAGE),)))
    assert native.end_of(5) == (Outcome.REFUSED, 0)


def test_executions_leave_no_descriptor_behind(native: EngineBoard) -> None:
    apu = native.process.pid
    seven = native.program(SEVEN)
    assert native.execute(seven, data=b"data") == (RETURNED, 7)
    before = len(descriptors(apu))
    for _ in range(3):
        memory, handle = native.memory()
        with closing(memory):
            assert native.execute(seven, (handle, 0, PAGE), data=b"data") == (RETURNED, 7)
            assert native.execute(999, data=b"data") == (Outcome.REFUSED, 0)
            native.forget(handle)
    assert native.execute(seven) == (RETURNED, 7)
    native.until_so(lambda: len(descriptors(apu)) <= before)


class _Idle(Worker):
    """A worker that runs nothing."""

    def _execute(self, message: Execute, data: bytes, descriptors: Sequence[int]) -> Executed:
        return Executed(message.tag, Outcome.RETURNED)


def test_a_worker_ends_that_has_fewer_descriptors_than_an_execution_names(tmp_path: Path) -> None:
    """Neither has one more that was sent, nor one in the place of another."""
    service, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (tmp_path / "memory").write_bytes(b"memory")
    execution = Execute(5, NSID, 0, ranges=(MemoryRange(256, 0, PAGE), MemoryRange(257, 0, PAGE)))
    with service, end, (tmp_path / "memory").open("rb") as memory:
        worker = _Idle(end, CONFIG)
        with pytest.raises(ValueError, match="zip"):
            worker._perform(execution, [os.dup(memory.fileno())])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(memory.fileno())  # the lowest that is free
        os.close(free)
        socket.send_fds(service, [channel.encode(execution)], [memory.fileno()] * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        try:
            with pytest.raises(OSError, match="did not arrive"):
                worker.serve()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(free)

"""Executions like the last one, which are passed on without being decoded: what they see, and what
a worker may answer to them."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest

from potash_firmware.apu import channel
from potash_firmware.apu.channel import FromWorker
from potash_firmware.apu.engines import Engines
from potash_firmware.mailbox import pair
from potash_firmware.mailbox.datagrams import encode
from potash_firmware.mailbox.messages import Cancel, Execute, Executed, OpenEngine, Outcome
from support.apu import program
from support.bpf import exit_, insn, lddw, mov
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
from support.processes import children, name
from support.workers import PlayedSupervisor

RETURNED, FAULTED = Outcome.RETURNED, Outcome.FAULTED


@pytest.fixture(scope="module")
def native() -> Iterator[EngineBoard]:
    with engine_board() as made:
        yield made


@pytest.mark.parametrize(
    "lie",
    [
        Executed(6, Outcome.RETURNED, 1),  # of another execution
        Executed(5, Outcome.CANCELLED),  # nothing that a worker can say
        Executed(5, Outcome.LOST),
        channel.JobExecuted(5, Outcome.RETURNED, 1),
        channel.Gathered(()),
    ],
    ids=str,
)
def test_a_worker_that_lies_is_ended_and_says_nothing_to_the_rpu(lie: FromWorker) -> None:
    checks: Any = None
    rpu, port = pair()
    with rpu, port, PlayedSupervisor(CONFIG) as supervisor:
        found = Engines(CONFIG, supervisor, checks, port, lambda: 0.0)
        found.handle(OpenEngine(NSID))
        supervisor.say(channel.Ready())
        for tag in (4, 5):  # the second one is passed on unread
            execution = encode(Execute(tag, NSID, 0))
            assert found.repeat(execution) is (tag == 5)
            if tag == 4:
                found.handle(Execute(tag, NSID, 0))
                supervisor.say(Executed(tag, Outcome.RETURNED, 9))
                assert rpu.receive() == Executed(tag, Outcome.RETURNED, 9)
            assert supervisor.ends[1].recv(1000) == execution
        supervisor.say(lie, Executed(5, Outcome.RETURNED, 1))  # which comes too late
        assert supervisor.killed == [1]
        assert rpu.receive() is None
        supervisor.exit()
        assert rpu.receive() == Executed(5, Outcome.LOST)


def test_an_execution_is_passed_on_unread_only_to_an_idle_worker_that_has_run_its_like() -> None:
    checks: Any = None
    rpu, port = pair()
    with rpu, port, PlayedSupervisor(CONFIG) as supervisor:
        found = Engines(CONFIG, supervisor, checks, port, lambda: 0.0)
        found.handle(OpenEngine(NSID))
        supervisor.say(channel.Ready())
        first = Execute(1, NSID, 0)
        found.handle(first)
        again = encode(replace(first, tag=2))
        assert not found.repeat(again)  # it is busy
        supervisor.say(Executed(1, Outcome.RETURNED))
        for other in (replace(first, parameters=(1, 0)), replace(first, program=1), Cancel(1)):
            assert not found.repeat(encode(other))
        assert not found.repeat(encode(replace(first, nsid=NSID + 1)))
        assert found.repeat(again)
        found.handle(Cancel(2))
        assert supervisor.killed == [1]
        supervisor.exit()
        assert [rpu.receive(), rpu.receive()] == [
            Executed(1, Outcome.RETURNED),
            Executed(2, Outcome.CANCELLED),
        ]
        assert not found.repeat(again)  # there is nobody now


def test_the_next_equal_execution_finds_nothing_of_the_one_before(native: EngineBoard) -> None:
    """It adds up a variable, its stack, an argument and memory, and overwrites all but the last."""
    memory, handle = native.memory()
    code = [lddw(6, BASE + STACK * PAGE), load(0, 1)]
    for register, offset in ((6, 0), (10, -8), (5, 24)):
        code += [load(7, register, offset), insn(0x0F, 0, 7), store(register, offset, 1)]
    image = native.program(with_constants(*code, exit_))
    with closing(memory):
        values = set()
        for turn in range(4):
            memory.view[:8] = struct.pack("<Q", turn)
            outcome, value = native.execute(image, (handle, 0, PAGE), parameters=(3, 4))
            assert outcome is RETURNED
            values.add(value - turn)
    assert len(values) == 1


def test_an_equal_execution_may_end_otherwise(native: EngineBoard) -> None:
    """It faults if the memory says so, which is in the log, and the next one returns again."""
    memory, handle = native.memory()
    with closing(memory):
        image = native.program(program(load(2, 1), insn(0x15, 2, 0, 1), load(0, 2), exit_))
        for value in (0, 0, 1, 0, 0):
            memory.view[:8] = struct.pack("<Q", value)
            texts = len(native.texts())
            outcome, _ = native.execute(image, (handle, 0, PAGE))
            assert outcome is (FAULTED if value else RETURNED)
            assert len(native.texts()) - texts == value


def test_a_thousand_executions_end_once_each_whatever_ends_their_workers(
    native: EngineBoard,
) -> None:
    """All are sent before the first answer is read. Some are cancelled, and a worker is killed."""

    def workers() -> list[int]:
        pids = children(native.fork_server())
        return [pid for pid in pids if name(pid) == "potash-engine"]

    seven = native.program(program(mov(0, 7), exit_))
    assert native.execute(seven) == (RETURNED, 7)
    tags = [native.begin(seven) for _ in range(1000)]
    cancelled = set(tags[::9])
    for tag in cancelled:
        native.cancel(tag)
    for pid in workers()[:1]:
        with suppress(ProcessLookupError):  # a cancellation has ended it
            os.kill(pid, signal.SIGKILL)
    found = {tag: native.end_of(tag) for tag in tags}
    assert not native.ended_executions
    assert {end for tag, end in found.items() if tag not in cancelled} <= {
        (RETURNED, 7),
        (Outcome.LOST, 0),
    }
    assert sum(outcome is Outcome.LOST for outcome, _ in found.values()) <= 1
    ends = {found[tag] for tag in cancelled}
    assert ends <= {(RETURNED, 7), (Outcome.CANCELLED, 0), (Outcome.LOST, 0)}
    assert native.execute(seven) == (RETURNED, 7)

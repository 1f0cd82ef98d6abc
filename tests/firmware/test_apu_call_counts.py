"""How many files and calls a job takes, from Start at the mailbox until the RPU is notified, and
how many an execution of a compute namespace that is like the last one.

The service and the worker run in this process, the RPU is the test. `pytest -s` shows the counts,
and `-vv` every function. A limit is what the flow takes now: lower it with the flow.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from csd_spec import fields
from csd_spec.opcodes import AdminOpcode, GlobalOperation, IoOpcode, Operation
from potash_firmware.apu import channel
from potash_firmware.apu.engine_worker import EngineWorker
from potash_firmware.apu.service import Service
from potash_firmware.apu.worker import Checker, JobWorker, Setup, Worker
from potash_firmware.bpf import Engine
from potash_firmware.mailbox import SharedBuffers, pair
from potash_firmware.mailbox.messages import (
    FIRST_HANDLE,
    Execute,
    Executed,
    JobEnded,
    OpenEngine,
    Outcome,
    Reply,
    Request,
    ShareProgram,
    ToRpu,
)
from potash_firmware.mailbox.shared import seal
from support.apu import CONFIG, program
from support.bpf import exit_, mov
from support.call_counts import counted
from support.workers import PlayedSupervisor

SLOT = 3


class InProcess:
    """The APU's service and its workers, step by step."""

    def __init__(self, stack: ExitStack) -> None:
        plans = {item.id: item.plan for item in CONFIG.accelerators}
        self.buffers = stack.enter_context(SharedBuffers.create(plans))
        self.rpu, self.port = pair()
        stack.enter_context(self.rpu)
        stack.enter_context(self.port)
        self.supervisor = stack.enter_context(PlayedSupervisor(CONFIG))
        self.service = Service(CONFIG, self.port, self.buffers, self.supervisor)
        self.workers: dict[int, Worker] = {}
        self.received: list[ToRpu] = []

    def settle(self) -> None:
        """Have everybody do what there is to do."""
        busy = True
        while busy:
            busy = False
            for worker in list(self.supervisor.workers):
                busy |= self._work(worker.number, worker.kind)
            while (message := self.rpu.receive()) is not None:
                self.received.append(message)
            sources: list[Any] = [self.port, self.supervisor.control, *self.supervisor.workers]
            if select.select(sources, [], [], 0)[0]:
                self.service.step()
                busy = True

    def _work(self, number: int, kind: int) -> bool:
        """Have a worker do one execution, if it has been sent one."""
        end = self.supervisor.ends[number]
        end.setblocking(False)
        worker = self.workers.get(number)
        if worker is None:
            worker = self.workers[number] = self._worker(end, kind)
            end.send(channel.encode(channel.Ready()))
        try:
            data, descriptors, _, _ = socket.recv_fds(end, worker.largest, 16)
        except BlockingIOError:
            return False
        if data:
            worker._receive(data, descriptors)
        return bool(data)

    def _worker(self, end: socket.socket, kind: int) -> Worker:
        compiler: Any = None  # its own thread compiles what is not cached
        if kind == channel.CHECKER:
            return Checker(end, CONFIG)
        setup = Setup(end, CONFIG, Engine.NATIVE, compiler)
        if kind == channel.ENGINE:
            return EngineWorker(setup)
        return JobWorker(setup, kind, self.buffers.arenas[kind].fd)

    def command(self, admin: bool, opcode: int, cdws: Any, data: bytes = b"") -> None:
        slot = self.buffers.slot(SLOT)
        slot[: len(data)] = data
        self.rpu.send(Request(1, admin, opcode, 1, cdws, SLOT if data else -1, len(data)))
        self.received.clear()
        self.settle()
        replies = [one for one in self.received if isinstance(one, Reply)]
        assert [reply.status for reply in replies] == [0]

    def start(self) -> None:
        self.command(False, IoOpcode.CONTROL, fields.Control(Operation.START, 0).encode())
        assert self.received[-1] == JobEnded(0, 0xC0)


@pytest.fixture
def apu() -> Iterator[InProcess]:
    with ExitStack() as stack:
        yield InProcess(stack)


def test_a_job_of_a_program_that_has_run_before(
    apu: InProcess, request: pytest.FixtureRequest
) -> None:
    image = program(mov(0, 7), exit_)
    transfer = fields.FirmwareTransfer(len(image) // 4, 0, 0, 0).encode()
    enable = fields.GlobalControl(GlobalOperation.ENABLE).encode()
    apu.command(True, AdminOpcode.GLOBAL_CONTROL, enable)
    apu.command(False, IoOpcode.SEND_FIRMWARE, transfer, image)
    apu.command(False, IoOpcode.SEND_DATA, fields.DataTransfer(1, 0, 0).encode(), bytes(4))
    apu.start()
    with counted() as calls:
        apu.start()
    print(f"\n{request.node.name}: {calls}")
    if request.config.getoption("verbose") > 1:
        print(calls.listed())
    assert calls.files <= 22 and calls.total <= 293, calls.listed()


def test_an_execution_like_the_last_one(apu: InProcess, request: pytest.FixtureRequest) -> None:
    image = program(mov(0, 7), exit_)
    descriptor = seal("program", image)
    apu.rpu.send(OpenEngine(1))
    apu.rpu.send(ShareProgram(FIRST_HANDLE, len(image), descriptor))
    os.close(descriptor)
    for tag in range(3):
        apu.rpu.send(Execute(tag, 1, FIRST_HANDLE))
        with counted() as calls:
            apu.settle()
        assert apu.received[-1] == Executed(tag, Outcome.RETURNED, 7)
    print(f"\n{request.node.name}: {calls}")
    if request.config.getoption("verbose") > 1:
        print(calls.listed())
    assert calls.total <= 100, calls.listed()

"""The service step by step, in this process: what is kept before a host is told of it."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from csd_spec import fields
from csd_spec.opcodes import AdminOpcode, GlobalOperation, IoOpcode
from nvme_spec.status import Status
from potash_firmware.apu.channel import CHECKER
from potash_firmware.apu.model import StateArea, Subsystem
from potash_firmware.apu.service import Service
from potash_firmware.apu.supervisor import Supervisor
from potash_firmware.mailbox import ApuPort, RpuPort, SharedBuffers, pair
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    ERASE,
    NEXT_HOST,
    Alive,
    Ping,
    Reply,
    Request,
    Reset,
    ResetDone,
    ResetScope,
    ToRpu,
)
from support.apu import CONFIG
from support.workers import PlayedSupervisor


class WatchedPort(ApuPort):
    """Notes what a restarted APU would find, at the moment when something is sent."""

    buffers: SharedBuffers
    found: list[Subsystem]

    def send(self, message: ToRpu) -> None:
        subsystem = Subsystem.create(CONFIG, time.time)
        data = StateArea(self.buffers.state.view).load()
        if data is not None:
            subsystem.restore(data)
        self.found.append(subsystem)
        super().send(message)


class Bench:
    """A service between two ports; it has no fork server, and no test here starts a job."""

    def __init__(self, rpu: RpuPort, port: WatchedPort, buffers: SharedBuffers) -> None:
        self.rpu = rpu
        self.port = port
        self.buffers = buffers
        self.service = Service(CONFIG, port, buffers, Supervisor(CONFIG, {}))

    def ask(self, message: Request | Reset) -> Subsystem:
        """What a restart would have found when the answer was sent."""
        self.rpu.send(message)
        self.service.step()
        answer = self.rpu.receive()
        assert isinstance(answer, (Reply, ResetDone)) and answer.tag == message.tag
        assert not isinstance(answer, Reply) or answer.status == 0
        return self.port.found[-1]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        plans = {item.id: item.plan for item in CONFIG.accelerators}
        buffers = stack.enter_context(SharedBuffers.create(plans))
        rpu, apu = pair()
        stack.enter_context(rpu)
        with apu:
            port = stack.enter_context(WatchedPort.adopt(os.dup(apu.fileno())))
        port.buffers, port.found = buffers, []
        yield Bench(rpu, port, buffers)


ENABLE = Request(
    1, True, AdminOpcode.GLOBAL_CONTROL, 0, fields.GlobalControl(GlobalOperation.ENABLE).encode()
)


def test_enabling_is_kept_before_it_is_answered(bench: Bench) -> None:
    assert bench.ask(ENABLE).enabled


def test_ranges_are_kept_before_they_are_answered(bench: Bench) -> None:
    bench.ask(ENABLE)
    cdws = fields.LocalStorage(2, 3, 3).encode()
    found = bench.ask(Request(2, False, IoOpcode.LOCAL_INPUT, 1, cdws))
    assert found.accelerators[3].buffers.input_ranges == ((1, 2 * 4096, 3 * 4096),)


def test_grants_are_kept_in_blocks_before_they_are_answered(bench: Bench) -> None:
    bench.ask(ENABLE)
    for tag, command, expected in (
        (2, fields.LocalStorage(2, 3, 3), [(1, 2, 3, False)]),
        (3, fields.LocalStorage(9, 1, 3, writable=True), [(1, 2, 3, False), (1, 9, 1, True)]),
        (4, fields.LocalStorage(7, 1, 3, replace=True), [(1, 7, 1, False)]),
    ):
        found = bench.ask(Request(tag, False, IoOpcode.GRANT_LOCAL_STORAGE, 1, command.encode()))
        assert [tuple(item) for item in found.accelerators[3].buffers.granted] == expected


def test_a_reset_is_kept_before_it_is_answered(bench: Bench) -> None:
    bench.ask(ENABLE)
    assert not bench.ask(Reset(2)).enabled


@pytest.mark.parametrize("scope", [CONTROLLER_RESET, NEXT_HOST, ERASE])
def test_a_reset_is_complete_when_the_check_of_a_program_is_gone(
    bench: Bench, scope: ResetScope
) -> None:
    with PlayedSupervisor(CONFIG) as supervisor:
        bench.service = Service(CONFIG, bench.port, bench.buffers, supervisor)
        bench.ask(ENABLE)
        bench.buffers.slot(0)[:4] = b"\x7fELF"
        cdws = fields.FirmwareTransfer(1, 0, 0, 0).encode()
        bench.rpu.send(Request(2, False, IoOpcode.SEND_FIRMWARE, 0, cdws, 0, 4))
        bench.rpu.send(Reset(3, scope))
        bench.service.step()
        assert bench.rpu.receive() == Reply(2, Status.ABORT_REQUESTED)
        (checker,) = (worker for worker in supervisor.workers if worker.kind == CHECKER)
        assert checker.number in supervisor.killed and bench.rpu.receive() is None
        while supervisor.killed:
            supervisor.exit(supervisor.killed.pop())
        bench.rpu.send(Ping(4))
        bench.service.step()
        assert [bench.rpu.receive(), bench.rpu.receive()] == [Alive(4), ResetDone(3)]


def test_a_host_that_hangs_up_ends_the_service_and_nothing_else(bench: Bench) -> None:
    bench.ask(ENABLE)
    bench.rpu.close()
    bench.service.step()
    assert bench.port.closed

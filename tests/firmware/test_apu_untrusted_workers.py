"""What the APU does about workers that lie, take too long or die, with the test in their place."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest

from csd_spec.descriptors import LogEntryType
from potash_firmware.apu import channel
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import ByteRange, Subsystem
from potash_firmware.apu.orders import Exited
from potash_firmware.apu.pool import Worker
from potash_firmware.mailbox.messages import ToRpu
from support.apu import CONFIG

NOT_GRANTED = channel.Gathered((ByteRange(1, 0, 4096),))
TOO_LONG = channel.Returned(0, CONFIG.accelerators[0].output_size + 1, 1)


@pytest.mark.parametrize("lie", [NOT_GRANTED, TOO_LONG])
def test_a_worker_that_lies_is_ended_and_nothing_is_written(lie: channel.FromWorker) -> None:
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(1, 0, mine)
    pool: Any = Graveyard(worker)
    sent: list[ToRpu] = []
    jobs = Jobs(CONFIG, {0: accelerator}, pool, sent.append)
    with mine, its:
        jobs.start(accelerator, b"", b"")
        its.send(channel.encode(lie))
        jobs.crew.listen(worker)
    assert pool.killed == [worker] and not sent


def test_a_worker_is_replaced_before_the_kernel_ends_it() -> None:
    """It may have the processor for twice the longest job; `seconds` is one longest job."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(1, 0, mine)
    pool: Any = Graveyard(worker)
    clock = [0.0]
    jobs = Jobs(CONFIG, {0: accelerator}, pool, lambda _: None, lambda: clock[0])
    with mine, its:
        for took, replaced in ((0.6, False), (0.6, True)):
            jobs.start(accelerator, b"", b"")
            clock[0] += took * CONFIG.limits.seconds
            its.send(channel.encode(channel.Returned(0, 0, 1)))
            jobs.crew.listen(worker)
            assert bool(pool.killed) is replaced


def test_a_worker_s_death_is_its_end_though_another_holds_its_channel() -> None:
    """As one that a worker had forked would, where no filter forbids that."""
    accelerator = Subsystem.create(CONFIG, lambda: 0.0).accelerators[0]
    mine, held = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = Worker(1, 0, mine)
    pool: Any = Graveyard(worker)
    jobs = Jobs(CONFIG, {0: accelerator}, pool, lambda _: None)
    jobs.prepare()
    with held:
        held.send(channel.encode(channel.Line(LogEntryType.PROGRAM_OUTPUT, "last words")))
        jobs.crew.gone(worker.serial, "it exited with status 1")
    assert [entry.text for entry in accelerator.log.page().entries] == ["last words"]
    assert not jobs.crew.workers


class Graveyard:
    """A pool with one worker, which is dead."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.killed: list[Worker] = []

    def kill(self, worker: Worker) -> None:
        self.killed.append(worker)

    def spawn(self, accelerator: int) -> Worker:
        return self._worker

    def exits(self) -> list[Exited]:
        return [Exited(1, -signal.SIGKILL)]

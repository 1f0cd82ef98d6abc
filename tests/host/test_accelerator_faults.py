"""Processes of the accelerators die at random moments under jobs, in a whole device.

Each job fills its output with a 64-bit word of its own and has it written to blocks. Whatever dies
meanwhile, the job ends, done or failed; its blocks hold all of the new words or all of the old
ones, and the new ones if it is done; and the drive answers reads and writes all the time.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

import potash.sdk
from csd_spec.status import StatusId
from potash.sdk import Accelerator, CommandFailed, Device
from potash.vm.drive import device_process
from support.apu import program
from support.bpf import exit_, insn, load, mov, mov_reg, store
from support.processes import GONE, descendants

ACCELERATORS = 4
PAGE = 4096
PAGES = 16
SCRATCH = 2048

LIMIT = 60.0
"""Seconds for an application processor that was killed to be back."""

FILL = program(
    load(6, 1),  # the word
    load(7, 1, 8),  # how often to fill the output with it
    mov_reg(8, 2),
    mov_reg(9, 2),
    insn(0x0F, 9, 4),  # r9 += r4: the output's end
    store(8, 6),
    insn(0x07, 8, imm=8),
    insn(0xAD, 8, 9, offset=-3),  # if r8 < r9
    insn(0x07, 7, imm=-1),
    insn(0x55, 7, offset=-8),  # if r7 != 0
    mov(0, 0),
    exit_,
)
ROUNDS = 2000
"""Some tens of milliseconds."""

T = TypeVar("T")


class Drive:
    """The device, its processes, and what the accelerators' blocks hold."""

    def __init__(self, device: Device, pid: int) -> None:
        self.device = device
        self.pid = pid
        self.random = random.Random()
        self.accelerators = device.accelerators()
        self.words = [0] * ACCELERATORS
        self.ends: list[int] = []

    def prepare(self) -> None:
        """Firmware and blocks for each accelerator."""
        sizes = [(one.id, one.input_size, one.output_size) for one in self.accelerators]
        assert sizes == [(key, 256 * 1024, 256 * 1024) for key in range(ACCELERATORS)]
        self.accelerators[0].enable()
        for accelerator in self.accelerators:
            accelerator.send_firmware(FILL)
            accelerator.use_local_output(self.first(accelerator), PAGES)

    @staticmethod
    def first(accelerator: Accelerator) -> int:
        return accelerator.id * PAGES

    def processes(self, name: str) -> list[int]:
        """A pidfd for each process of the device that is called so."""
        found = []
        for pid in descendants(self.pid):
            with suppress(*GONE):
                pidfd = os.pidfd_open(pid)
                if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                    found.append(pidfd)
                else:
                    os.close(pidfd)
        return found

    def kill_one(self, name: str) -> bool:
        """Kill one of those processes; False when there is none just now."""
        found = self.processes(name)
        try:
            if found:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.random.choice(found), signal.SIGKILL)
            return bool(found)
        finally:
            for pidfd in found:
                os.close(pidfd)

    def round(self, victim: str) -> None:
        """Jobs on all accelerators, a death among them, and what has become of them."""
        words = [self.random.getrandbits(64) for _ in self.accelerators]
        begun = [self.start(*pair) for pair in zip(self.accelerators, words, strict=True)]
        time.sleep(self.random.uniform(0, 0.08))
        deadline = time.monotonic() + LIMIT
        while not self.kill_one(victim):  # one that has died just now is not replaced yet
            assert time.monotonic() < deadline, f"there is no {victim}"
            self.use()
        self.use()
        for accelerator, word, known in zip(self.accelerators, words, begun, strict=True):
            end = self.end(accelerator)
            self.ends.append(end)
            there = self.content(accelerator)
            if end == StatusId.DONE and known:
                assert there == word
            else:
                assert there in (word, self.words[accelerator.id])
            self.words[accelerator.id] = there

    def start(self, accelerator: Accelerator, word: int) -> bool:
        """Start a job; False when the processor was lost before it said whether it has begun."""
        data = struct.pack("<QQ", word, self.random.randrange(1, ROUNDS))
        self.persist(lambda: accelerator.write_input(data))
        try:
            accelerator.start(0)
        except CommandFailed as error:
            assert not error.dnr, error
            return False
        return True

    def end(self, accelerator: Accelerator) -> int:
        deadline = time.monotonic() + LIMIT
        while (status := self.persist(accelerator.status)).status == StatusId.RUNNING:
            assert time.monotonic() < deadline, f"accelerator {accelerator.id} never ends"
            time.sleep(0.001)
        assert status.status in (StatusId.DONE, StatusId.FAILED)
        return status.status

    def content(self, accelerator: Accelerator) -> int:
        """The word that fills the accelerator's blocks."""
        data = self.device.read(self.first(accelerator), PAGES)
        words = set(struct.unpack(f"<{len(data) // 8}Q", data))
        assert len(words) == 1, f"the blocks of accelerator {accelerator.id} are torn"
        return int(words.pop())

    def use(self) -> None:
        """The drive is a drive all the time."""
        data = self.random.randbytes(2 * PAGE)
        where = SCRATCH + self.random.randrange(64)
        self.device.write(where, data)
        assert self.device.read(where, 2) == data

    def persist(self, call: Callable[[], T]) -> T:
        """What a command gives, again and again while the device says that it may be repeated."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                return call()
            except CommandFailed as error:
                assert not error.dnr, error
                assert time.monotonic() < deadline, "the application processor does not come back"
                time.sleep(0.005)


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    socket = tmp_path_factory.mktemp("device") / "s"
    options = ["--size", "64M", "--log-level", "error", *["--accelerator=256K"] * ACCELERATORS]
    with (
        device_process(socket, *options) as process,
        potash.sdk.open(f"vfio-user:{socket}") as device,
    ):
        made = Drive(device, process.pid)
        made.prepare()
        yield made
        # Whatever has died, the same configuration runs one more job on each. The last job of a
        # worker may have ended before it was killed; the next one can be sent to it before its
        # death is noticed, and fails.
        failed = 0
        for accelerator in made.accelerators:
            assert made.start(accelerator, 0x0102_0304_0506_0708)
            if made.end(accelerator) == StatusId.FAILED:
                failed += 1
                assert made.start(accelerator, 0x0102_0304_0506_0708)
                assert made.end(accelerator) == StatusId.DONE
            assert made.content(accelerator) == 0x0102_0304_0506_0708
        assert failed <= 1


def test_workers_that_die_under_jobs_tear_nothing(drive: Drive) -> None:
    for _ in range(15):
        drive.round("potash-worker")
    assert StatusId.DONE in drive.ends


def test_an_apu_that_dies_under_jobs_tears_nothing(drive: Drive) -> None:
    for victim in ("potash-apu", "potash-fork-srv", "potash-apu"):
        drive.round(victim)


@pytest.mark.slow
def test_a_thousand_workers_and_a_hundred_apus_die(drive: Drive) -> None:
    for number in range(1100):
        drive.round("potash-apu" if number % 11 == 10 else "potash-worker")
    assert {StatusId.DONE, StatusId.FAILED} == set(drive.ends)

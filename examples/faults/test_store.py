"""How a firmware or driver engineer tests what a host does when its drive fails.

`Store` stands for whatever you test: it keeps one record on the drive, tries again where that is
worth it, and moves to spare blocks where it is not. Run this with `pytest examples/faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nvme_spec.logs import LogPage, SmartLog
from potash.sdk import CommandFailed, CommandTimeout, Device, DeviceGone, JobFailed
from potash.testing import BootedDevice
from potash.vm.guest import Guest

ADD = Path(__file__).parents[1] / "add"


class Store:
    """One record of a block, in the first place of `PLACES` that takes it."""

    PLACES = (0, 8, 16)
    TRIES = 3

    def __init__(self, device: Device) -> None:
        self.device = device
        self.place = self.PLACES[0]

    def save(self, record: bytes) -> None:
        block = record.ljust(self.device.block_size, b"\0")
        for place in self.PLACES:
            if self._try(partial(self.device.write, place, block)):
                self.device.flush()
                self.place = place
                return
        raise RuntimeError("the drive takes the record nowhere")

    def load(self) -> bytes:
        found: list[bytes] = []
        if not self._try(lambda: found.append(self.device.read(self.place, 1))):
            raise RuntimeError("the record cannot be read")
        return found[0].rstrip(b"\0")

    def _try(self, action: Callable[[], None]) -> bool:
        for _ in range(self.TRIES):
            try:
                action()
                return True
            except CommandTimeout:
                continue  # the SDK has reset the controller
            except CommandFailed as error:
                if error.dnr:
                    return False
        return False


def test_without_faults_a_record_comes_back(potash_device: BootedDevice) -> None:
    store = Store(potash_device)
    store.save(b"as it was")
    assert (store.load(), store.place) == (b"as it was", 0)


@pytest.mark.potash(faults=["io write status=COMMAND_INTERRUPTED count=2"])
def test_what_may_be_tried_again_is(potash_device: BootedDevice) -> None:
    store = Store(potash_device)
    store.save(b"at the third try")
    assert store.place == 0
    assert [fault.triggered for fault in potash_device.faults()] == [2]


@pytest.mark.potash(faults=["media write lba=0..7"])
def test_a_record_moves_away_from_bad_blocks(potash_device: BootedDevice) -> None:
    store = Store(potash_device)
    store.save(b"elsewhere")
    assert (store.load(), store.place) == (b"elsewhere", 8)
    # The drive has counted it, as one with bad flash does.
    page = potash_device.log_page(LogPage.SMART, SmartLog.SIZE, nsid=0xFFFF_FFFF)
    assert SmartLog(page).media_errors == 1


@pytest.mark.potash(timeout=0.2)
def test_a_command_that_is_lost_is_sent_again(potash_device: BootedDevice) -> None:
    store = Store(potash_device)
    store.save(b"kept")
    potash_device.add_fault("io read lost count=1")
    assert store.load() == b"kept"
    potash_device.add_fault("interrupt vector=1 count=1")
    assert store.load() == b"kept"


def test_a_record_outlives_the_drive_that_took_it(
    potash_device_factory: Callable[..., BootedDevice], tmp_path: Path
) -> None:
    first = potash_device_factory(size="16M", media=tmp_path / "media")
    Store(first).save(b"flushed")
    first.kill()
    with pytest.raises(DeviceGone):
        first.flush()
    second = potash_device_factory(media=tmp_path / "media")
    assert Store(second).load() == b"flushed"


@pytest.mark.potash(accelerators=["1M:64K"], faults=["apu at=job"])
def test_a_job_whose_processor_dies_fails_and_the_next_one_runs(
    potash_device: BootedDevice,
) -> None:
    (accelerator,) = potash_device.accelerators()
    job = ((ADD / "program.o").read_bytes(), (ADD / "input.bin").read_bytes())
    with pytest.raises(JobFailed):
        accelerator.run(*job, args=[520, 1024], timeout=30)
    for _ in range(1000):
        try:
            result = accelerator.run(*job, args=[520, 1024], timeout=30)
            break
        except CommandFailed as error:  # another processor is being started
            assert not error.dnr
    assert result.output == (ADD / "expected.bin").read_bytes()


@pytest.mark.potash(faults=["media read lba=100"])
def test_linux_tells_the_program_that_reads(potash_guest: Guest) -> None:
    read = ["dd", "if=/dev/nvme0n1", "of=/dev/null", "bs=4096", "count=1", "iflag=direct"]
    assert potash_guest.capture([*read, "skip=99"]).code == 0
    assert potash_guest.capture([*read, "skip=100"]).code == 1
    assert b"critical medium error" in potash_guest.capture(["dmesg"]).stdout

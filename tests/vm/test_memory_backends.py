"""A guest whose memory the device cannot map: a drive that works, by DMA_READ and DMA_WRITE."""

from __future__ import annotations

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from potash.vm.qemu import Memory

FIO = [
    "fio", "--filename=/dev/nvme0n1", "--direct=1", "--ioengine=io_uring", "--verify=crc32c",
    "--verify_fatal=1", "--verify_state_save=0",
]  # fmt: skip
JOBS = [
    ["--name=small", "--rw=randrw", "--bs=4k", "--iodepth=32", "--size=4M"],
    ["--name=large", "--rw=write", "--bs=384k", "--iodepth=4", "--size=6M", "--offset=8M"],
    ["--name=odd", "--rw=randwrite", "--bsrange=4k-128k", "--iodepth=8", "--size=3M",
     "--offset=24M"],
]  # fmt: skip
RESETS = "for n in 1 2 3; do sleep 0.3; nvme reset /dev/nvme0 || exit 1; done"


def said(guest: Guest, *argv: str) -> str:
    done = guest.capture(argv, timeout=120.0)
    assert done.code == 0, (argv, done)
    return done.stdout.decode()


@pytest.mark.parametrize("backend", [one for one in Memory if one is not Memory.MEMFD])
def test_a_drive_works_with_any_memory(
    images: GuestImages, capfd: pytest.CaptureFixture[str], backend: Memory
) -> None:
    with (
        serving("--size", "64M", verbose=True) as socket,
        Guest(images, socket, backend=backend) as guest,
    ):
        said(guest, *FIO, *JOBS[0])
        if backend is Memory.PRIVATE:  # behind the refusal of a mapping all are alike
            for job in JOBS[1:]:
                said(guest, *FIO, *job)
            load = guest.start([*FIO, *JOBS[0], "--loops=20", "--time_based", "--runtime=2"])
            said(guest, "sh", "-c", RESETS)
            assert load.wait(60.0) == 0
        errors = said(guest, "sh", "-c", "dmesg | grep -iE 'nvme.*(timeout|abort|error)' || true")
        assert errors == ""
        # Where doorbells cannot be polled Linux is not to be offered it.
        assert "dbbuf" not in said(guest, "dmesg")
    assert capfd.readouterr().err.count("is reached by messages") == 1

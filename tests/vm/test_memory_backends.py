"""A guest whose memory the device cannot map: a drive that works, by DMA_READ and DMA_WRITE."""

from __future__ import annotations

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from potash.vm.qemu import Memory
from support.vm import said

FIO = [
    "fio", "--filename=/dev/nvme0n1", "--direct=1", "--ioengine=io_uring", "--verify=crc32c",
    "--verify_fatal=1", "--verify_state_save=0",
]  # fmt: skip
SMALL = ["--rw=randrw", "--bs=4k", "--iodepth=32", "--size=1M"]
JOBS = [
    "--name=small", *SMALL,
    "--name=large", "--stonewall", "--rw=write", "--bs=384k", "--iodepth=4", "--size=3M",
    "--offset=8M",
    "--name=odd", "--stonewall", "--rw=randwrite", "--bsrange=4k-128k", "--iodepth=8", "--size=1M",
    "--offset=24M",
]  # fmt: skip
COPY = """
head -c 1048576 /dev/urandom > /tmp/data
dd if=/tmp/data of=/dev/nvme0n1 bs=256k oflag=direct 2>/dev/null
dd if=/dev/nvme0n1 bs=4k count=256 iflag=direct 2>/dev/null | cmp - /tmp/data
"""
RESETS = "for n in 1 2 3; do sleep 0.2; nvme reset /dev/nvme0 || exit 1; done"


def test_a_drive_works_with_any_memory(
    images: GuestImages, capfd: pytest.CaptureFixture[str]
) -> None:
    """One guest after the other has it. Behind the refusal of a mapping all are alike, so that the
    last one alone has much to do."""
    with serving("--size", "64M", verbose=True) as socket:
        for backend in Memory:
            if backend is Memory.MEMFD:
                continue
            with Guest(images, socket, backend=backend) as guest:
                if backend is Memory.PRIVATE:
                    said(guest, *FIO, *JOBS)
                    again = ["--name=again", *SMALL, "--loops=20", "--time_based", "--runtime=1"]
                    load = guest.start([*FIO, *again])
                    said(guest, "sh", "-c", RESETS)
                    assert load.wait(60.0) == 0
                else:
                    said(guest, "sh", "-c", COPY)
                complaints = "dmesg | grep -iE 'nvme.*(timeout|abort|error)' || true"
                assert said(guest, "sh", "-c", complaints) == ""
                # Where doorbells cannot be polled Linux is not to be offered it.
                assert "dbbuf" not in said(guest, "dmesg")
            assert capfd.readouterr().err.count("is reached by messages") == 1
    assert backend is Memory.PRIVATE

"""What Linux does with a controller memory buffer: submission queues and peer-to-peer memory.

Debian's stable kernels are built without PCI peer-to-peer DMA, and so take no notice of the buffer;
this downloads that of the backports. Run it with

    pytest -m slow tests/vm/test_cmb_linux.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from potash.vm.packages import BACKPORTS, Closure
from support.guest_packages import kernel, unpacked

pytestmark = pytest.mark.slow

SIZE = 4 << 20
NEWER = Closure("a newer Linux", BACKPORTS, ("linux-image-cloud-amd64",), ("./usr/share/doc",))

PEER_TO_PEER = """
import mmap, os, sys
from pathlib import Path
device = Path("/sys/class/nvme/nvme0/device")
with open(device / "p2pmem/allocate", "r+b") as file:
    memory = mmap.mmap(file.fileno(), 1 << 20)
drive = os.open("/dev/nvme0n1", os.O_RDWR | os.O_DIRECT)
memory[:] = content = os.urandom(1 << 20)
assert os.pwritev(drive, [memory], 1 << 20) == 1 << 20
memory[:] = bytes(1 << 20)
assert os.preadv(drive, [memory], 1 << 20) == 1 << 20
assert memory[:] == content
plain = mmap.mmap(-1, 1 << 20)
os.preadv(drive, [plain], 1 << 20)
assert plain[:] == content
"""
"""Direct I/O from and to memory of the drive, which the kernel hands to a program."""


@pytest.fixture(scope="module")
def linux(images: GuestImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    (packed,) = unpacked(images, NEWER).glob("usr/lib/modules/*/vmlinuz")
    newer = kernel(images, packed, tmp_path_factory.mktemp("newer"))
    options = ("--size", "64M", "--cmb", str(SIZE))
    with serving(*options) as socket, Guest(replace(images, kernel=newer), socket) as guest:
        guest.await_drive("/dev/nvme0n1")
        yield guest


def sh(guest: Guest, script: str) -> str:
    done = guest.capture(["sh", "-c", script])
    assert done.code == 0, (script, done)
    return done.stdout.decode().strip()


def test_linux_has_its_submission_queues_there(linux: Guest) -> None:
    assert "failed to register the CMB" not in sh(linux, "dmesg")
    memory = "/sys/class/nvme/nvme0/device/p2pmem"
    assert sh(linux, f"cat {memory}/size {memory}/published").split() == [str(SIZE), "1"]
    # A queue of 1023 entries of 64 bytes, for its one processor.
    assert int(sh(linux, f"cat {memory}/available")) <= SIZE - (1 << 16)
    sh(linux, "dd if=/dev/urandom of=/tmp/blocks bs=1M count=4")
    sh(linux, "dd if=/tmp/blocks of=/dev/nvme0n1 bs=64K oflag=direct")
    sh(linux, "dd if=/dev/nvme0n1 bs=64K count=64 iflag=direct | cmp - /tmp/blocks")


def test_data_may_be_there(linux: Guest) -> None:
    done = linux.capture(["python3", "-c", PEER_TO_PEER])
    assert done.code == 0, done


def test_it_is_there_again_after_a_reset(linux: Guest) -> None:
    sh(linux, "nvme reset /dev/nvme0")
    test_linux_has_its_submission_queues_there(linux)

"""File systems made for zones: written, crashed, checked.

The guest's Linux has such file systems as modules only, which `potash guest` leaves out; this
downloads them, and the tools for Btrfs. Run it with

    pytest -m slow tests/vm/test_zoned_file_system.py
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from potash.testing import booted_device
from potash.vm.drive import device_process
from potash.vm.errors import GuestTimeout
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.guest_packages import SETUP, with_packages

pytestmark = pytest.mark.slow

DRIVE = ["--zoned-namespace", "1G:16M"]
TOOLS = ("usr/bin/btrfs", "usr/sbin/mkfs.btrfs")
WRITE = """
mkdir /mnt/zoned
mount -t btrfs /dev/nvme0n1 /mnt/zoned
for each in 1 2 3 4 5 6 7 8; do
    head -c 4194304 /dev/urandom > /mnt/zoned/kept$each
    rm -f /mnt/zoned/kept$((each - 3))
done
(cd /mnt/zoned && sha256sum kept*) > /tmp/sums
cp /tmp/sums /mnt/zoned/sums
sync
(while true; do head -c 1048576 /dev/urandom >> /mnt/zoned/unfinished; done) > /dev/null 2>&1 &
sleep 2
cat /tmp/sums
"""


def test_files_of_zonefs_are_zones(images: GuestImages, tmp_path: Path) -> None:
    """Each zone behind the first is a file that is appended to, with the write pointer as its
    size."""
    images = with_packages(images, tmp_path, "zonefs", ())
    media, socket = tmp_path / "drive", tmp_path / "socket"
    with booted_device(media=media, options=DRIVE) as device:
        device.write(0, zonefs_superblock())
    mount = "mkdir /mnt/zones && mount -t zonefs /dev/nvme0n1 /mnt/zones && cd /mnt/zones/seq"
    append = "dd if=/tmp/data bs=65536 oflag=direct,append conv=notrunc"
    with (
        suppress(GuestTimeout),
        device_process(socket, "--media", str(media), *DRIVE) as process,
        Guest(images, socket) as guest,
    ):
        sh(guest, f"{SETUP}; {mount}; ls | wc -l | grep -w 63")
        sh(guest, "head -c 1048576 /dev/urandom > /tmp/data")
        sh(
            guest,
            f"cd /mnt/zones/seq; {append} of=0; {append} of=5; {append} of=5; truncate -s 0 0",
        )
        sums = sh(guest, "cd /mnt/zones/seq; sync 5; sha256sum 5; stat -c %s 0 5")
        process.kill()
        process.wait()
    assert sums.split()[2:] == ["0", "2097152"]
    with device_process(socket, "--media", str(media), *DRIVE), Guest(images, socket) as guest:
        assert sh(guest, f"{SETUP}; {mount}; sha256sum 5; stat -c %s 0 5") == sums


def zonefs_superblock() -> bytes:
    """An empty file system, as `zonefs_super` of Linux's fs/zonefs/zonefs.h has it."""
    block = struct.pack("<II64s16sQIII", 0x5A4F4653, 0, b"", bytes(range(16)), 0, 0, 0, 0)
    block = block.ljust(4096, b"\0")
    return block[:4] + struct.pack("<I", zlib.crc32(block) ^ 0xFFFF_FFFF) + block[8:]


def test_btrfs_on_zones_outlives_a_kill(images: GuestImages, tmp_path: Path) -> None:
    images = with_packages(images, tmp_path, "btrfs", TOOLS)
    media, socket = tmp_path / "drive", tmp_path / "socket"

    with (
        suppress(GuestTimeout),  # it cannot write any more what it holds for the drive
        device_process(socket, "--media", str(media), *DRIVE) as process,
        Guest(images, socket) as guest,
    ):
        sh(guest, SETUP)
        sh(guest, "mkfs.btrfs -q -O zoned -d single -m single /dev/nvme0n1")
        sums = sh(guest, WRITE)
        process.kill()
        process.wait()
    assert len(sums.splitlines()) == 3

    with device_process(socket, "--media", str(media), *DRIVE), Guest(images, socket) as guest:
        sh(guest, SETUP)
        sh(guest, "btrfs check --readonly /dev/nvme0n1")
        sh(guest, "mkdir /mnt/zoned && mount -t btrfs /dev/nvme0n1 /mnt/zoned")
        assert sh(guest, "cd /mnt/zoned && cat sums && sha256sum -c sums").startswith(sums)
        assert "no errors found" in sh(guest, "btrfs scrub start -B /mnt/zoned")
        sh(guest, "head -c 1048576 /dev/urandom > /mnt/zoned/more && sync && umount /mnt/zoned")


def sh(guest: Guest, script: str) -> str:
    guest.await_drive("/dev/nvme0n1")
    done = guest.capture(["sh", "-e", "-c", script])
    assert done.code == 0, (script, done)
    return done.stdout.decode()

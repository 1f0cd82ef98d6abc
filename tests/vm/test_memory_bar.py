"""A memory namespace that programs of the guest map: what commands and jobs write is there."""

from __future__ import annotations

import random

import pytest

from potash.vm.guest import Guest

SIZE = 4 << 20
MAPPING = """
import mmap, sys
from pathlib import Path
(device,) = Path("/sys/bus/pci/drivers/nvme").glob("0000:*")
with open(device / "resource4", "r+b") as file:
    bar = mmap.mmap(file.fileno(), 0)
assert len(bar) == int(sys.argv[1])
"""
"""`bar` is the memory in the programs that follow."""


def test_memory_that_is_mapped_is_that_of_the_commands(linux: Guest) -> None:
    if linux.more:
        pytest.skip("only a drive with one controller has memory in a BAR")

    def sh(script: str, given: bytes | None = None) -> bytes:
        done = linux.capture(["sh", "-c", script], given)
        assert done.code == 0, (script, done)
        return done.stdout

    def python(code: str, given: bytes | None = None) -> bytes:
        done = linux.capture(["python3", "-c", MAPPING + code, str(SIZE)], given)
        assert done.code == 0, (code, done)
        return done.stdout

    content = random.Random(1).randbytes(1 << 16)
    page = sh("nvme get-log /dev/nvme0 -i 0x85 -l 32 -b --csi=3")
    assert page.hex() == "0100" + 28 * "0" + "02000000" + "01" + "000000" + 16 * "0"
    # The host's writes are read by Memory Read, and summed by a program of the drive.
    python("bar[4096:4096 + 65536] = sys.stdin.buffer.read()", content)
    sh("potash slm read /dev/nvme0n1 /tmp/read --offset 4K --data-len 64K")
    assert sh("cat /tmp/read") == content
    summed = sh("potash cp execute /dev/nvme0n1 --index 2 --range 4K:64K")
    sh("dd if=/dev/stdin of=/dev/nvme0n1 bs=65536 iflag=fullblock", content)
    sh("potash slm copy /dev/nvme0n1 --blocks 0:16 --offset 1M")
    assert summed == sh("potash cp execute /dev/nvme0n1 --index 2 --range 1M:64K")
    # What Memory Copy and a program write is read without a command.
    assert python("sys.stdout.buffer.write(bar[1 << 20:(1 << 20) + 65536])") == content
    sh("potash cp execute /dev/nvme0n1 --index 0 --range 4K:64K --range 2M:64K")
    assert python("sys.stdout.buffer.write(bar[2 << 20:(2 << 20) + 65536])") == content
    sh("potash slm fill /dev/nvme0n1 --offset 1M --data-len 4K")
    assert python("sys.stdout.buffer.write(bar[1 << 20:(1 << 20) + 4096])") == bytes(4096)

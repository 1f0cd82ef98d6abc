"""A whole drive with zones: what a kill leaves of them, and programs that read them."""

import struct
from pathlib import Path

import pytest

from potash.sdk import CommandFailed
from potash.testing import booted_device
from support.checksums import crc32c_bitwise as crc32c
from support.docs import ROOT

BLOCK = 4096


def test_write_pointers_outlive_a_kill(tmp_path: Path) -> None:
    media = tmp_path / "drive"
    options = ["--zoned-namespace", "4M:1M"]
    with booted_device(media=media, options=options) as device:
        for lba in range(5):
            device.write(lba, bytes([lba + 1]) * BLOCK)
        device.kill()
    with booted_device(media=media, options=options) as device:
        assert [device.read(lba, 1)[0] for lba in range(6)] == [1, 2, 3, 4, 5, 0]
        with pytest.raises(CommandFailed, match="Zone Invalid Write"):
            device.write(4, bytes(BLOCK))
        device.write(5, b"\6" * BLOCK)
        assert device.read(5, 1) == b"\6" * BLOCK


CHECKSUM = ROOT / "examples/checksum/program.o"


def test_programs_read_zones_and_have_no_output_there(tmp_path: Path) -> None:
    data = bytes(range(256)) * 48  # three blocks, of which the last is behind the write pointer
    with booted_device(media=tmp_path / "drive", options=["--zoned-namespace", "4M:1M"]) as device:
        device.write(0, data[: 2 * BLOCK])
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(CHECKSUM.read_bytes())
        accelerator.use_local_input(0, 3)
        accelerator.start(0, [3 * BLOCK])
        accelerator.wait(timeout=60)
        sums = struct.unpack("<4I", accelerator.read_output(16))
        pages = (data[:BLOCK], data[BLOCK : 2 * BLOCK], bytes(BLOCK))
        assert sums == (crc32c(b"".join(pages)), *map(crc32c, pages))

        with pytest.raises(CommandFailed, match="Invalid Opcode"):
            accelerator.use_local_output(256, 1)

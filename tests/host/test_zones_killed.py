"""A drive with zones that is killed: nothing that was acknowledged lies behind a write pointer."""

from pathlib import Path

import pytest

from potash.sdk import CommandFailed
from potash.testing import booted_device

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

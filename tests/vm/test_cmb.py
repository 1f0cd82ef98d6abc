"""The controller memory buffer in a guest: a BAR that QEMU maps, and a driver that uses it."""

from __future__ import annotations

import json
import random
from pathlib import Path

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages

DRIVER = Path(__file__).with_name("bar_driver.py")
MIB = 1 << 20
BLOCKS = 512


def test_a_driver_that_has_no_other_memory(images: GuestImages) -> None:
    """Queues, lists and data are in the buffer; then Linux finds the blocks on the drive."""
    with serving("--size", "64M", "--cmb", "4M") as socket, Guest(images, socket) as guest:
        guest.await_drive("/dev/nvme0n1")
        # QEMU has mapped the BAR: the guest's accesses are no messages.
        assert "potash-media" in Path(f"/proc/{guest.machine.pid}/maps").read_text()
        guest.copy_in(DRIVER, "/share/bar_driver.py")
        done = guest.capture(["python3", "/share/bar_driver.py", str(BLOCKS)])
        assert done.code == 0, done
        found = json.loads(done.stdout)
        assert found == {
            "cmbloc": 7 << 5 | 2,
            "cmbsz": 4 * MIB // 4096 << 12 | 0x1F,
            "cmbsts": 0,
            "serial": "POTASH0001",
            "misuse": 0x12,
        }
        guest.await_drive("/dev/nvme0n1")
        read = guest.capture(["dd", "if=/dev/nvme0n1", "bs=4096", f"count={BLOCKS}"])
        assert read.stdout == random.Random(1).randbytes(8 * 4096) * (BLOCKS // 8)

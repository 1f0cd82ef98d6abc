"""The PCI device of docs/vfio-user.md in a guest: Linux finds it, and what QEMU maps is shared."""

from __future__ import annotations

from pathlib import Path

from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.docs import blocks, running
from support.vfio_user import socket_path

DRIVER = """
import mmap, time
from pathlib import Path

found = []
while not found:
    time.sleep(0.01)
    found = [
        one.parent
        for one in Path("/sys/bus/pci/devices").glob("*/uevent")
        if "PCI_ID=1234:0ADD" in one.read_text() and (one.parent / "resource2").exists()
    ]
(device,) = found
(device / "enable").write_text("1")
files = [(device / f"resource{bar}").open("r+b") for bar in (0, 2)]
maps = [mmap.mmap(file.fileno(), 0) for file in files]
registers, numbers = (memoryview(one).cast("I") for one in maps)
for at in range(1000):
    numbers[at] = at
registers[0] = 1000
print(registers[2], len(numbers))
"""


def test_linux_finds_the_device_and_shares_its_memory(images: GuestImages, tmp_path: Path) -> None:
    device = blocks("vfio-user.md", "python")[2]
    path = socket_path(tmp_path)
    with running(device.replace("/tmp/adder.sock", str(path)), str(path)), Guest(images) as guest:
        guest.plug_socket(path)
        done = guest.capture(["python3", "-c", DRIVER], timeout=60)
        assert "vfio-user memory" in Path(f"/proc/{guest.machine.pid}/maps").read_text()
        assert done.stdout == b"499500 16384\n", done

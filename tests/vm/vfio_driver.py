"""An NVMe driver in user space over vfio-pci, as SPDK's is, run in the guest by `test_iommu.py`.

Its memory is pages of this process, which the guest's IOMMU puts side by side from IOVA on. It
writes blocks, reads them back, takes the memory away and gives it again. Numbers are those of
Linux, `include/uapi/linux/vfio.h`. Usage: vfio_driver.py PCI_FUNCTION BLOCKS.
"""

import ctypes
import fcntl
import mmap
import os
import random
import struct
import sys
from pathlib import Path

from vm.bar_driver import DATA, ENTRIES, IO_CQ, IO_SQ, PAGE, Drive, move

SET_IOMMU, SET_CONTAINER, GET_DEVICE, GET_REGION, MAP, UNMAP = (
    0x3B64 + number for number in (2, 4, 6, 8, 13, 14)
)
TYPE1_V2 = 3
BAR0, CONFIG = 0, 7
IOVA, SIZE = 0x1_0000_0000, 2 << 20


class VfioDrive(Drive):
    def __init__(self, function: str) -> None:
        group = (Path("/sys/bus/pci/devices") / function / "iommu_group").resolve().name
        self.container = os.open("/dev/vfio/vfio", os.O_RDWR)
        opened = os.open(f"/dev/vfio/{group}", os.O_RDWR)
        fcntl.ioctl(opened, SET_CONTAINER, struct.pack("i", self.container))
        fcntl.ioctl(self.container, SET_IOMMU, TYPE1_V2)
        self.device = fcntl.ioctl(opened, GET_DEVICE, bytearray(function.encode() + b"\0"))
        os.pwrite(self.device, b"\x06\x04", self.region(CONFIG)[1] + 4)
        size, offset = self.region(BAR0)
        self.registers = memoryview(mmap.mmap(self.device, size, offset=offset)).cast("I")
        self.cmb = memoryview(mmap.mmap(-1, SIZE))
        self.address = IOVA
        self.map()
        self.tails, self.heads, self.phases = [0, 0], [0, 0], [1, 1]

    def region(self, index: int) -> tuple[int, int]:
        """Its size, and its offset in the device's file."""
        info = bytearray(struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0))
        fcntl.ioctl(self.device, GET_REGION, info)
        size, offset = struct.unpack_from("<QQ", info, 16)
        return int(size), int(offset)

    def map(self) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.cmb))
        fcntl.ioctl(self.container, MAP, struct.pack("<IIQQQ", 32, 3, address, IOVA, SIZE))

    def unmap(self) -> None:
        fcntl.ioctl(self.container, UNMAP, bytearray(struct.pack("<IIQQ", 24, 0, IOVA, SIZE)))


def main(function: str, blocks: int) -> None:
    drive = VfioDrive(function)
    content = random.Random(1).randbytes(8 * PAGE)
    source, target = DATA, DATA + 8 * PAGE
    for _ in range(2):
        drive.tails, drive.heads, drive.phases = [0, 0], [0, 0], [1, 1]
        drive.enable()
        size = (ENTRIES - 1) << 16 | 1
        assert drive.command(0, 0x05, IO_CQ, 0, size, 1) == 0
        assert drive.command(0, 0x01, IO_SQ, 0, size, 1 << 16 | 1) == 0
        for block in range(0, blocks, 8):
            drive.cmb[source:target] = content
            assert move(drive, 1, source, block) == 0
            drive.cmb[source:target] = bytes(8 * PAGE)
            assert move(drive, 2, target, block) == 0
            assert drive.cmb[target : target + 8 * PAGE] == content, block
        drive.registers[0x14 // 4] = 0
        drive.wait(0)
        drive.unmap()
        drive.map()
    print("written and read")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

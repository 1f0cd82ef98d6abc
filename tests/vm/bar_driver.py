"""An NVMe driver in user space that has no memory but the controller memory buffer, run in the
guest by `test_cmb.py`.

It takes the drive from Linux, maps BAR 0 and BAR 2, keeps all queues, lists and data in the buffer,
writes blocks, reads them back, and gives the drive back. Offsets are those of the NVM Express Base
Specification 2.0. Usage: bar_driver.py BLOCKS, which prints what it has found as JSON.
"""

import json
import mmap
import os
import random
import struct
import sys
import time
from pathlib import Path

PAGE = 4096
ENTRIES = 64
ADMIN_SQ, ADMIN_CQ, IO_SQ, IO_CQ, LIST, DATA = 0, 0x1000, 0x2000, 0x3000, 0x4000, 0x1_0000


class Drive:
    def __init__(self, device: Path) -> None:
        config = os.open(device / "config", os.O_RDWR)
        os.pwrite(config, b"\x06\x04", 4)  # memory space, bus master, no INTx
        os.close(config)
        resource = (device / "resource").read_text().split("\n")[2]
        self.address = int(resource.split()[0], 16)
        self.registers = self._map(device / "resource0").cast("I")
        self.cmb = self._map(device / "resource2")
        self.tails, self.heads, self.phases = [0, 0], [0, 0], [1, 1]

    def _map(self, path: Path) -> memoryview:
        with path.open("r+b") as file:
            return memoryview(mmap.mmap(file.fileno(), 0))

    def wait(self, ready: int) -> None:
        until = time.monotonic() + 30
        while self.registers[0x1C // 4] & 1 != ready:
            assert time.monotonic() < until, hex(self.registers[0x1C // 4])

    def enable(self) -> None:
        self.registers[0x14 // 4] = 0
        self.wait(0)
        self.registers[0x54 // 4] = self.address >> 32
        self.registers[0x50 // 4] = self.address & 0xFFFFF000 | 3
        self.cmb[:LIST] = bytes(LIST)
        self.registers[0x24 // 4] = (ENTRIES - 1) << 16 | ENTRIES - 1
        for at, offset in ((ADMIN_SQ, 0x28), (ADMIN_CQ, 0x30)):
            self.registers[offset // 4] = self.address + at & 0xFFFFFFFF
            self.registers[offset // 4 + 1] = self.address + at >> 32
        self.registers[0x14 // 4] = 4 << 20 | 6 << 16 | 1
        self.wait(1)

    def command(self, qid: int, opcode: int, prp1: int = 0, prp2: int = 0, *cdws: int) -> int:
        """Its status; `prp1` and `prp2` are offsets in the buffer, or 0."""
        sq, cq = (IO_SQ, IO_CQ) if qid else (ADMIN_SQ, ADMIN_CQ)
        prps = (self.address + prp1 if prp1 else 0, self.address + prp2 if prp2 else 0)
        dwords = (*cdws, *(0,) * (6 - len(cdws)))
        at = sq + self.tails[qid] * 64
        self.cmb[at : at + 64] = struct.pack("<BBHI16xQQ6I", opcode, 0, 1, qid, *prps, *dwords)
        self.tails[qid] = (self.tails[qid] + 1) % ENTRIES
        self.registers[0x1000 // 4 + 2 * qid] = self.tails[qid]
        until = time.monotonic() + 30
        while self.cmb[(status := cq + self.heads[qid] * 16 + 14)] & 1 != self.phases[qid]:
            assert time.monotonic() < until, f"opcode {opcode:#x} is not answered"
        found = int.from_bytes(self.cmb[status : status + 2], "little") >> 1 & 0x7FF
        self.heads[qid] = (self.heads[qid] + 1) % ENTRIES
        self.phases[qid] ^= not self.heads[qid]
        self.registers[0x1004 // 4 + 2 * qid] = self.heads[qid]
        return found


def move(drive: Drive, opcode: int, at: int, block: int) -> int:
    """Eight blocks between the drive and offset `at` of the buffer, by a PRP list there."""
    pages = range(drive.address + at + PAGE, drive.address + at + 8 * PAGE, PAGE)
    drive.cmb[LIST : LIST + 56] = struct.pack("<7Q", *pages)
    return drive.command(1, opcode, at, LIST, block, 0, 7)


def main(blocks: int) -> None:
    device = next(
        one
        for one in Path("/sys/bus/pci/devices").iterdir()
        if (one / "class").read_text().startswith("0x0108")
    )
    (device / "driver/unbind").write_text(device.name)
    drive = Drive(device)
    drive.enable()
    names = {"cmbloc": 0x38, "cmbsz": 0x3C, "cmbsts": 0x58}
    found: dict[str, object] = {name: drive.registers[at // 4] for name, at in names.items()}
    assert drive.command(0, 0x06, DATA, 0, 1) == 0
    found["serial"] = bytes(drive.cmb[DATA + 4 : DATA + 24]).decode().strip()
    size = (ENTRIES - 1) << 16 | 1
    assert drive.command(0, 0x05, IO_CQ, 0, size, 1) == 0
    assert drive.command(0, 0x01, IO_SQ, 0, size, 1 << 16 | 1) == 0
    content = random.Random(1).randbytes(8 * PAGE)
    source, target = DATA, DATA + 8 * PAGE
    for block in range(0, blocks, 8):
        drive.cmb[source:target] = content
        assert move(drive, 1, source, block) == 0
        drive.cmb[source:target] = bytes(8 * PAGE)
        assert move(drive, 2, target, block) == 0
        assert drive.cmb[target : target + 8 * PAGE] == content, block
    found["misuse"] = drive.command(0, 0x7C, LIST, LIST + PAGE)
    drive.registers[0x14 // 4] = 0
    drive.wait(0)
    Path("/sys/bus/pci/drivers/nvme/bind").write_text(device.name)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))

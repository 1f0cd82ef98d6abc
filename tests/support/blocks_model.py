"""A host, media, and a dictionary of what each block holds: what `test_rpu_blocks_model` drives."""

import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine, initialize

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from support.namespaces import ATTACH
from support.nvme_host import DATA, PAGE, Cqe, Host

FLUSH, WRITE, READ, UNCORRECTABLE, COMPARE, ZEROES, DSM, VERIFY, COPY = 0, 1, 2, 4, 5, 8, 9, 12, 25
DEAC, FUA, AD = 1 << 25, 1 << 30, 4
FORMATS = (512, 4096)
BLOCKS = 10
"""Of each namespace, whose content is followed; one with small blocks has more."""
SIZE = BLOCKS * 4096
IN_MEMORY = "/dev/shm"
"""Where a kill loses nothing either, and nobody waits for a disk."""
MOST = 3
"""Namespaces that there is room for."""
INSUFFICIENT_CAPACITY = 0x115
ERASE, OVERWRITE = (2, 0), (3 | 1 << 4 | 1 << 9, 0x01010101)
"""Sanitize: block erase, and one pass of ones without deallocation after it."""
SLOTS = 12
SLOT = 4 * PAGE
"""Each command under way has memory of its own."""

Block = int | str
"""What a block holds: a byte over and over, or one of the next two."""
BAD, HOLE = "uncorrectable", "deallocated"

Change = dict[tuple[int, int], Block]
"""What a command makes of blocks, by namespace and number."""


@dataclass
class Asked:
    """A command, or a half of a fused one, that is under way."""

    touches: set[tuple[int, int]]
    change: Change
    check: Callable[[Cqe], None]
    slots: list[int] = field(default_factory=list)


class HostOfBlocks(RuleBasedStateMachine):
    """A host of up to three namespaces, which sends commands and knows what blocks may then
    hold."""

    by_messages = False
    """Its memory is reached by messages."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=IN_MEMORY if os.path.isdir(IN_MEMORY) else None))
        self.sizes = {1: 512, 2: 4096}
        self.attached = {1, 2}
        self.blocks: Change = {(nsid, lba): HOLE for nsid in self.sizes for lba in range(BLOCKS)}
        self.dulbe: set[int] = set()
        self.asked: dict[int, Asked] = {}
        self.cid = 0
        shapes = tuple(NamespaceShape(SIZE, size) for size in self.sizes.values())
        self.open(*shapes)
        assert self.host.media[2].reports_holes(4096)

    def open(self, *shapes: NamespaceShape) -> None:
        self.drive = Drive.open(self.folder / "drive", shapes, capacity=MOST * SIZE)
        self.host = Host(drive=self.drive, by_messages=self.by_messages)
        self.begin_session()

    def begin_session(self) -> None:
        """As soon as the drive allows it; what the media then still do, they do later."""
        self.host.begin_enable()
        self.host.service()
        while not self.host.ready:
            self.host.executor.run_next()
            self.host.service()
        waiting = self.host.executor.waiting
        self.left = list(waiting)
        waiting.clear()
        self.host.create_io_queue(1)
        self.host.create_io_queue(2)
        self.dulbe.clear()

    def end(self) -> None:
        """The process is killed."""
        self.host.executor.waiting.clear()
        self.host.__exit__()
        self.drive.__exit__()

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.host.executor.run_all()
            self.host.__exit__()
            self.drive.__exit__()
            shutil.rmtree(self.folder)

    # What is in the dictionary.

    def one_of(self, nsids: set[int], one: int) -> int:
        """0 where there is none."""
        return sorted(nsids)[one % len(nsids)] if nsids else 0

    def span(self, nsid: int, lba: int, count: int) -> set[tuple[int, int]]:
        return {(nsid, n) for n in range(lba, lba + count)}

    def bytes_of(self, nsid: int, lba: int, count: int) -> bytes:
        held = [self.blocks[nsid, n] for n in range(lba, lba + count)]
        size = self.sizes[nsid]
        return b"".join(bytes([one if isinstance(one, int) else 0]) * size for one in held)

    def reading(self, nsid: int, lba: int, count: int) -> int:
        """The status of a command that reads these blocks."""
        held = {self.blocks[one] for one in self.span(nsid, lba, count)}
        if BAD in held:
            return 0x281
        return 0x287 if HOLE in held and nsid in self.dulbe else 0

    # Sending.

    def send(
        self,
        opcode: int,
        nsid: int,
        touches: set[tuple[int, int]],
        cdws: tuple[int, ...],
        status: int,
        *,
        change: Change | None = None,
        data: bytes = b"",
        expected: bytes | None = None,
        flags: int = 0,
        qid: int = 1,
    ) -> None:
        """One command; what it does is in the dictionary when it has been answered as `status`."""
        if not flags and any(one.touches & touches for one in self.asked.values()):
            self.settle()
        if len(self.asked) >= SLOTS - 1:
            self.settle()
        self.cid += 1
        address = DATA + self.cid % SLOTS * SLOT
        self.host.put(data, address)

        def check(completion: Cqe) -> None:
            assert completion.status == status, (opcode, hex(completion.status), hex(status))
            if expected is not None and not status:
                assert self.host.data(len(expected), address) == expected

        self.asked[self.cid] = Asked(touches, (change or {}) if not status else {}, check)
        self.host.place(
            self.host.io[qid],
            opcode, self.cid, nsid=nsid, prp1=address, prp2=address + PAGE, cdws=cdws, flags=flags,
        )  # fmt: skip

    def ring(self) -> None:
        for queue in self.host.io.values():
            self.host.ring(queue)
        self.host.service()
        self.reap()

    def reap(self) -> None:
        for queue in self.host.io.values():
            for completion in self.host.reap(queue):
                asked = self.asked.pop(completion.cid)
                asked.check(completion)
                self.blocks.update(asked.change)

    def settle(self) -> None:
        """Everything is answered."""
        self.ring()
        while self.host.executor.waiting:
            self.host.executor.run_all()
            self.host.service()
            self.reap()
        assert not self.asked, "a command is never answered"

    def set_dulbe(self, on: bool) -> None:
        """Of namespaces whose blocks are as large as what a file system deallocates."""
        self.settle()
        whole = {nsid for nsid in self.attached if self.sizes[nsid] == 4096}
        for nsid in whole:
            done = self.host.command(self.host.admin, 9, nsid=nsid, cdws=(5, int(on) << 16))
            assert done.status == 0
        self.dulbe = whole | self.dulbe if on else self.dulbe - whole

    def set_attached(self, nsid: int, attached: bool) -> None:
        self.host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
        done = self.host.command(self.host.admin, ATTACH, nsid=nsid, cdws=(int(not attached),))
        assert done.status == 0

    def find_out(self, possible: dict[tuple[int, int], set[Block]]) -> None:
        """Read every block that can be read; each must be one of what it may be."""
        self.set_dulbe(True)
        for (nsid, lba), choices in possible.items():
            if nsid not in self.attached:
                continue
            done = self.host.command(self.host.io[1], READ, nsid=nsid, cdws=(lba, 0, 0))
            data = self.host.data(self.sizes[nsid])
            assert done.status in (0, 0x281, 0x287), hex(done.status)
            held: Block = {0x281: BAD, 0x287: HOLE}.get(done.status, data[0])
            assert done.status or data == bytes([data[0]]) * len(data), "a block is torn"
            if self.sizes[nsid] == 512 and held == 0 and HOLE in choices:
                held = HOLE
            assert held in choices, (nsid, lba, held, choices)
            self.blocks[nsid, lba] = held
        self.set_dulbe(False)

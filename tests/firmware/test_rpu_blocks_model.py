"""Everything that a host can do to blocks, against a dictionary.

Two namespaces, of blocks of 512 and of 4096 bytes, through real queues. Commands that touch
different blocks are under way together and end in whatever order the media likes; at any moment a
reset may come, or the process may be killed and begin anew with the files that it had. What was not
acknowledged by then is old or new, block by block; all else is what the dictionary says.
"""

import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from potash_device.media import SIDECAR_SIZE, FileMedia
from potash_firmware.rpu import NamespaceSettings, RpuSettings
from support.nvme_host import DATA, PAGE, Cqe, Host

FLUSH, WRITE, READ, UNCORRECTABLE, COMPARE, ZEROES, DSM, VERIFY, COPY = 0, 1, 2, 4, 5, 8, 9, 12, 25
DEAC, FUA, AD = 1 << 25, 1 << 30, 4
BLOCK_SIZES = {1: 512, 2: 4096}
BLOCKS = 10
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


nsids = st.sampled_from(sorted(BLOCK_SIZES))
lbas = st.integers(0, BLOCKS - 1)
contents = st.integers(1, 3)


class Blocks(RuleBasedStateMachine):
    """The host's and the media's steps."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.blocks: Change = {(nsid, lba): HOLE for nsid in BLOCK_SIZES for lba in range(BLOCKS)}
        self.dulbe: set[int] = set()
        self.asked: dict[int, Asked] = {}
        self.cid = 0
        self.open()

    def open(self) -> None:
        media = {
            nsid: FileMedia.open(self.folder / f"media-{nsid}", BLOCKS * size)
            for nsid, size in BLOCK_SIZES.items()
        }
        assert media[2].tells_holes(4096)
        sidecar = FileMedia.open(self.folder / "sidecar", SIDECAR_SIZE)
        known = tuple(NamespaceSettings(nsid, size) for nsid, size in BLOCK_SIZES.items())
        self.host = Host(media, RpuSettings(namespaces=known), sidecar=sidecar)
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

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.host.executor.run_all()
            self.host.__exit__()
            shutil.rmtree(self.folder)

    # What is in the dictionary.

    def span(self, nsid: int, lba: int, count: int) -> set[tuple[int, int]]:
        return {(nsid, n) for n in range(lba, lba + count)}

    def bytes_of(self, nsid: int, lba: int, count: int) -> bytes:
        held = [self.blocks[nsid, n] for n in range(lba, lba + count)]
        size = BLOCK_SIZES[nsid]
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

    # The host.

    @rule(
        nsid=nsids, lba=lbas, count=st.integers(1, 2), content=contents,
        flags=st.sampled_from([0, 0, FUA]), qid=st.sampled_from([1, 2]),
    )  # fmt: skip
    def write(self, nsid: int, lba: int, count: int, content: int, flags: int, qid: int) -> None:
        count = min(count, BLOCKS - lba)
        span = self.span(nsid, lba, count)
        data = bytes([content]) * (count * BLOCK_SIZES[nsid])
        change: Change = dict.fromkeys(span, content)
        cdws = (lba, 0, count - 1 | flags)
        self.send(WRITE, nsid, span, cdws, 0, change=change, data=data, qid=qid)

    @rule(nsid=nsids, lba=lbas, count=st.integers(1, 2), flags=st.sampled_from([0, FUA]))
    def read(self, nsid: int, lba: int, count: int, flags: int) -> None:
        self.settle()
        count = min(count, BLOCKS - lba)
        self.send(
            READ, nsid, self.span(nsid, lba, count), (lba, 0, count - 1 | flags),
            self.reading(nsid, lba, count), expected=self.bytes_of(nsid, lba, count),
        )  # fmt: skip

    @rule(nsid=nsids, lba=lbas, count=st.integers(1, BLOCKS))
    def verify(self, nsid: int, lba: int, count: int) -> None:
        self.settle()
        count = min(count, BLOCKS - lba)
        status = self.reading(nsid, lba, count)
        self.send(VERIFY, nsid, self.span(nsid, lba, count), (lba, 0, count - 1), status)

    @rule(nsid=nsids, lba=lbas, wrong=st.booleans())
    def compare(self, nsid: int, lba: int, wrong: bool) -> None:
        self.settle()
        status = self.reading(nsid, lba, 1) or (0x285 if wrong else 0)
        data = self.bytes_of(nsid, lba, 1)
        data = data[:-1] + bytes([data[-1] ^ wrong])
        self.send(COMPARE, nsid, self.span(nsid, lba, 1), (lba, 0, 0), status, data=data)

    @rule(nsid=nsids, lba=lbas, wrong=st.booleans(), content=contents, late=st.booleans())
    def compare_and_write(self, nsid: int, lba: int, wrong: bool, content: int, late: bool) -> None:
        self.settle()
        status = self.reading(nsid, lba, 1) or (0x285 if wrong else 0)
        span = self.span(nsid, lba, 1)
        data = self.bytes_of(nsid, lba, 1)
        data = bytes([data[0] ^ wrong]) + data[1:]
        self.send(COMPARE, nsid, span, (lba, 0, 0), status, data=data, flags=1)
        if late:
            self.ring()
        change: Change = dict.fromkeys(span, content)
        data = bytes([content]) * BLOCK_SIZES[nsid]
        second = 0x009 if status else 0
        self.send(WRITE, nsid, span, (lba, 0, 0), second, change=change, data=data, flags=2)

    @rule(nsid=nsids, lba=lbas, count=st.integers(1, BLOCKS), flags=st.sampled_from([0, DEAC, FUA]))
    def write_zeroes(self, nsid: int, lba: int, count: int, flags: int) -> None:
        count = min(count, BLOCKS - lba)
        span = self.span(nsid, lba, count)
        change: Change = dict.fromkeys(span, HOLE if flags == DEAC else 0)
        self.send(ZEROES, nsid, span, (lba, 0, count - 1 | flags), 0, change=change)

    @rule(nsid=nsids, ranges=st.lists(st.tuples(lbas, st.integers(0, 9)), min_size=1, max_size=4))
    def trim(self, nsid: int, ranges: list[tuple[int, int]]) -> None:
        self.settle()
        cut = [(lba, min(count, BLOCKS - lba)) for lba, count in ranges]
        span = set[tuple[int, int]]().union(*(self.span(nsid, *one) for one in cut))
        change: Change = {one: HOLE for one in span if self.blocks[one] != BAD}
        data = b"".join(struct.pack("<IIQ", 0, count, lba) for lba, count in cut)
        self.send(DSM, nsid, span, (len(cut) - 1, AD), 0, change=change, data=data)

    @rule(nsid=nsids, lba=lbas, count=st.integers(1, 5))
    def write_uncorrectable(self, nsid: int, lba: int, count: int) -> None:
        count = min(count, BLOCKS - lba)
        span = self.span(nsid, lba, count)
        change: Change = dict.fromkeys(span, BAD)
        self.send(UNCORRECTABLE, nsid, span, (lba, 0, count - 1), 0, change=change)

    @rule(
        nsid=nsids,
        to=lbas,
        ranges=st.lists(st.tuples(lbas, st.integers(1, 5)), min_size=1, max_size=4),
    )
    def copy(self, nsid: int, to: int, ranges: list[tuple[int, int]]) -> None:
        self.settle()
        cut = [(lba, min(count, BLOCKS - lba)) for lba, count in ranges]
        moved = [self.blocks[nsid, n] for lba, count in cut for n in range(lba, lba + count)]
        status = max((self.reading(nsid, *one) for one in cut), key=lambda one: (one == 0x281, one))
        if to + len(moved) > BLOCKS:
            status = 0x080
        target = [(nsid, to + n) for n in range(len(moved))]
        change: Change = {
            one: held if held != HOLE else 0 for one, held in zip(target, moved, strict=True)
        }
        span = set(target).union(*(self.span(nsid, *one) for one in cut))
        data = b"".join(struct.pack("<8xQH14x", lba, count - 1) for lba, count in cut)
        self.send(COPY, nsid, span, (to, 0, len(cut) - 1), status, change=change, data=data)

    @rule(nsid=st.sampled_from([1, 2, 0xFFFFFFFF]))
    def flush(self, nsid: int) -> None:
        self.send(FLUSH, nsid, set(), (), 0)

    @rule(on=st.booleans())
    def switch_dulbe(self, on: bool) -> None:
        self.set_dulbe(on)

    def set_dulbe(self, on: bool) -> None:
        """Of the namespace whose blocks are as large as what a file system deallocates."""
        self.settle()
        assert self.host.command(self.host.admin, 9, nsid=2, cdws=(5, int(on) << 16)).status == 0
        self.dulbe = {2} if on else set()

    # The drive, the media, and what comes over them.

    @rule(data=st.data(), steps=st.integers(1, 4))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """Some of the media's work is done, in any order."""
        self.ring()
        for _ in range(steps):
            waiting = len(self.host.executor.waiting)
            if not waiting:
                break
            self.host.executor.run_next(data.draw(st.integers(0, waiting - 1)))
            self.host.service()
            self.reap()

    @rule(kind=st.sampled_from(["reset", "kill"]), rung=st.booleans())
    def interrupt(self, kind: str, rung: bool) -> None:
        """A reset, or the end of the process, whatever is under way."""
        if rung:
            self.ring()
        possible = {one: {held} for one, held in self.blocks.items()}
        for asked in self.asked.values():
            for one, held in asked.change.items():
                possible[one].add(held)
        self.asked.clear()
        if kind == "reset":
            self.host.disable()
            self.begin_session()
        else:
            self.host.executor.waiting.clear()
            self.host.__exit__()
            self.open()
        self.find_out(possible)
        self.host.executor.waiting.extend(self.left)

    @rule()
    def look_at_everything(self) -> None:
        self.settle()
        dulbe = set(self.dulbe)
        self.find_out({one: {held} for one, held in self.blocks.items()})
        if dulbe:
            self.set_dulbe(True)

    def find_out(self, possible: dict[tuple[int, int], set[Block]]) -> None:
        """Read every block; each must be one of what it may be."""
        assert self.host.command(self.host.admin, 9, nsid=2, cdws=(5, 1 << 16)).status == 0
        for (nsid, lba), choices in possible.items():
            done = self.host.command(self.host.io[1], READ, nsid=nsid, cdws=(lba, 0, 0))
            data = self.host.data(BLOCK_SIZES[nsid])
            assert done.status in (0, 0x281, 0x287)
            held: Block = {0x281: BAD, 0x287: HOLE}.get(done.status, data[0])
            assert done.status or data == bytes([data[0]]) * len(data), "a block is torn"
            if nsid == 1 and held == 0 and HOLE in choices:
                held = HOLE
            assert held in choices, (nsid, lba, held, choices)
            self.blocks[nsid, lba] = held
        assert self.host.command(self.host.admin, 9, nsid=2, cdws=(5, 0)).status == 0
        self.dulbe = set()

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        """`reap` knows every identifier once; here that none was invented."""
        if hasattr(self, "host"):
            self.reap()


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40)

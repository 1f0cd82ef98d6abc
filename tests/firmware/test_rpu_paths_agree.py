"""The fast path and the slow path do the same: both execute the same random commands.

Two drives get the same entries in the same order. One has both paths, the other the slow path
alone. After each burst their completions are the same, and so are guest memory, media, counters and
the error log; sizes, addresses and flags are often wrong, and blocks are often unusual ones. In
modelled time, completions come at the same times, and commands are aborted, held and dropped while
they wait for them.
"""

import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from potash_device.media.drive import Drive as MediaDrive
from potash_device.media.shapes import Metadata, NamespaceShape
from potash_device.media.store import Media, MemoryMedia
from potash_firmware.rpu.settings import RpuSettings
from support.modelled_time import PROFILE, modelled, timing_of
from support.nvme_host import DATA, MEMORY, PAGE, Cqe, Host, Queue

FLUSH, WRITE, READ, WRITE_UNCORRECTABLE, COMPARE, WRITE_ZEROES, DATASET = 0, 1, 2, 4, 5, 8, 9
DELETE_SQ, DELETE_CQ, ABORT, SET_FEATURES = 0x00, 0x04, 0x08, 0x09
ERROR_RECOVERY, WRITE_CACHE = 0x05, 0x06
DULBE = 1 << 16
FUA = 1 << 30
PRACT = 1 << 29
SGL = 0x40
"""Flags of a command with an SGL."""

SIZES = {1: 1 << 20, 2: 256 << 10, 3: 256 << 10, 4: 512 << 10}
BLOCKS = {1: 4096, 2: 512, 3: 512, 4: 4096}
PROTECTED, ZONED = 3, 4
"""Namespaces that the fast path leaves alone."""
ZONE, ZONE_CAPACITY = 64 << 10, 48 << 10
LISTS = DATA
"""Where PRP lists and lists of ranges are; what moves is behind them."""
BUFFERS = DATA + (256 << 10)
BUFFERS_END = DATA + (1536 << 10)

BURSTS = 300
BURST = 12
"""Commands at most."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]


class PartlyCached(MemoryMedia):
    """Memory of which the last eighth always has to be waited for."""

    def read_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        return offset < self.size // 8 * 7 and super().read_at_once(views, offset)

    def write_at_once(self, views: Sequence[memoryview], offset: int) -> bool:
        return offset < self.size // 8 * 7 and super().write_at_once(views, offset)


class Drive:
    """A drive with one I/O queue; `fast` counts the commands of its fast path."""

    def __init__(
        self,
        stack: ExitStack,
        *,
        has_fast_path: bool,
        by_messages: bool = False,
        window: int = 0,
        settings: RpuSettings | None = None,
    ) -> None:
        shapes = [
            NamespaceShape(SIZES[PROTECTED], BLOCKS[PROTECTED], metadata=Metadata(8, protection=1)),
            NamespaceShape.zoned(SIZES[ZONED], ZONE, ZONE_CAPACITY),
        ]
        made = stack.enter_context(MediaDrive.open(None, shapes))
        media: dict[int, Media] = {nsid: PartlyCached.create(SIZES[nsid]) for nsid in (1, 2)}
        media |= {2 + number: one for number, one in made.namespaces.items()}
        every = {nsid: NamespaceShape(SIZES[nsid], BLOCKS[nsid]) for nsid in (1, 2)}
        every |= {2 + number: one for number, one in made.shapes.items()}
        self.host = stack.enter_context(
            Host(media, settings, shapes=every, by_messages=by_messages, window=window)
        )
        self.host.css = 6
        self.host.enable()
        self.queue: Queue = self.host.create_io_queue(size=512)
        self.fast = 0
        run = self.host.rpu.arbiter.fast_path.run

        def counted(queue: object, limit: int) -> int:
            done = run(queue, limit) if has_fast_path else 0  # type: ignore[arg-type]  # as given
            self.fast += done
            return done

        self.host.rpu.arbiter.fast_path.run = counted  # type: ignore[method-assign]  # counts, or refuses

    def execute(self, entries: list[dict[str, object]], work: int) -> list[tuple[object, ...]]:
        """Have a burst executed, and `work` pieces of the media's work done; the completions."""
        for entry in entries:
            self.host.place(self.queue, **entry)  # type: ignore[arg-type]  # by name
        self.host.ring(self.queue)
        self.host.service()
        for _ in range(min(work, len(self.host.executor.waiting))):
            self.host.executor.run_next()
            self.host.service()
        return [_without_head(one) for one in self.host.reap(self.queue)]

    def rest(self) -> list[tuple[object, ...]]:
        """Have everything done that is in flight; the completions."""
        while self.host.executor.waiting:
            self.host.executor.run_all()
            self.host.service()
        self.host.service()
        return [_without_head(one) for one in self.host.reap(self.queue)]

    def advance(self, deadlines: int) -> list[object]:
        """Pass so many deadlines; these, and what completes at each."""
        found: list[object] = []
        while deadlines and (due := self.host.deadline) is not None:
            self.host.now = due / 1e9
            self.host.service()
            found += due, [_without_head(one) for one in self.host.reap(self.queue)]
            deadlines -= 1
        return found

    def finish(self) -> list[object]:
        """Have everything done, in modelled time."""
        found: list[object] = []
        while self.host.executor.waiting or self.host.deadline is not None:
            found += self.rest()
            found += self.advance(1)
        return found

    def admin(self, opcode: int, *cdws: int) -> list[tuple[object, ...]]:
        """An Admin command that has nothing to wait for."""
        self.host.place(self.host.admin, opcode, 1, cdws=cdws)
        self.host.ring(self.host.admin)
        self.host.service()
        return [_without_head(one) for one in self.host.reap(self.host.admin)]

    def disturb(self, what: str, cid: int) -> list[object]:
        """Do something to the commands that wait; what comes of it."""
        found: list[object] = []
        if what == "abort":
            found += self.admin(ABORT, cid << 16 | self.queue.qid)
        elif what == "hold":
            self.host.master(False)
            self.host.now += 300e-6
            self.host.service()
            self.host.master(True)
            self.host.service()
        elif what == "delete":
            found += self.rest()  # so that only times are waited for
            found += self.admin(DELETE_SQ, self.queue.qid)
            found += [_without_head(one) for one in self.host.reap(self.queue)]
            found += self.admin(DELETE_CQ, self.queue.qid)
            self.queue = self.host.create_io_queue(size=512)
        elif what == "reset":
            self.rest()
            self.host.disable()
            self.host.enable()
            self.queue = self.host.create_io_queue(size=512)
        return found + [_without_head(one) for one in self.host.reap(self.queue)]

    def times(self) -> dict[str, object]:
        """All modelled times."""
        timing, statistics = timing_of(self.host), self.host.rpu.controller.statistics
        histograms = (statistics.reads, statistics.writes, statistics.others, timing.lateness)
        return {
            "completions": list(timing.completions),
            "number": timing.completion_count,
            "counters": timing.drive.counters,
            "histograms": [(one.buckets, one.total, one.largest) for one in histograms],
        }

    def state(self) -> dict[str, object]:
        """Everything that the path must not make a difference to."""
        controller = self.host.rpu.controller
        return {
            "memory": bytes(self.host.memory.view[DATA:MEMORY]),
            "media": [bytes(_content(media)) for media in self.host.media.values()],
            "health": controller.health.save(),
            "commands": dict(controller.statistics.commands),
            "errors": dict(controller.statistics.errors),
            "log": controller.reports.errors.encode(),
            "outstanding": len(controller.outstanding),
            "in flight": len(self.host.executor.waiting),
        }


def _without_head(one: Cqe) -> tuple[object, ...]:
    """Completions of the fast path share the newest head of their queue (SQHD)."""
    return one.dw0, one.sqid, one.cid, one.status, one.dnr


def _content(media: Media) -> memoryview:
    content = memoryview(bytearray(media.size))
    media.read_into([content], 0)
    return content


class Generator:
    """Random commands, and the lists in guest memory that they point to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cid = 0
        self.lists: dict[int, bytes] = {}

    def burst(self) -> list[dict[str, object]]:
        self.lists.clear()
        return [self._command() for _ in range(self.random.randint(1, BURST))]

    def _list(self, content: bytes) -> int:
        """Where the host puts a list."""
        at = LISTS + 2 * PAGE * len(self.lists)
        self.lists[at] = content
        return at

    def _command(self) -> dict[str, object]:
        pick, chance = self.random.choice, self.random.random
        self.cid = (self.cid + (chance() < 0.98)) % 0x1_0000
        opcode = pick([READ] * 20 + [WRITE] * 20 + [FLUSH, COMPARE, WRITE_ZEROES, 0x7F])
        if chance() < 0.01:
            opcode = pick([WRITE_UNCORRECTABLE, DATASET])
        nsid = pick([1] * 20 + [2] * 20 + [PROTECTED, ZONED] * 3 + [0, 5, 0xFFFF_FFFF])
        size = BLOCKS.get(nsid, 4096)
        total = SIZES.get(nsid, 1 << 20) // size
        slba = pick([self.random.randrange(total)] * 30 + [total - 1, total, 1 << 63])
        if nsid == ZONED and chance() < 0.5:  # else writes would hardly ever be at a write pointer
            slba -= slba % (ZONE // size)
        count = pick([1] * 20 + [self.random.randint(1, 24)] * 10 + [(512 << 10) // size + 1])
        dword12 = count - 1
        if chance() < 0.05:
            dword12 |= pick([FUA, 1 << 31, 1 << 26, 1 << 29, 1 << 16])
        if nsid == PROTECTED and chance() < 0.8:
            dword12 |= PRACT
        flags = pick([0] * 20 + [SGL] * 20 + [1, 2, SGL | 1, 0xC0])
        prp1, prp2 = (self._sgl if flags == SGL else self._prps)(count * size)
        low = slba & 0xFFFF_FFFF
        cdws: tuple[int, ...] = (low, slba >> 32, dword12, 0, low)
        if opcode == DATASET:
            prp1 = self._list(struct.pack("<IIQ", 0, min(count, 64), slba))
            cdws = (0, 4)
        return {
            "opcode": opcode, "cid": self.cid, "nsid": nsid, "prp1": prp1, "prp2": prp2,
            "cdws": cdws, "flags": flags,
        }  # fmt: skip

    def _sgl(self, length: int) -> tuple[int, int]:
        """One data block, mostly of the command's length, or a segment of two."""
        at = self.random.randrange(BUFFERS, max(BUFFERS, BUFFERS_END - length) + 1)
        if self.random.random() < 0.02:
            at = self.random.choice([MEMORY, MEMORY - PAGE, 1 << 40])
        block = struct.pack("<QI3xB", at, self.random.choice([length] * 12 + [1, 2 * length]), 0)
        if self.random.random() < 0.1:
            half = [struct.pack("<QI3xB", at + PAGE * one, length // 2, 0) for one in (0, 1)]
            block = struct.pack("<QI3xB", self._list(b"".join(half)), 32, 0x30)
        low, high = struct.unpack("<QQ", block)
        return low, high | self.random.choice([0] * 20 + [1 << 32, 1 << 56, 0x40 << 56])

    def _prps(self, length: int) -> tuple[int, int]:
        """PRPs that are right most of the time."""
        pages = max(1, -(-length // PAGE))
        at = self.random.randrange(BUFFERS // PAGE, (BUFFERS_END - (pages << 12)) // PAGE) * PAGE
        offset = self.random.choice([0] * 30 + [512, 6])
        if self.random.random() < 0.02:
            at = self.random.choice([MEMORY, MEMORY - PAGE, 1 << 40])
        rest = [at + PAGE * page for page in range(1, -(-(offset + length) // PAGE))]
        if self.random.random() < 0.1:
            self.random.shuffle(rest)
        if len(rest) < 2:
            return at + offset, rest[0] if rest else 0
        return at + offset, self._list(struct.pack(f"<{len(rest)}Q", *rest))


MEMORIES: dict[str, dict[str, Any]] = {
    "mapped": {},
    "by messages": {"by_messages": True},
    "pages": {"window": PAGE},
    "pages by messages": {"by_messages": True, "window": PAGE},
    "odd windows": {"window": 1000},  # an entry of a queue, or of a list, is in two of them
}


@pytest.fixture(params=MEMORIES)
def drives(request: pytest.FixtureRequest) -> Iterator[tuple[Drive, Drive]]:
    """How the first one's host memory is reached makes no difference."""
    with ExitStack() as stack:
        first = Drive(stack, has_fast_path=True, **MEMORIES[request.param])
        yield first, Drive(stack, has_fast_path=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_paths_do_the_same(drives: tuple[Drive, Drive], seed: int) -> None:
    print(f"seed {seed}")
    generator, both = Generator(seed), drives
    memory = generator.random.randbytes(MEMORY - DATA)
    for drive in both:
        drive.host.memory.view[DATA:MEMORY] = memory
    executed = 0
    for number in range(BURSTS):
        entries = generator.burst()
        executed += len(entries)
        work = generator.random.randrange(8)
        said = []
        for drive in both:
            for at, content in generator.lists.items():
                drive.host.memory.view[at : at + len(content)] = content
            said.append(drive.execute(entries, work))
        assert said[0] == said[1], (seed, number)
        if number % 3 == 2:
            assert both[0].rest() == both[1].rest(), (seed, number)
        if number % 15 == 14:
            assert both[0].state() == both[1].state(), (seed, number)
            _configure(both, generator.random)
    assert executed > 1500 and both[0].fast > executed // 16 and not both[1].fast


FLASH = replace(PROFILE, capacity=sum(SIZES.values()), blocks=28, mapping_cache=PAGE)
"""A drive whose reads may have to collect garbage, too."""


@pytest.mark.parametrize("seed", SEEDS)
def test_both_paths_take_the_same_modelled_time(seed: int) -> None:
    generator = Generator(seed)
    chosen = generator.random
    memory = chosen.randbytes(MEMORY - DATA)
    with ExitStack() as stack:
        both = [
            Drive(stack, has_fast_path=fast, settings=modelled(FLASH)) for fast in (True, False)
        ]
        for drive in both:
            drive.host.memory.view[DATA:MEMORY] = memory
            drive.host.now = 1.0
        for number in range(BURSTS):
            entries, work = generator.burst(), chosen.randrange(8)
            steps = chosen.choice([0, 1, 1, 2, 5, 20])
            what = chosen.choice([""] * 12 + ["abort"] * 8 + ["hold", "hold", "delete", "reset"])
            cid = max(0, generator.cid - chosen.randrange(20))
            said: list[object] = []
            for drive in both:
                for at, content in generator.lists.items():
                    drive.host.memory.view[at : at + len(content)] = content
                drive.host.now += 1e-6
                said.append(
                    [
                        drive.execute(entries, work),
                        drive.disturb(what, cid),
                        drive.advance(steps),
                        drive.finish() if number % 5 == 4 else None,
                        drive.host.deadline,
                    ]
                )
            assert said[0] == said[1], (seed, number, what)
            if number % 15 == 14:
                assert both[0].state() == both[1].state(), (seed, number)
                assert both[0].times() == both[1].times(), (seed, number)
                _configure(both, chosen)
        assert both[0].fast > 200 and not both[1].fast
        assert timing_of(both[0].host).drive.counters.relocated


def _configure(drives: Sequence[Drive], chosen: random.Random) -> None:
    """Set a feature that makes the fast path step back, or step in again, and give up bad
    blocks."""
    nsid = chosen.choice([1, 2])
    fid, dword, of = chosen.choice(
        [
            (WRITE_CACHE, 1, 0), (WRITE_CACHE, 1, 0), (WRITE_CACHE, 0, 0), (ERROR_RECOVERY, 0, 1),
            (ERROR_RECOVERY, 0, 2), (ERROR_RECOVERY, 0, nsid), (ERROR_RECOVERY, DULBE, nsid),
        ]
    )  # fmt: skip
    heal = {"opcode": WRITE_ZEROES, "cid": 0xFFFF, "nsid": nsid}
    blocks = SIZES[nsid] // BLOCKS[nsid]
    for drive in drives:
        drive.host.command(drive.host.admin, SET_FEATURES, nsid=of, cdws=(fid, dword))
        if dword != DULBE:
            drive.execute([{**heal, "cdws": (0, 0, blocks - 1)}], 100)
            drive.rest()

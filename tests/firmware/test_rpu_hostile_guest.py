"""An untrusted guest: any entry in any queue, with lists that lead onto the queues themselves.

Every command that the device has gets fields near its edges and pointers into everything: its own
queue, the completion queues, the shadow pages, lists that lead to themselves, windows for reading
only, and places where nothing is. The guest may ruin its own memory. The device must answer or
fail, stay within its bounds, touch nothing that it was not given, and work again after a reset.
"""

import logging
import os
import random
import struct
from collections import Counter
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nvme_spec.logs import SanitizeState
from nvme_spec.registers import CmbUse
from potash_device.controller.cmb import CmbSettings
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware.mailbox.messages import (
    NO_SLOT,
    Outcome,
    Reply,
    Request,
    Reset,
    ResetDone,
    WriteBackDone,
)
from potash_firmware.rpu.compute.runs import RUN_LIMIT
from pyvfio_user.sealed_memory import SealedMemory
from support.compute import FakeEngine, range_descriptor
from support.hostile_entries import (
    HIDDEN,
    HOLE,
    LISTS,
    MEMORY_SIZE,
    PLACES,
    QUEUE_PAIRS,
    READ_ONLY,
    SHADOW,
    WRITE_ONLY,
    Mistakes,
    address,
    descriptor,
    entry,
    source_range,
)
from support.nvme_host import (
    BAR2,
    BAR4,
    CC,
    CMBMSC,
    CSTS,
    DATA,
    DOORBELLS,
    IO_QUEUES,
    MEMORY,
    PAGE,
    Host,
    Queue,
)

BUFFER = 0x8000
"""Bytes of the controller memory buffer."""
BUFFERS = st.sampled_from((0, DATA | 3, LISTS | 3, HOLE | 3))
"""CMBMSC of a session: none, or data, lists or what else is nowhere are in the buffer."""

MEDIA_LIMIT, OUTSTANDING_LIMIT = 64 + 256, 4096 + 256
"""What the device takes on at most at a time; the burst of a pass comes on top."""


class HostileGuest(RuleBasedStateMachine):
    """The guest's steps, and what must hold whatever they are."""

    seen: ClassVar[Counter[tuple[int, int]]] = Counter()
    """Kinds of queue and statuses of all examples, to see what was reached."""

    @initialize()
    def start(self) -> None:
        self.mistakes = Mistakes()
        self.logger = logging.getLogger("potash_firmware")
        self.logger.addHandler(self.mistakes)
        self.logger.propagate = False
        self.engine = FakeEngine()
        self.drive = Drive.open(
            None,
            (NamespaceShape(1 << 20), NamespaceShape.memory(MEMORY_SIZE), NamespaceShape.compute()),
            capacity=1 << 20,
            memory_capacity=MEMORY_SIZE,
        )
        self.host = Host(
            drive=self.drive,
            queue_pairs=QUEUE_PAIRS,
            engine=self.engine,
            cmb=CmbSettings(BUFFER, CmbUse.SQS | CmbUse.CQS | CmbUse.RDS),
            memory_bar=2,
        )
        self.host.css = 6
        self.apu = self.host.connect_apu()
        self.requests: list[Request] = []
        self.resets: list[Reset] = []
        self.secret = os.urandom(PAGE)
        self.read_only, self.write_only = SealedMemory(PAGE), SealedMemory(PAGE)
        self.read_only.view[:] = self.secret
        self.hidden = os.urandom(HIDDEN)
        self.host.memory.view[MEMORY - HIDDEN :] = self.hidden
        space = self.host.space
        space.unmap(0, MEMORY)
        self.host.board.memory_changed()
        space.map(READ_ONLY, PAGE, fd=self.read_only.fd, offset=0, readable=True, writable=False)
        space.map(WRITE_ONLY, PAGE, fd=self.write_only.fd, offset=0, readable=False, writable=True)
        space.map(HOLE, PAGE, fd=None, offset=0, readable=True, writable=True)
        self.mapped = False
        self.give_memory()
        self.host.enable()

    def give_memory(self) -> None:
        if not self.mapped:
            self.host.space.map(
                0, MEMORY - HIDDEN, fd=self.host.memory.fd, offset=0, readable=True, writable=True
            )
            self.host.board.memory_changed()
            self.mapped = True

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        try:
            self.works_again()
        finally:
            self.logger.removeHandler(self.mistakes)
            self.logger.propagate = True
            self.host.executor.run_all()
            self.host.__exit__()
            self.drive.__exit__()
            self.read_only.close()
            self.write_only.close()

    def works_again(self) -> None:
        """After a reset nothing that was done matters."""
        self.give_memory()
        self.host.write64(CMBMSC, 0)
        self.host.disable()
        while self.host.executor.waiting:
            self.host.executor.run_all()
            self.host.service()
        for _ in range(3):
            self.apu_answers()
            self.host.service()
        assert len(self.host.link._free) == 16, "a transfer slot is lost"
        self.engine_stops()
        assert not self.engine.asked, "a program runs on after a reset"
        self.host.css = 6
        self.host.enable()
        self.restore_namespace()
        queue = self.host.create_io_queue()
        self.host.put(b"\x3c" * PAGE)
        assert self.host.command(queue, 0x01, 1, nsid=1, cdws=(3,)).status == 0
        self.host.clear(DATA, PAGE)
        assert self.host.command(queue, 0x02, 2, nsid=1, cdws=(3,)).status == 0
        assert self.host.data(PAGE) == b"\x3c" * PAGE
        self.runs_again(queue)
        assert self.mistakes.found == []

    def restore_namespace(self) -> None:
        """The guest may have done to its drive what it likes; a good one makes of it what it
        was."""
        for _ in range(100):  # a sanitize operation goes on once programs and the APU have answered
            self.host.executor.run_all()
            self.apu_answers()
            self.host.service()
            sanitizing = self.host.rpu.controller.sanitizing.state is SanitizeState.IN_PROGRESS
            if not self.host.executor.waiting and not sanitizing:
                break
        admin = self.host.admin
        self.host.put(bytes(PAGE))
        self.host.command(admin, 0x0D, nsid=0xFFFF_FFFF, cdws=(1,))
        self.host.put(struct.pack("<QQ", 128, 128))
        self.host.put(b"\1", DATA + 26)
        created = self.host.command(admin, 0x0D)
        assert (created.status, created.dw0) == (0, 1), created
        self.host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
        assert self.host.command(admin, 0x15, nsid=1).status == 0
        self.host.put(struct.pack("<QQ", MEMORY_SIZE, MEMORY_SIZE).ljust(PAGE, b"\0"))
        for nsid, csi in ((2, 3), (3, 4)):
            created = self.host.command(admin, 0x0D, cdws=(0, csi << 24))
            assert (created.status, created.dw0) == (0, nsid)
        self.host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
        for nsid in (2, 3):
            assert self.host.command(admin, 0x15, nsid=nsid).status == 0

    def runs_again(self, queue: Queue) -> None:
        """A program is loaded, activated and executed on a range of memory."""
        while self.engine.checks:
            self.engine.end_check(Outcome.REFUSED)
        self.engine.verdict = Outcome.RETURNED
        admin = self.host.admin
        self.host.put(range_descriptor((2, 0, PAGE)))
        assert self.host.command(admin, 0x89, nsid=3, cdws=(0, 1)).dw0 == 1
        words = (5 | 0xC0 << 16, 64, 0, 0, 64, 0)
        assert self.host.command(admin, 0x85, nsid=3, cdws=words).status == 0
        assert self.host.command(admin, 0x88, nsid=3, cdws=(1 << 16 | 5,)).status == 0
        self.host.place(queue, 0x01, 3, nsid=3, first=(1 << 16 | 5,))
        self.host.ring(queue)
        self.host.service()
        self.engine.end(value=77)
        self.host.service()
        (done,) = self.host.reap(queue)
        assert (done.status, done.dw0) == (0, 77)

    # The guest.

    @rule(
        qid=st.integers(0, QUEUE_PAIRS),
        seed=st.integers(0, 1 << 32),
        count=st.integers(1, 15),
        ring=st.booleans(),
    )
    def submit(self, qid: int, seed: int, count: int, ring: bool) -> None:
        """Fill a queue's memory with entries, be there a queue or not."""
        rng = random.Random(seed)
        queue = self.host.io.get(qid, self.host.admin) if qid else self.host.admin
        for _ in range(count):
            at = queue.sq + queue.tail * 64
            self.host.memory.view[at : at + 64] = entry(rng, admin=not queue.qid)
            queue.tail = (queue.tail + 1) % queue.size
        if ring:
            self.host.ring(queue)

    @rule(qid=st.integers(0, QUEUE_PAIRS), seed=st.integers(0, 1 << 32), count=st.integers(1, 15))
    def exchange(self, qid: int, seed: int, count: int) -> None:
        """Commands from their entries to their answers, as a guest without patience has it."""
        self.submit(qid, seed, count, ring=True)
        for _ in range(2):
            self.host.service()
            self.host.executor.run_all()
            self.apu_answers()
        self.host.service()
        self.take_completions()

    @precondition(lambda self: not self.host.io)
    @rule(buffer=BUFFERS)
    def settle(self, buffer: int) -> None:
        """A session with a queue pair that works."""
        self.begin_again(6, buffer)
        self.host.service()
        if self.host.ready:
            self.make_queues(1, None)
            self.host.service()
            self.take_completions()

    @precondition(lambda self: self.host.ready and self.mapped)
    @rule(qid=st.integers(1, QUEUE_PAIRS), where=st.sampled_from((None, *PLACES[:16])))
    def make_queues(self, qid: int, where: int | None) -> None:
        """Queues where they should be, or one on the other, or on what is something else."""
        sq = IO_QUEUES + (qid - 1) * 0x2_0000 if where is None else where
        cq = IO_QUEUES + (qid - 1) * 0x2_0000 + 0x1_0000
        rng = random.Random(qid)
        for opcode, at, word in ((5, cq, qid << 16 | 3), (1, sq, qid << 16 | 1)):
            self.host.place(
                self.host.admin, opcode, rng.getrandbits(15), prp1=at, cdws=(15 << 16 | qid, word)
            )
        self.host.ring(self.host.admin)
        self.host.io[qid] = Queue(qid, sq, cq, 16)

    @precondition(lambda self: self.host.ready and self.mapped and self.host.io)
    @rule(qid=st.integers(1, QUEUE_PAIRS), seed=st.integers(0, 1 << 32))
    def use_programs(self, qid: int, seed: int) -> None:
        """Load, activate and execute programs, nearly as a good guest does, and wait for
        nothing."""
        rng = random.Random(seed)
        index = rng.choice((1, 10, 10, 11))
        self.host.put(
            b"".join(
                range_descriptor((rng.choice((2, 2, 2, 1)), PAGE * rng.randrange(20), PAGE))
                for _ in range(4)
            )
        )
        for opcode, words in (
            (0x89, (rng.choice((0, 0, 1 << 16 | 1)), rng.choice((1, 2)))),
            (0x85, (index | rng.choice((0, 0, 0, 1)) << 24 | 0xC0 << 16, 64, 0, 0, 64)),
            (0x88, (index | rng.choice((1, 1, 1, 0)) << 16,)),
        ):
            cid = rng.getrandbits(14)
            self.host.place(self.host.admin, opcode, cid, nsid=3, cdws=words)
        self.host.ring(self.host.admin)
        self.host.service()
        queue = self.host.io.get(qid) or next(iter(self.host.io.values()))
        for _ in range(rng.randrange(8)):
            first = rng.choice(((index,), (index | 1 << 16,), (0, 1), (0, 2, 100)))
            self.host.place(queue, 0x01, rng.getrandbits(14), nsid=3, first=first)
        self.host.ring(queue)
        if rng.random() < 0.5:
            self.host.service()

    @rule(seed=st.integers(0, 1 << 32), sgl=st.booleans())
    def write_lists(self, seed: int, sgl: bool) -> None:
        """PRP lists, SGL segments and source ranges of copies: in a place of their own, or across a
        queue."""
        rng = random.Random(seed)
        at = rng.choice((LISTS, LISTS + PAGE, DATA, *PLACES[8:16]))
        if sgl:
            content = b"".join(descriptor(rng) for _ in range(rng.choice((1, 2, 4, 256))))
        elif rng.random() < 0.5:
            content = b"".join(source_range(rng) for _ in range(rng.choice((1, 2, 128))))
        else:
            entries = [address(rng) & ~(PAGE - 1) for _ in range(511)]
            content = struct.pack("<512Q", *entries, rng.choice((at, at + 8, address(rng))))
        self.host.put(content, at)

    @rule(
        index=st.integers(0, 2 * QUEUE_PAIRS + 4),
        value=st.sampled_from([0, 1, 2, 7, 15, 16, 63, 4095, 0xFFFF, 0xFFFF_FFFF]),
        shadow=st.booleans(),
    )
    def ring_anything(self, index: int, value: int, shadow: bool) -> None:
        if shadow:
            self.host.put(struct.pack("<I", value), SHADOW + 4 * index)
        else:
            self.host.write32(DOORBELLS + 4 * index, value)

    @rule()
    def take_completions(self) -> None:
        """As far as they can be made out in memory that anybody may have written."""
        for queue in (self.host.admin, *self.host.io.values()):
            for _ in range(queue.size):
                at = queue.cq + queue.head * 16
                if at + 16 > MEMORY:
                    break
                (word,) = struct.unpack_from("<H", self.host.memory.view, at + 14)
                if word & 1 != queue.phase:
                    break
                self.seen[(min(queue.qid, 1), word >> 1 & 0x7FF)] += 1
                queue.head = (queue.head + 1) % queue.size
                queue.phase ^= not queue.head
            self.host.write32(DOORBELLS + 8 * queue.qid + 4, queue.head)

    @rule(where=st.sampled_from((*PLACES, (1 << 64) - PAGE)), bits=st.sampled_from((0, 1, 3, 3)))
    def move_the_buffer(self, where: int, bits: int) -> None:
        """Lay the controller memory buffer over what there is, or where it cannot be."""
        self.host.write64(CMBMSC, where & ~(PAGE - 1) | bits)

    @rule(bar=st.sampled_from((BAR2, BAR4)), seed=st.integers(0, 1 << 32))
    def write_a_bar(self, bar: int, seed: int) -> None:
        """Entries or lists into memory of the device, which a program may be working on."""
        rng = random.Random(seed)
        content = b"".join(entry(rng, admin=False) + descriptor(rng) for _ in range(32))
        size = self.host.board.regions[bar].size
        self.host.board.region_write(bar, rng.randrange(size - len(content)), content)

    @rule()
    def take_memory_away_or_give_it_back(self) -> None:
        if self.mapped:
            self.host.space.unmap(0, MEMORY - HIDDEN)
            self.host.board.memory_changed()
            self.mapped = False
        else:
            self.give_memory()

    @precondition(lambda self: not self.host.ready or self.host.fatal)
    @rule(css=st.sampled_from((6, 6, 6, 0)), buffer=BUFFERS)
    def begin_again(self, css: int, buffer: int) -> None:
        self.give_memory()
        self.host.write64(CMBMSC, buffer)
        self.host.write32(CC, 0)
        self.host.service()
        self.host.css = css
        self.host.begin_enable()

    @rule(value=st.sampled_from([0, 1 << 14, 2 << 14, 4 << 20 | 6 << 16 | 1, 0xFFFF_FFFF]))
    def write_cc(self, value: int) -> None:
        self.host.write32(CC, value)

    # The firmware, the media and the APU.

    @rule()
    def serve(self) -> None:
        self.host.service()

    @rule(later=st.floats(0, 0.01))
    def time_passes(self, later: float) -> None:
        self.host.now += later
        self.host.service()

    @precondition(lambda self: self.host.executor.waiting)
    @rule()
    def media_works(self) -> None:
        self.host.executor.run_all()
        self.host.service()

    @rule()
    def apu_answers(self) -> None:
        while (message := self.apu.receive()) is not None:
            if isinstance(message, Request):
                inward = message.opcode & 3 == 2 and message.slot != NO_SLOT
                self.apu.send(Reply(message.tag, 0, length=message.length if inward else 0))
            elif isinstance(message, Reset):
                self.apu.send(ResetDone(message.tag))
            else:
                assert isinstance(message, WriteBackDone)

    @precondition(lambda self: self.engine.asked or self.engine.checks)
    @rule(seed=st.integers(0, 1 << 32))
    def engine_works(self, seed: int) -> None:
        """A program ends, somehow, or its check does."""
        rng = random.Random(seed)
        outcome = rng.choice(list(Outcome))
        if self.engine.asked:
            value = rng.getrandbits(64) if outcome is Outcome.RETURNED else 0
            self.engine.end(rng.choice(self.engine.asked), value, outcome)
        if self.engine.checks:
            self.engine.end_check(outcome)
        self.host.service()

    @rule(verdict=st.sampled_from((None, Outcome.RETURNED, Outcome.REFUSED)))
    def engine_judges(self, verdict: Outcome | None) -> None:
        self.engine.verdict = verdict

    @rule()
    def engine_stops(self) -> None:
        """What was cancelled ends, and what takes the place of it."""
        self.engine.end_cancelled()
        self.host.service()

    # What must always hold.

    @invariant()
    def nothing_else_is_touched(self) -> None:
        if hasattr(self, "host"):
            assert self.read_only.view == self.secret
            assert bytes(self.host.memory.view[MEMORY - HIDDEN :]) == self.hidden

    @invariant()
    def what_is_begun_stays_bounded(self) -> None:
        if hasattr(self, "host"):
            controller = self.host.rpu.controller
            assert len(controller.outstanding) <= OUTSTANDING_LIMIT
            assert len(controller.media_work.unfinished) <= MEDIA_LIMIT
            assert len(controller.outstanding.aborted) <= OUTSTANDING_LIMIT
            assert len(self.engine.asked) <= RUN_LIMIT
            running = [one for one in self.engine.asked if not one.cancelled]
            assert all(one.nsid == 3 for one in running)
            assert self.host.read32(CSTS) & ~0x1F == 0


TestHostileGuest = HostileGuest.TestCase
TestHostileGuest.settings = settings(max_examples=25, stateful_step_count=50)

"""A reset at any step: no command answered twice, no DMA after RDY = 0, no interrupt lost.

A host does anything in any order while the media and the APU answer when they like. What must
always hold is checked after every step, against a record that knows nothing of the firmware.
"""

import os
import struct
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from potash_device.media import MemoryMedia
from potash_firmware.mailbox.messages import (
    NO_SLOT,
    Reply,
    Request,
    Reset,
    ResetDone,
    WriteBack,
    WriteBackDone,
)
from support.nvme_host import CC, CONFIG, DATA, MEMORY, MSIX, NSSR, PAGE, Host, Queue

DEVICE_CONTROL = 0x88
"""Of the PCI Express capability, in configuration space; bit 15 initiates a function level reset."""

EVENT_REQUEST = 0x0C
WRITE = 0x01

COMMANDS: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "identify": (0, 0x06, 0, (1,)),
    "event request": (0, EVENT_REQUEST, 0, ()),
    "abort of the oldest": (0, 0x08, 0, (0,)),
    "accelerator status": (0, 0xC6, 0, (8,)),
    "unknown admin": (0, 0x55, 0, ()),
    "read": (1, 0x02, 1, ()),
    "write": (1, WRITE, 1, ()),
    "write with FUA": (1, WRITE, 1, (0, 0, 1 << 30)),
    "flush": (1, 0x00, 1, ()),
    "send data": (1, 0x81, 0, (64,)),
    "read data": (1, 0x82, 0, (64,)),
    "start": (1, 0x91, 0, (0, 0, 0, 1)),
    "unknown": (1, 0x7F, 1, ()),
}
"""Queue, opcode, namespace and command dwords of what the host sends."""

QUEUE_ROOM = 14
"""Commands that a host keeps unanswered in a queue of 16 entries."""


class SlowMedia(MemoryMedia):
    """Memory that always has to be waited for, so that everything passes the executor."""

    def read_at_once(self, views: object, offset: int) -> bool:
        return False

    def write_at_once(self, views: object, offset: int) -> bool:
        return False


@dataclass
class Written:
    """One write of block 0, in the order of the host's own clock."""

    content: bytes
    submitted: int
    ended: int | None = None
    acknowledged: bool = False


class ResetAtAnyStep(RuleBasedStateMachine):
    """The host's, the media's and the APU's steps, and what must hold between them."""

    @initialize()
    def start(self) -> None:
        self.host = Host({1: SlowMedia.create(1 << 20)})
        self.apu = self.host.connect_apu()
        self.requests: list[Request] = []
        self.resets: list[Reset] = []
        self.clock = 0
        self.writes: list[Written] = []
        self.begin_session()

    def begin_session(self) -> None:
        """A new session of the host: nothing of an older one may show in it."""
        self.unanswered: dict[tuple[int, int], tuple[int, Written | None]] = {}
        self.quiet: bytes | None = None
        for write in self.writes:
            if write.ended is None:
                write.ended = self.tick()

    def teardown(self) -> None:
        if hasattr(self, "host"):
            self.host.executor.run_all()
            self.host.__exit__()

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # The host.

    @property
    def queues(self) -> list[Queue]:
        return [self.host.admin, *self.host.io.values()]

    @precondition(lambda self: not self.host.ready and not self.host.read32(CC) & 1)
    @rule()
    def enable(self) -> None:
        self.begin_session()
        self.host.begin_enable()

    @precondition(lambda self: self.host.ready and not self.host.io)
    @rule()
    def create_queue(self) -> None:
        self.host.service()  # which may have a reset to do first
        if self.host.ready:
            self.host.create_io_queue()

    @precondition(lambda self: self.host.ready and self.host.io)
    @rule(name=st.sampled_from(sorted(COMMANDS)), ring=st.booleans())
    def submit(self, name: str, ring: bool) -> None:
        qid, opcode, nsid, cdws = COMMANDS[name]
        queue = self.host.io[1] if qid else self.host.admin
        if sum(key[0] == qid for key in self.unanswered) >= QUEUE_ROOM:
            return
        cid = self.tick() % 0x8000
        page = DATA + cid % 256 * PAGE
        written = None
        if opcode == WRITE:
            written = Written(os.urandom(8) * 512, self.clock)
            self.writes.append(written)
            self.host.put(written.content, page)
        if name == "abort of the oldest" and self.unanswered:
            sqid, oldest = next(iter(self.unanswered))
            cdws = (oldest << 16 | sqid,)
        self.host.place(queue, opcode, cid, nsid=nsid, prp1=page, cdws=cdws)
        self.unanswered[(qid, cid)] = (opcode, written)
        if ring:
            self.host.ring(queue)

    @precondition(lambda self: self.host.ready)
    @rule()
    def ring(self) -> None:
        for queue in self.queues:
            self.host.ring(queue)

    @precondition(lambda self: self.host.ready)
    @rule()
    def reap(self) -> None:
        for queue in self.queues:
            for completion in self.host.reap(queue):
                key = (completion.sqid, completion.cid)
                assert key in self.unanswered, "a command is answered twice, or was never asked"
                _, written = self.unanswered.pop(key)
                if written is not None:
                    written.ended = self.tick()
                    written.acknowledged = completion.status == 0

    @rule(listening=st.booleans())
    def change_vectors(self, listening: bool) -> None:
        self.host.lines.listening = listening
        self.host.board.irqs_changed(MSIX)
        if listening:
            assert not any(self.host.board.interrupts.pending_bits())

    @rule()
    def move_memory(self) -> None:
        """Unmap everything and map it again, as a virtual machine's firmware does."""
        self.host.space.unmap(0, MEMORY)
        self.host.board.memory_changed()
        self.host.space.map(
            0, MEMORY, fd=self.host.memory.fd, offset=0, readable=True, writable=True
        )
        self.host.board.memory_changed()

    # Resets.

    @rule()
    def clear_enable(self) -> None:
        self.host.write32(CC, 0)

    @precondition(lambda self: self.host.ready)
    @rule()
    def clear_and_set_enable(self) -> None:
        """Faster than the firmware looks: the reset must happen all the same."""
        self.host.write32(CC, 0)
        self.begin_session()
        self.host.begin_enable()
        generation = self.host.rpu.lifecycle.generation
        self.host.rpu.service()
        assert self.host.rpu.lifecycle.generation > generation

    @rule()
    def function_level_reset(self) -> None:
        self.host.board.region_write(CONFIG, DEVICE_CONTROL, struct.pack("<H", 1 << 15))
        assert not self.host.ready

    @rule()
    def device_reset(self) -> None:
        self.host.board.reset()
        assert not self.host.ready

    @rule()
    def subsystem_reset(self) -> None:
        self.host.write32(NSSR, 0x4E564D65)

    # The firmware, the media and the APU, one step at a time.

    @rule()
    def serve(self) -> None:
        before = self.posted()
        self.host.lines.fired.clear()
        self.host.rpu.service()
        heard = set(self.host.lines.fired) | self.pending_vectors()
        for vector, count in self.posted().items():
            assert count <= before.get(vector, 0) or vector in heard, "an interrupt is lost"

    @precondition(lambda self: self.host.executor.waiting)
    @rule(data=st.data())
    def finish_media_work(self, data: st.DataObject) -> None:
        waiting = self.host.executor.waiting
        self.host.executor.run_next(data.draw(st.integers(0, len(waiting) - 1)))

    @rule()
    def apu_reads(self) -> None:
        while (message := self.apu.receive()) is not None:
            if isinstance(message, Request):
                self.requests.append(message)
            elif isinstance(message, Reset):
                self.resets.append(message)
            else:
                assert isinstance(message, WriteBackDone)

    @precondition(lambda self: self.requests)
    @rule(status=st.sampled_from([0, 0x002, 0x7C0]))
    def apu_answers(self, status: int) -> None:
        request = self.requests.pop(0)
        inward = request.opcode & 3 == 2 and request.slot != NO_SLOT and status == 0
        self.apu.send(Reply(request.tag, status, length=request.length if inward else 0))

    @precondition(lambda self: self.resets)
    @rule()
    def apu_has_reset(self) -> None:
        self.apu.send(ResetDone(self.resets.pop(0).tag))

    @rule()
    def apu_writes_back(self) -> None:
        self.apu.send(WriteBack(self.clock, 0, 1, 0, ((PAGE, PAGE), (2 * PAGE, 512))))

    @rule()
    def apu_dies(self) -> None:
        self.apu.close()
        self.host.link.disconnect()
        self.requests.clear()
        self.resets.clear()
        while not self.host.rpu.apu_may_start:
            self.host.executor.run_all()
            self.host.rpu.service()
        self.apu = self.host.connect_apu()

    @rule()
    def come_to_rest(self) -> None:
        """Everybody finishes what they can: then all that was asked is answered."""
        if self.host.ready:
            self.ring()
        for _ in range(20):
            self.host.service()
            self.host.executor.run_all()
            self.apu_reads()
            while self.requests:
                self.apu_answers(0)
            if self.host.ready:
                self.reap()
        if self.host.ready:
            asked = [opcode for opcode, _ in self.unanswered.values()]
            assert set(asked) <= {EVENT_REQUEST}, "a command is never answered"
        assert len(self.host.link._free) == 16, "a transfer slot is lost"
        block = os.pread(self.host.media[1].fd, PAGE, 0)
        assert block in self.possible_contents(), "an acknowledged write is lost"

    # What must always hold.

    @invariant()
    def no_dma_while_not_ready(self) -> None:
        if not hasattr(self, "host"):
            return
        if self.host.ready:
            self.quiet = None
        elif self.quiet is None:
            self.quiet = bytes(self.host.memory.view)
        else:
            assert self.quiet == self.host.memory.view, "memory changed while RDY is 0"

    def posted(self) -> dict[int, int]:
        """Completions that lie in each queue and are not taken yet, by interrupt vector."""
        return {queue.qid: len(self.peek(queue)) for queue in self.queues}

    def peek(self, queue: Queue) -> list[int]:
        head, phase = queue.head, queue.phase
        found = self.host.reap(queue, ring=False)
        queue.head, queue.phase = head, phase
        return [completion.cid for completion in found]

    def pending_vectors(self) -> set[int]:
        bits = int.from_bytes(self.host.board.interrupts.pending_bits(), "little")
        return {vector for vector in range(64) if bits >> vector & 1}

    def possible_contents(self) -> set[bytes]:
        """What block 0 may hold: any write that none acknowledged after its end has replaced."""
        starts = [write.submitted for write in self.writes if write.acknowledged]
        newest = max(starts, default=0)
        possible = {
            write.content for write in self.writes if write.ended is None or write.ended > newest
        }
        return possible if starts else possible | {bytes(PAGE)}


TestResetAtAnyStep = ResetAtAnyStep.TestCase
TestResetAtAnyStep.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, print_blob=True
)

"""A reset, a deleted queue or a migration at any step: no command is answered twice or forgotten,
no DMA after RDY = 0, no interrupt is lost.

A host does anything in any order while the media and the APU answer when they like. What must
always hold is checked after every step, against a record that knows nothing of the firmware.
"""

import os
import struct
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from potash_firmware.mailbox.messages import (
    NO_SLOT,
    Reply,
    Request,
    Reset,
    ResetDone,
    WriteBack,
    WriteBackDone,
)
from pyvfio_user.migration import State
from support.nvme_host import CC, CONFIG, DATA, MEMORY, MSIX, NSSR, PAGE, Host, Queue, SlowMedia

DEVICE_CONTROL = 0x88
"""Of the PCI Express capability, in configuration space; bit 15 initiates a function level
reset."""

DELETE_SQ, DELETE_CQ, EVENT_REQUEST = 0x00, 0x04, 0x0C
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
    "write uncorrectable": (1, 0x04, 1, (20, 0, 1)),
    "compare": (1, 0x05, 1, (20,)),
    "write zeroes": (1, 0x08, 1, (20, 0, 3)),
    "write zeroes and deallocate": (1, 0x08, 1, (20, 0, 1 << 25 | 1)),
    "deallocate": (1, 0x09, 1, (0, 4)),
    "verify": (1, 0x0C, 1, (0, 0, 255)),
    "copy": (1, 0x19, 1, (21,)),
    "scan": (0, 0x86, 1, (0, 0, 63, 0x10 << 24)),
    "first half": (1, 0x05, 1, (30,)),
    "second half": (1, WRITE, 1, (30,)),
}
"""Queue, opcode, namespace and command dwords of what the host sends."""

FUSED = {"first half": 1, "second half": 2}

QUEUE_ROOM = 14
"""Commands that a host keeps unanswered in a queue of 16 entries."""


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

    @precondition(lambda self: not self.host.ready)
    @rule(whole=st.booleans())
    def bring_up(self, whole: bool) -> None:
        """Begin a session, all the way to an I/O queue or only to the write of CC.EN."""
        self.host.write32(CC, 0)
        self.host.service()
        self.begin_session()
        self.host.begin_enable()
        if whole:
            self.host.service()
            self.host.executor.run_all()
            self.host.service()
            assert self.host.ready
            self.host.create_io_queue()

    @precondition(lambda self: self.host.ready and self.host.io)
    @rule(names=st.lists(st.sampled_from(sorted(COMMANDS)), max_size=8), ring=st.booleans())
    def submit(self, names: list[str], ring: bool) -> None:
        for name in names:
            # A first half waits for its second for ever, which is what comes next.
            for each in FUSED if name in FUSED else (name,):
                self.submit_one(each)
        if ring:
            self.ring()

    def submit_one(self, name: str) -> None:
        qid, opcode, nsid, cdws = COMMANDS[name]
        queue = self.host.io[1] if qid else self.host.admin
        room = QUEUE_ROOM - sum(key[0] == qid for key in self.unanswered)
        if room <= (name != "second half"):
            return
        cid = self.tick() % 0x8000
        page = DATA + cid % 256 * PAGE
        written = None
        if opcode == WRITE and name not in FUSED:
            written = Written(os.urandom(8) * 512, self.clock)
            self.writes.append(written)
            self.host.put(written.content, page)
        if name == "abort of the oldest" and self.unanswered:
            sqid, oldest = next(iter(self.unanswered))
            cdws = (oldest << 16 | sqid,)
        self.host.place(
            queue, opcode, cid, nsid=nsid, prp1=page, cdws=cdws, flags=FUSED.get(name, 0)
        )
        self.unanswered[(qid, cid)] = (opcode, written)

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

    @rule(step=st.sampled_from(["go deaf", "listen", "move memory"]))
    def disturb(self, step: str) -> None:
        """Change the vectors as a guest's kernel does, or the memory map as its firmware does."""
        board, space, memory = self.host.board, self.host.space, self.host.memory
        if step == "move memory":
            space.unmap(0, MEMORY)
            board.memory_changed()
            space.map(0, MEMORY, fd=memory.fd, offset=0, readable=True, writable=True)
            board.memory_changed()
            return
        self.host.lines.listening = step == "listen"
        board.irqs_changed(MSIX)
        mastering = board.region_read(CONFIG, 4, 2)[0] & 4  # without it, no message is sent
        if step == "listen" and mastering:
            assert not any(board.interrupts.pending_bits())

    @rule(allowed=st.booleans())
    def master(self, allowed: bool) -> None:
        """Set Bus Master Enable, or clear it, as unbinding a driver does while commands wait."""
        self.host.master(allowed)

    @rule(kind=st.sampled_from(["CC.EN", "CC.EN twice", "function", "slot", "subsystem"]))
    def reset(self, kind: str) -> None:
        host = self.host
        if kind == "CC.EN":
            host.write32(CC, 0)
        elif kind == "CC.EN twice":
            self.clear_and_set_enable()
        elif kind == "subsystem":
            host.write32(NSSR, 0x4E564D65)
        else:
            if kind == "slot":
                host.board.reset()
            else:
                host.board.region_write(CONFIG, DEVICE_CONTROL, struct.pack("<H", 1 << 15))
            assert not host.ready

    def clear_and_set_enable(self) -> None:
        """Faster than the firmware looks: the reset must happen all the same."""
        if not self.host.ready:
            return
        self.host.write32(CC, 0)
        self.begin_session()
        self.host.begin_enable()
        queues = self.host.board.queues.submissions
        before = queues[0]
        self.host.rpu.service()
        assert queues.get(0) is not before

    def quiesce(self) -> None:
        """Everybody but the host finishes what they can."""
        for _ in range(12):
            self.host.service()
            self.host.executor.run_all()
            self.apu_reads()
            self.apu_answers([0] * len(self.requests))
            for reset in self.resets:
                self.apu.send(ResetDone(reset.tag))
            self.resets.clear()

    @precondition(lambda self: self.host.ready and self.host.io)
    @rule()
    def replace_queue(self) -> None:
        """Delete the I/O queue, whose commands end before the deletion does, and make it again."""
        host = self.host
        host.master()
        host.service()
        if not host.ready:  # a reset was on its way
            return
        self.admin_command(DELETE_SQ)
        assert not host.rpu.controller.outstanding.by_queue[1]
        for key in [key for key in self.unanswered if key[0] == 1]:  # never fetched
            _, written = self.unanswered.pop(key)
            if written is not None:
                written.ended = self.tick()
        self.quiesce()
        self.reap()
        self.admin_command(DELETE_CQ)
        host.create_io_queue()

    def admin_command(self, opcode: int) -> None:
        """Delete queue 1, while the APU answers nothing."""
        host, cid = self.host, 0x8000 | opcode
        host.place(host.admin, opcode, cid, cdws=(1,))
        self.unanswered[0, cid] = (opcode, None)
        host.ring(host.admin)
        for _ in range(12):
            host.service()
            host.executor.run_all()
            self.reap()
        assert (0, cid) not in self.unanswered

    @rule(passes=st.integers(0, 3))
    def stop_and_go(self, passes: int) -> None:
        """Stop as for a migration, after which nothing happens, and go on."""
        host, migration = self.host, self.host.rpu.migration
        host.master()
        assert migration.change(State.RUNNING, State.STOP) is not None
        for _ in range(passes):
            host.rpu.service()
        self.quiesce()
        assert migration.stopped
        waiting = {one.entry.opcode for one in host.rpu.controller.outstanding.commands}
        assert waiting <= {EVENT_REQUEST}
        migration.change(State.STOP, State.RUNNING)

    # The firmware, the media and the APU, one step at a time.

    @rule()
    def serve(self) -> None:
        before = self.posted()
        memory = b"" if self.host.board.dma.mastering else bytes(self.host.memory.view)
        self.host.lines.fired.clear()
        self.host.rpu.service()
        if memory:
            assert memory == bytes(self.host.memory.view), (
                "memory changed without Bus Master Enable"
            )
            assert not self.host.lines.fired, "an interrupt without Bus Master Enable"
        heard = set(self.host.lines.fired) | self.pending_vectors()
        for vector, count in self.posted().items():
            assert count <= before.get(vector, 0) or vector in heard, "an interrupt is lost"

    @precondition(lambda self: self.host.executor.waiting)
    @rule(data=st.data())
    def finish_media_work(self, data: st.DataObject) -> None:
        waiting = self.host.executor.waiting
        self.host.executor.run_next(data.draw(st.integers(0, len(waiting) - 1)))

    def apu_reads(self) -> None:
        while (message := self.apu.receive()) is not None:
            if isinstance(message, Request):
                self.requests.append(message)
            elif isinstance(message, Reset):
                self.resets.append(message)
            else:
                assert isinstance(message, WriteBackDone)

    @rule(statuses=st.lists(st.sampled_from([0, 0x002, 0x7C0]), max_size=4))
    def apu_answers(self, statuses: list[int]) -> None:
        self.apu_reads()
        for status, request in zip(statuses, list(self.requests), strict=False):
            self.requests.remove(request)
            inward = request.opcode & 3 == 2 and request.slot != NO_SLOT and status == 0
            self.apu.send(Reply(request.tag, status, length=request.length if inward else 0))

    @rule(step=st.sampled_from(["has reset", "writes back", "dies"]))
    def apu_does(self, step: str) -> None:
        self.apu_reads()
        if step == "writes back":
            self.apu.send(WriteBack(self.clock, 0, 0, ((1, PAGE, PAGE), (1, 2 * PAGE, 512))))
        elif step == "has reset" and self.resets:
            self.apu.send(ResetDone(self.resets.pop(0).tag))
        elif step == "dies":
            self.apu_dies()

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
        self.host.master()
        if self.host.ready:
            self.ring()
        for _ in range(12):
            self.host.service()
            self.host.executor.run_all()
            self.apu_reads()
            self.apu_answers([0] * len(self.requests))
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
            # Comparing with a view of it would go byte by byte.
            assert self.quiet == bytes(self.host.memory.view), "memory changed while RDY is 0"

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
TestResetAtAnyStep.settings = settings(max_examples=25, stateful_step_count=50)

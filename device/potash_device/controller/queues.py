"""Submission and completion queues in guest memory.

A queue resolves its memory once and again after the host has changed its map; between the two it
holds no view. Where that memory is reached by messages, or cannot be one view, completions are
staged until `QueueSet.store` sends them, and entries are fetched when they are wanted, all that
there are.

Source: NVM Express Base Specification 2.0, section 3.3.1 (queue model over memory) and 3.3.3."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from nvme_spec.queues import (
    COMPLETION_BODY,
    COMPLETION_ENTRY_SIZE,
    COMPLETION_ENTRY_WORDS,
    STATUS_WORD_OFFSET,
    SUBMISSION_ENTRY_SIZE,
    SubmissionEntry,
    status_word,
)
from nvme_spec.registers import CmbUse
from potash_device.controller.dma import DmaEngine

STATUS_WORD = STATUS_WORD_OFFSET // 2


class InvalidDoorbell(ValueError):
    """A host wrote a value to a doorbell that the queue cannot have."""


@dataclass
class Interrupt:
    """The interrupt of a completion queue: its MSI-X vector, if interrupts are enabled."""

    vector: int
    enabled: bool


@dataclass(eq=False, repr=False)
class CompletionQueue:
    """`size` entries of 16 bytes at guest address `base`, filled here and emptied by the host.

    What does not fit waits in a backlog: an acknowledgement is late, but never lost.
    """

    dma: DmaEngine
    qid: int
    base: int
    size: int
    interrupt: Interrupt
    head: int = 0
    tail: int = 0
    phase: int = 1
    refused: int | None = None
    """A head of the shadow page that the queue cannot have, and that was reported."""
    submission_queues: int = 0
    backlog: deque[tuple[SubmissionQueue, int, int, bool, int]] = field(default_factory=deque)
    """The completions that wait for room, as arguments of `post`, the oldest first. While there are
    any, nothing more should be fetched that ends here."""
    _bytes: memoryview | None = None
    _words: memoryview | None = None
    _staged: bytearray = field(default_factory=bytearray)
    """Entries up to `tail` that the host has yet to be sent."""

    def bind(self) -> None:
        """Resolve the memory. Raises AccessFault when the host has not mapped all of it."""
        size = self.size * COMPLETION_ENTRY_SIZE
        view = self.dma.mapped(self.base, size, write=True, use=CmbUse.CQS)
        if view is not None:
            self._bytes, self._words = view, view.cast("H")

    def unbind(self) -> None:
        self._bytes = self._words = None

    @property
    def full(self) -> bool:
        """There is no room: the one free entry tells a full queue from an empty one."""
        return (self.tail + 1) % self.size == self.head

    def post(
        self, source: SubmissionQueue, cid: int, status: int = 0, dnr: bool = False, result: int = 0
    ) -> bool:
        """Store a completion of a command from `source`; False when it has to wait for room.

        `result` is dwords 0 and 1 as one number.
        Raises AccessFault when the memory is gone.
        """
        if self.backlog or (self.tail + 1) % self.size == self.head:
            self.backlog.append((source, cid, status, dnr, result))
            return False
        self._store(source, cid, status, dnr, result)
        return True

    @property
    def room(self) -> int:
        """Completions that can be stored now."""
        return 0 if self.backlog else self.size - 1 - (self.tail - self.head) % self.size

    def post_successes(self, source: SubmissionQueue, cids: Sequence[int]) -> None:
        """Store completions of commands that have succeeded, of which there are at most `room`.

        As `post` does one by one, in a third of the time. Raises AccessFault.
        """
        if self._bytes is None:
            self.bind()
            if self._bytes is None:
                for cid in cids:
                    self._stage(source, cid, 0, False, 0)
                return
        assert self._words is not None
        entries, words, store = self._bytes, self._words, COMPLETION_BODY.pack_into
        head, qid, at, phase = source.head, source.qid, self.tail, self.phase
        for cid in cids:
            store(entries, at * COMPLETION_ENTRY_SIZE, 0, head, qid, cid)
            words[at * COMPLETION_ENTRY_WORDS + STATUS_WORD] = phase
            at += 1
            if at == self.size:
                at = 0
                phase ^= 1
        self.tail, self.phase = at, phase

    def move_head(self, head: int) -> int:
        """The host has emptied up to `head`: store what waited, and say how many that were. Raises
        InvalidDoorbell for a head outside what was posted, AccessFault as `post`."""
        size = self.size
        if head >= size or (head - self.head) % size > (self.tail - self.head) % size:
            raise InvalidDoorbell(f"completion queue {self.qid} cannot have head {head}")
        self.head = head
        self.refused = None
        stored = 0
        while self.backlog and not self.full:
            self._store(*self.backlog[0])
            self.backlog.popleft()
            stored += 1
        return stored

    @property
    def occupied(self) -> int:
        """Entries that the host has not taken yet."""
        return (self.tail - self.head) % self.size

    def forget(self, source: SubmissionQueue) -> None:
        """Drop what waits from a submission queue that is being deleted."""
        self.backlog = deque(item for item in self.backlog if item[0] is not source)

    def _store(
        self, source: SubmissionQueue, cid: int, status: int, dnr: bool, result: int
    ) -> None:
        if self._bytes is None:
            self.bind()
            if self._bytes is None:
                self._stage(source, cid, status, dnr, result)
                return
        assert self._words is not None
        at = self.tail
        COMPLETION_BODY.pack_into(
            self._bytes, at * COMPLETION_ENTRY_SIZE, result, source.head, source.qid, cid
        )
        # One 16-bit store hands the entry over: a host that sees the new phase sees all the rest.
        self._words[at * COMPLETION_ENTRY_WORDS + STATUS_WORD] = (
            status_word(status, phase=self.phase, dnr=dnr) if status or dnr else self.phase
        )
        self.tail = at + 1
        if self.tail == self.size:
            self.tail = 0
            self.phase ^= 1

    def _stage(
        self, source: SubmissionQueue, cid: int, status: int, dnr: bool, result: int
    ) -> None:
        self._staged += COMPLETION_BODY.pack(result, source.head, source.qid, cid)
        self._staged += status_word(status, phase=self.phase, dnr=dnr).to_bytes(2, "little")
        self.tail += 1
        if self.tail == self.size:
            self.tail = 0
            self.phase ^= 1

    @property
    def staged(self) -> int:
        """Entries that the host has yet to be sent."""
        return len(self._staged) // COMPLETION_ENTRY_SIZE

    def staged_pieces(self) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """Addresses and bytes of what is staged: first as a host does not see it, then as it does.

        Nothing orders the bytes of one message for a host that looks meanwhile. So the entries go
        out with the other phase first, and then once more, when only their phases change.
        """
        count = self.staged
        first = (self.tail - count) % self.size
        shown, hidden = bytes(self._staged), bytearray(self._staged)
        for at in range(STATUS_WORD_OFFSET, len(hidden), COMPLETION_ENTRY_SIZE):
            hidden[at] ^= 1
        return self._placed(first, bytes(hidden)), self._placed(first, shown)

    def _placed(self, first: int, entries: bytes) -> list[tuple[int, bytes]]:
        at = self.base + first * COMPLETION_ENTRY_SIZE
        room = (self.size - first) * COMPLETION_ENTRY_SIZE
        pieces = [(at, entries[:room]), (self.base, entries[room:])]
        return [piece for piece in pieces if piece[1]]

    def stored(self) -> None:
        """The host has what was staged."""
        self._staged.clear()


@dataclass(eq=False, repr=False)
class SubmissionQueue:
    """`size` entries of 64 bytes at guest address `base`, filled by the host and emptied here."""

    dma: DmaEngine
    qid: int
    base: int
    size: int
    completions: CompletionQueue
    head: int = 0
    tail: int = 0
    refused: int | None = None
    """A tail of the shadow page that the queue cannot have, and that was reported."""
    closed: bool = False
    """Nothing more is fetched: the queue is being deleted."""
    _bytes: memoryview | None = None
    _copy: bytearray | None = None
    """The entries from `head` to `_fetched`, in their places, where they are fetched."""
    _fetched: int = 0

    def bind(self) -> None:
        """Resolve the memory. Raises AccessFault when the host has not mapped all of it."""
        size = self.size * SUBMISSION_ENTRY_SIZE
        self._bytes = self.dma.mapped(self.base, size, write=False, use=CmbUse.SQS)

    def unbind(self) -> None:
        self._bytes = self._copy = None

    @property
    def is_mapped(self) -> bool:
        """The memory is mapped, as far as is known."""
        return self._bytes is not None

    def move_tail(self, tail: int) -> None:
        """The host has filled up to `tail`. Raises InvalidDoorbell for one beyond the queue."""
        if tail >= self.size:
            raise InvalidDoorbell(f"submission queue {self.qid} cannot have tail {tail}")
        self.tail = tail
        self.refused = None

    @property
    def ready(self) -> bool:
        """There is something to fetch, and room to answer it."""
        return self.head != self.tail and not self.closed and not self.completions.backlog

    @property
    def entries(self) -> memoryview:
        """The memory of all entries, valid from `head` to `tail`. Raises AccessFault as `bind`."""
        if self._bytes is None:
            self.bind()
            if self._bytes is None:
                return self._fetch()
        return self._bytes

    def _fetch(self) -> memoryview:
        """A copy of the entries, with those that have come since the last time."""
        copy = self._copy
        if copy is None:
            copy, self._fetched = bytearray(self.size * SUBMISSION_ENTRY_SIZE), self.head
        start, end = self._fetched, self.tail
        spans = [(start, end)] if start <= end else [(start, self.size), (0, end)]
        ranges = [
            (first * SUBMISSION_ENTRY_SIZE, (last - first) * SUBMISSION_ENTRY_SIZE)
            for first, last in spans
            if first != last
        ]
        wanted = [(self.base + at, size) for at, size in ranges]
        fetched = b"".join(self.dma.ranges(wanted, write=False))
        for at, size in ranges:
            copy[at : at + size] = fetched[:size]
            fetched = fetched[size:]
        self._copy, self._fetched = copy, end
        return memoryview(copy)

    def fetch(self) -> SubmissionEntry:
        """Take the oldest entry, of which there must be one. Raises AccessFault as `bind`."""
        entry = SubmissionEntry.decode(self.entries, self.head * SUBMISSION_ENTRY_SIZE)
        self.head = (self.head + 1) % self.size
        return entry

"""Submission and completion queues in guest memory.

A queue resolves its memory once and again after the host has changed its map; between the two it
holds no view.

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
    """How a completion queue tells the host: its MSI-X vector, if it is to tell at all."""

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
    _backlog: deque[tuple[SubmissionQueue, int, int, bool, int]] = field(default_factory=deque)
    _bytes: memoryview | None = None
    _words: memoryview | None = None

    def bind(self) -> None:
        """Resolve the memory. Raises AccessFault when the host has not mapped all of it."""
        size = self.size * COMPLETION_ENTRY_SIZE
        view = self.dma.view(self.base, size, write=True, use=CmbUse.CQS)
        self._bytes, self._words = view, view.cast("H")

    def unbind(self) -> None:
        self._bytes = self._words = None

    @property
    def blocked(self) -> bool:
        """Completions wait for room: nothing more should be fetched that ends here."""
        return bool(self._backlog)

    @property
    def full(self) -> bool:
        """There is no room: the one free entry tells a full queue from an empty one."""
        return (self.tail + 1) % self.size == self.head

    def post(
        self,
        source: SubmissionQueue,
        cid: int,
        status: int = 0,
        dnr: bool = False,
        result: int = 0,
    ) -> bool:
        """Store a completion of a command from `source`; False when it has to wait for room.

        `result` is dwords 0 and 1 as one number.
        Raises AccessFault when the memory is gone.
        """
        if self._backlog or self.full:
            self._backlog.append((source, cid, status, dnr, result))
            return False
        self._store(source, cid, status, dnr, result)
        return True

    @property
    def room(self) -> int:
        """Completions that can be stored now."""
        return 0 if self._backlog else self.size - 1 - self.occupied

    def post_successes(self, source: SubmissionQueue, cids: Sequence[int]) -> None:
        """Store completions of commands that have succeeded, of which there are at most `room`.

        As `post` does one by one, in a third of the time. Raises AccessFault.
        """
        if self._bytes is None:
            self.bind()
        assert self._bytes is not None and self._words is not None
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
        """The host has emptied up to `head`: store what waited, and say how many that were.

        Raises InvalidDoorbell for a head outside what was posted, AccessFault as `post`.
        """
        if head >= self.size or (head - self.head) % self.size > self.occupied:
            raise InvalidDoorbell(f"completion queue {self.qid} cannot have head {head}")
        self.head = head
        self.refused = None
        stored = 0
        while self._backlog and not self.full:
            self._store(*self._backlog[0])
            self._backlog.popleft()
            stored += 1
        return stored

    @property
    def occupied(self) -> int:
        """Entries that the host has not taken yet."""
        return (self.tail - self.head) % self.size

    def forget(self, source: SubmissionQueue) -> None:
        """Drop what waits from a submission queue that is being deleted."""
        self._backlog = deque(item for item in self._backlog if item[0] is not source)

    def _store(
        self, source: SubmissionQueue, cid: int, status: int, dnr: bool, result: int
    ) -> None:
        if self._bytes is None:
            self.bind()
        assert self._bytes is not None and self._words is not None
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

    def bind(self) -> None:
        """Resolve the memory. Raises AccessFault when the host has not mapped all of it."""
        size = self.size * SUBMISSION_ENTRY_SIZE
        self._bytes = self.dma.view(self.base, size, write=False, use=CmbUse.SQS)

    def unbind(self) -> None:
        self._bytes = None

    def move_tail(self, tail: int) -> None:
        """The host has filled up to `tail`. Raises InvalidDoorbell for one beyond the queue."""
        if tail >= self.size:
            raise InvalidDoorbell(f"submission queue {self.qid} cannot have tail {tail}")
        self.tail = tail
        self.refused = None

    @property
    def ready(self) -> bool:
        """There is something to fetch, and room to answer it."""
        return self.head != self.tail and not self.closed and not self.completions.blocked

    @property
    def entries(self) -> memoryview:
        """The memory of all entries. Raises AccessFault as `bind`."""
        if self._bytes is None:
            self.bind()
        assert self._bytes is not None
        return self._bytes

    def fetch(self) -> SubmissionEntry:
        """Take the oldest entry, of which there must be one. Raises AccessFault as `bind`."""
        entry = SubmissionEntry.decode(self.entries, self.head * SUBMISSION_ENTRY_SIZE)
        self.head = (self.head + 1) % self.size
        return entry

"""A pair of queues in shared memory: submission and completion.

NVM Express Base Specification 2.0, sections 3.3.1 (queue model) and 3.3.3 (entries).
"""

from collections.abc import Callable

from nvme_spec.queues import (
    COMMAND_ID,
    COMMAND_ID_OFFSET,
    COMPLETION_ENTRY_SIZE,
    COMPLETION_ENTRY_WORDS,
    PHASE_BIT,
    STATUS_WORD_OFFSET,
    SUBMISSION_ENTRY_SIZE,
    CompletionEntry,
    SubmissionEntry,
)

_STATUS_WORD = STATUS_WORD_OFFSET // 2
_CIDS = 0xFFFF
"""FFFFh is left out: the error log uses it for "no command"."""

OnEnd = Callable[[CompletionEntry | None], None]
"""Called when a command has ended: with its completion, or None after a reset."""


class QueuePair:
    """`entries` entries in each queue; `submission` and `completion` are zeroed views of them.

    At most half as many commands as entries may be in flight, see `head_is_due`.
    """

    def __init__(
        self, qid: int, entries: int, submission: memoryview, completion: memoryview
    ) -> None:
        self.qid = qid
        self.entries = entries
        self.tail = 0
        self.head = 0
        self.in_flight: dict[int, OnEnd] = {}
        self._submission = submission[: entries * SUBMISSION_ENTRY_SIZE]
        self._completion = completion[: entries * COMPLETION_ENTRY_SIZE]
        self._words = self._completion.cast("H")
        self._phase = PHASE_BIT
        self._cid = 0

    def put(self, command: SubmissionEntry, on_end: OnEnd) -> None:
        """Write a command, with an identifier that is free. Ring the tail afterwards."""
        cid = self._cid
        while cid == self._cid or cid in self.in_flight:
            cid = (cid + 1) % _CIDS
        self._cid = cid
        start = self.tail * SUBMISSION_ENTRY_SIZE
        self._submission[start : start + SUBMISSION_ENTRY_SIZE] = command.encode()
        COMMAND_ID.pack_into(self._submission, start + COMMAND_ID_OFFSET, cid)
        self.tail = (self.tail + 1) % self.entries
        self.in_flight[cid] = on_end

    def take(self) -> CompletionEntry | None:
        """The next completion, if there is one. Ring the head afterwards if `head_is_due`."""
        # The phase tag alone says that the entry is there; only then may the rest be read.
        word = self._words[self.head * COMPLETION_ENTRY_WORDS + _STATUS_WORD]
        if word & PHASE_BIT != self._phase:
            return None
        entry = CompletionEntry.decode(self._completion, self.head * COMPLETION_ENTRY_SIZE)
        self.head += 1
        if self.head == self.entries:
            self.head = 0
            self._phase ^= PHASE_BIT
        return entry

    @property
    def head_is_due(self) -> bool:
        """Whether to report the head: twice a lap keeps the completion queue from filling.

        Half of the queue is always free for commands in flight, and each message that is not sent
        spares the device a wake-up.
        """
        return self.head % (self.entries // 2) == 0

    def release(self) -> None:
        """Drop the views of shared memory."""
        for view in (self._words, self._completion, self._submission):
            view.release()

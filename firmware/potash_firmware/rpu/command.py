"""What a command is to the firmware, and what its handler may answer.

A handler returns dword 0 of the completion (None for zero), raises `NvmeError`, or returns
`Pending` to be resumed later. It never posts a completion itself: the loop alone does, so that no
handler can forget one or answer twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvme_spec.queues import SubmissionEntry
from potash_device.controller.queues import SubmissionQueue


@dataclass(frozen=True, slots=True)
class Command:
    """An entry under way and the queue that it was fetched from."""

    entry: SubmissionEntry
    queue: SubmissionQueue

    @property
    def key(self) -> tuple[int, int]:
        """What names a command while it is outstanding: its queue and its identifier."""
        return (self.queue.qid, self.entry.cid)


@dataclass(frozen=True, slots=True)
class Pending:
    """The command waits for `token`; with what that brings, `resume` goes on like a handler.

    `recall` ends it before that, for a host that aborts it: True when nothing will come of it, False
    when what was begun takes its course. A command without one takes its course.
    """

    token: object
    resume: Callable[[Any], "Result"]
    recall: Callable[[], bool] | None = None


def nothing_to_undo() -> bool:
    """How to recall a command that has changed nothing yet, or never does."""
    return True


Result = int | None | Pending

"""A command, and the results of its handler: dwords 0 and 1 of the completion as one number (None
for zero), `NvmeError`, or `Pending` to be resumed later.
`rpu.commands` alone posts completions, so that no handler can forget one or answer twice."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from nvme_spec.queues import SubmissionEntry
from nvme_spec.status import NvmeError
from potash_device.controller.queues import SubmissionQueue


@dataclass(frozen=True, slots=True)
class Command:
    """An entry under way, the queue that it was fetched from, and when: nanoseconds of guest
    time."""

    entry: SubmissionEntry
    queue: SubmissionQueue
    fetched: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What names a command while it is outstanding: its queue and its identifier."""
        return (self.queue.qid, self.entry.cid)


@dataclass(frozen=True, slots=True)
class Pending:
    """The command waits for `token`; with what that brings, `resume` goes on like a handler.

    `recall` ends it before that, for a host that aborts it: True when nothing will come of it,
    False when what was begun takes its course. A command without one takes its course, but where
    `stop` has that end soon: the token, which is a future then, still comes, and the command ends
    with the given error unless what was begun has ended before.
    """

    token: object
    resume: Callable[[Any], "Result"]
    recall: Callable[[], bool] | None = None
    stop: Callable[[NvmeError], None] | None = None


Result = int | None | Pending


def nothing_to_undo() -> bool:
    """How to recall a command that has changed nothing yet, or never does."""
    return True


def steps_by(pending: Pending, take: Callable[[Callable[[], Result]], Result]) -> Pending:
    """`pending`, whose further step is taken by `take`."""
    return replace(pending, resume=lambda value: take(lambda: pending.resume(value)))


def finished(
    step: Callable[[], Result],
    succeeded: Callable[[], None],
    failed: Callable[[NvmeError], None] = lambda error: None,
) -> Result:
    """Take `step`, and call `succeeded` or `failed` at the command's end, however long it waits.

    Raises NvmeError.
    """
    try:
        result = step()
    except NvmeError as error:
        failed(error)
        raise
    if isinstance(result, Pending):
        return steps_by(result, lambda step: finished(step, succeeded, failed))
    succeeded()
    return result


Step = Callable[[], Any] | set[Future[Any]] | float
"""What a long operation waits for: a call on the media executor, the end of these futures, or
seconds that are to pass."""

Steps = Generator[Step, Any, int | None]
"""A long operation; it returns dword 0 of a completion, or raises NvmeError
(`operations.tasks`)."""

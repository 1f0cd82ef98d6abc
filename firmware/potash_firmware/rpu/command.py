"""A command, and what its handler comes to: dwords 0 and 1 of the completion as one number (None
for zero), `NvmeError`, or the steps of a generator that ends like that.

`rpu.commands` alone posts completions, so that no handler can forget one or answer twice."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.queues import SubmissionEntry
from potash_device.controller.queues import SubmissionQueue
from potash_firmware.rpu import scheduler

Steps: TypeAlias = scheduler.Steps[int | None]
"""The steps of a command that may have to wait: a generator that yields what it waits for
(`rpu.scheduler`); its result is dwords 0 and 1 of the completion. It may raise NvmeError."""

Result: TypeAlias = int | None | Steps


@dataclass(frozen=True, slots=True)
class Command:
    """An entry under way, the queue that it was fetched from, and when: nanoseconds of guest
    time."""

    entry: SubmissionEntry
    queue: SubmissionQueue
    csi: CommandSet
    """The command set of its namespace, which has its opcode; NVM for one of the admin queue."""
    fetched: int

    @property
    def key(self) -> tuple[int, int]:
        """The key of a command while it is outstanding: its queue and its identifier."""
        return (self.queue.qid, self.entry.cid)


def steps_of(begin: Callable[[], Result]) -> Steps:
    """The steps of what `begin` begins, whether it has to wait or not."""
    result = begin()
    return (yield from result) if isinstance(result, Generator) else result

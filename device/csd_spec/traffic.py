"""The log page on traffic, an extension: what commands moved, and when each of them completed.

Bytes are little endian. Times are whole nanoseconds of guest time, as modelled (`csd_spec.timing`);
without modelled time there are no completions. Counters begin with the device's process.
"""

from enum import IntEnum
from typing import Annotated, Self

from csd_spec.reporting import Count, Key
from potash_wire.packed import Packed
from potash_wire.records import REST, U8, U16, U32, U64, At
from potash_wire.structures import Buffer

HEADER_SIZE = 64
MOST_COMPLETIONS = 1024
"""Completions of the page: the latest ones."""

COMPLETION_SIZE = 40
PAGE_SIZE = HEADER_SIZE + MOST_COMPLETIONS * COMPLETION_SIZE


class TrafficLogError(ValueError):
    """Bytes that are not this log page."""


class CompletionKind(IntEnum):
    """The kinds of completions."""

    COMMAND = 0
    JOB = 1
    """The program of a job on an accelerator."""
    OUTPUT = 2
    """The output of such a job to local storage, part by part."""


class TimedCompletion(Packed, least_size=COMPLETION_SIZE, error=TrafficLogError):
    """Times of a command or a job of the modelled drive."""

    kind: Annotated[U8, "0 for a command, 1 for a job, 2 for the output of a job."] = 0
    opcode: Annotated[U8, "The command's opcode."] = 0
    status: Annotated[U16, "The command's status; 0 if it succeeded."] = 0
    qid: Annotated[U16, "The command's submission queue."] = 0
    cid: Annotated[U16, "The command's identifier."] = 0
    nsid: Annotated[U32, "The command's namespace; for a job, the accelerator."] = 0
    csi: Annotated[U8, "The command's command set."] = 0
    arrived: Annotated[U64, At(16), "Time at which the command was fetched, or the job began."] = 0
    began: Annotated[U64, "Time at which a core began with it; without a core, as `arrived`."] = 0
    completed: Annotated[U64, "Time at which it was completed."] = 0

    @property
    def modelled(self) -> Annotated[Count, Key()]:
        """Its duration: modelled time from its arrival to its completion."""
        return self.completed - self.arrived


class TrafficLog(Packed, least_size=HEADER_SIZE, error=TrafficLogError):
    """Commands and bytes since the device started, without reads of this page."""

    version: U8 = 1
    commands: Annotated[U64, At(8), "Number of I/O commands."] = 0
    admin_commands: Annotated[U64, "Number of Admin commands."] = 0
    to_host: Annotated[U64, "Bytes of data over the link, to the host."] = 0
    from_host: Annotated[U64, "Bytes of data over the link, from the host."] = 0
    moved: Annotated[
        U64,
        "Bytes moved inside the drive: copied by commands, and read and written by programs in "
        "local storage.",
    ] = 0
    completed: Annotated[U64, "Number of completions in modelled time."] = 0
    completions: Annotated[
        tuple[TimedCompletion, ...], At(HEADER_SIZE), REST, "The latest of these, the oldest first."
    ] = ()

    @property
    def link(self) -> Annotated[Count, Key()]:
        """Bytes of data over the link, in both directions."""
        return self.to_host + self.from_host

    @property
    def modelled(self) -> Annotated[Count, Key()]:
        """Modelled nanoseconds from the first arrival of `completions` to the last completion."""
        if not self.completions:
            return 0
        began = min(one.arrived for one in self.completions)
        return max(one.completed for one in self.completions) - began

    def since(self, before: Self) -> Self:
        """The difference to an earlier log, with its completions as far as this log has them."""
        added = {
            name: getattr(self, name) - getattr(before, name)
            for name in ("commands", "admin_commands", "to_host", "from_host", "moved", "completed")
        }
        new = added["completed"]
        return self._replace(**added, completions=self.completions[-new:] if new else ())

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Raises TrafficLogError."""
        if len(data) < HEADER_SIZE or data[0] != 1:
            raise TrafficLogError("this is no log page on traffic")
        header = super().decode(data[:HEADER_SIZE])
        kept = min(header.completed, MOST_COMPLETIONS) * COMPLETION_SIZE
        return super().decode(data[: HEADER_SIZE + kept])

"""The interface between the RPU and an engine that runs programs.

The RPU has all state of NVMe (programs, their activation, range sets) and returns every status. An
engine only checks and runs programs; it may lose everything that it was given, and request it
again.

Each future of an engine appears in `ended` exactly once, in the loop's thread, also if the APU
is lost. It never has an exception.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from potash_device.cores import Work
from potash_firmware.mailbox.messages import Outcome


class Shared(NamedTuple):
    """A memfd that an engine maps: a program, sealed against writing, or a namespace's memory."""

    handle: int
    fd: int
    """The RPU's; whoever sends it sends a duplicate."""
    length: int
    """Bytes."""


class SharedRange(NamedTuple):
    """`length` bytes from byte `offset` of a namespace's memory on, both multiples of a page."""

    memory: Shared
    offset: int
    length: int


class Execution(NamedTuple):
    """The end of an execution; `value` is the 64-bit value that the program returned, or 0.

    It is also the end of a check, whose value is the priority that the program declares.
    """

    outcome: Outcome
    value: int = 0
    work: Work | None = None
    """The work that the program has counted, where time is modelled."""


class ProgramEngine(Protocol):
    """The component that runs the programs of all compute namespaces."""

    device_defined: tuple[int, ...]
    """The priorities of the programs that are there from the start, at the first indexes."""
    ended: deque[Future[Any]]
    """Futures that have ended, for the RPU to take out."""

    def open(self, nsid: int) -> None:
        """There is a compute namespace `nsid`."""

    def close(self, nsid: int) -> None:
        """It is gone; the caller has cancelled what it ran."""

    def check(self, nsid: int, program: Shared) -> Future[Execution]:
        """Check a program: RETURNED if it is sound, REFUSED if not, LOST if nobody can say."""

    def execute(
        self,
        nsid: int,
        program: Shared | int,
        ranges: Sequence[SharedRange],
        parameters: tuple[int, int],
        data: memoryview,
        row: int = 0,
    ) -> Future[Execution]:
        """Run a program, or the device-defined one of that index, on ranges, CPARAM1 and CPARAM2.

        `data` is its own after the call; `row` is as in the message of this name. How many run at
        once is the engine's affair; the caller has a few of each namespace in flight and keeps the
        rest waiting.
        """

    def cancel(self, execution: Future[Execution]) -> None:
        """Stop it as soon as can be; its future comes back when it no longer touches any memory."""

    def forget(self, handle: int) -> None:
        """Nothing names this program or memory any more; its descriptor is about to be closed."""

"""A drive's flash translation layer, as the rest of the firmware knows it.

`potash_firmware.ftl.drive` is the built-in one; a user's own is one with the same members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

from potash_device.flash.profile import Profile
from potash_firmware.ftl.hooks import NO_HINT, Hint
from potash_firmware.ftl.requests import Counters, Op

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potash_firmware.ftl.report import DriveReport, Spread, Wear


Piece = tuple[int, int, int]
"""A namespace, and the first of its pages and their number, in the order of its bytes."""


class ZoneStream(NamedTuple):
    """The stream of a zone that has superblocks."""

    nsid: int
    zone: int
    stream: int


class Held(NamedTuple):
    """The parts of a drive that namespaces have."""

    pieces: tuple[Piece, ...] = ()
    zones: tuple[ZoneStream, ...] = ()


class FtlError(RuntimeError):
    """A flash translation layer, or a policy of it, raised, took too long, or gave an answer that
    makes no sense; a sentence that names it."""


class Upcalls(Protocol):
    """The rest of the firmware, as a translation layer calls it."""

    def notify(self, kind: int, data: bytes) -> None:
        """Add a notice to the log page on notices, and raise its asynchronous event."""

    def remap(self, source: int, destination: int) -> None:
        """Copy the data of a page of the drive. Raises ValueError for pages that cannot be copied,
        and RuntimeError where too many are to be copied already."""


class Keeper(Protocol):
    """The module `saving`: how the state of a drive reaches another process."""

    def carried(self, ftl: Ftl, held: Held, /) -> bytes:
        """The state of a drive; empty for one whose state does not move."""

    def load_held(self, file: IO[bytes], /) -> Held:
        """The parts of the drive in a state that namespaces have. Raises ValueError."""

    def replace(self, ftl: Ftl, file: IO[bytes], /) -> None:
        """Have a drive be that of a state. Raises ValueError and FtlError."""


class Ftl(Protocol):
    """A flash translation layer with its flash: requests in, completion times out.

    Times are nanoseconds, in ascending order; a page is 4 KiB.
    """

    hints: bool
    """True for one that uses `Hint`, which others get empty."""
    data: bool
    """True for one that uses the data of writes."""
    zones: bool
    """True for one in which zones have superblocks of their own."""
    calls: bool
    """True for one that uses `upcalls`."""
    upcalls: Upcalls | None
    on_failure: Callable[[FtlError], None] | None
    """Called with the error of a request that fails, which is then FAILED; if it is None, the
    error is raised instead."""

    @property
    def profile(self) -> Profile:
        """The drive that it was made for."""

    @property
    def now(self) -> int:
        """Arrival of the last request; none may arrive before it."""

    @property
    def counters(self) -> Counters: ...

    @property
    def good(self) -> int:
        """Superblocks that are not retired."""

    @property
    def worn(self) -> bool:
        """True if so many superblocks are retired that the drive refuses writes."""

    @property
    def unreadable(self) -> int:
        """A page that the last request could not read because of bit errors, or -1."""

    @property
    def wear(self) -> Wear:
        """The drive's wear for SMART; faster than `report`, as is `spread`."""

    @property
    def spread(self) -> Spread:
        """Erases of its superblocks."""

    @property
    def report(self) -> DriveReport:
        """Its wear, spare and load."""

    @property
    def zone_streams(self) -> Collection[int]:
        """The streams of zones that have superblocks."""

    def filled(self, stream: int) -> int:
        """Pages in the superblock that a stream fills; 0 where it has none open."""

    def prepare(self) -> None:
        """Have everything compiled, so that the first request does not wait for that."""

    def submit(
        self,
        time: int,
        op: Op,
        first: int = 0,
        count: int = 0,
        stream: int = 0,
        fua: bool = False,
        hint: Hint = NO_HINT,
    ) -> int:
        """Completion of a request that arrives at `time`; WORN if it is refused, FAILED if it
        failed. Raises RequestError for one that the drive cannot have."""

    def run(self, requests: NDArray[Any]) -> NDArray[Any]:
        """The same as `submit`, for an array of `REQUEST`: completions, of int64."""

    def closed_loop(self, requests: NDArray[Any], flying: NDArray[Any]) -> NDArray[Any]:
        """The same as `run`, where each request arrives when one in flight completes.

        `flying` is a heap of their completion times, none before `now`; it is kept up to date, and
        the requests' times are set.
        """

    def fail_programs(self, count: int) -> None:
        """Have so many of the next programs fail, by each of which a superblock grows bad. Raises
        FtlError where that is not modelled."""

    def resize_cache(self, time: int, host: int) -> int:
        """Have the cache of the mapping use so many bytes of the host's memory beside its own, and
        begin empty. Returns the time at which what it had is on flash. Raises FtlError where there
        is no such cache."""

    def free_link(self) -> None:
        """Have the link be free for the next request: its user knows what else it transfers."""

    def rest(self) -> None:
        """Let the drive become idle, and set its clock and counters to 0."""

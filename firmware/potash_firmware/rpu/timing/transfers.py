"""Transfers of commands in DRAM and on the link, in modelled time.

Without shares, the link is the modelled drive's, first come, first served, and the DRAM of memory
namespaces is apart from that of cores. With shares, the drive answers when a request would complete
if the link was free, and the data cross it outside the drive.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potash_device.bandwidth import Bandwidth, Flow, Transfer
from potash_device.cores import CoreProfile
from potash_device.flash.profile import PAGE, Profile, Rate
from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.scheduler import Signal, Steps, Wait, always, never
from potash_firmware.rpu.timing.shares import Shares

PIECE_NS = 32_000
"""Time that a piece of a read takes on the link alone: eight of them are as long as flash needs to
have the next one ready, and not much longer, as others wait for the flash meanwhile."""
LEAST_PIECE, LARGEST_PIECE = 16 << 10, 256 << 10
"""Bytes."""

Leg = tuple[Bandwidth, int]
"""A bandwidth, and the time that a transfer on it takes alone."""


class Sharing:
    """The bandwidths of a drive that the host and its jobs share."""

    def __init__(self, shares: Shares, clock: GuestClock) -> None:
        self.shares = shares
        self.dram, self.from_host, self.to_host = Bandwidth(), Bandwidth(), Bandwidth()
        self.host = Flow(shares.host, in_order=True, urgent=True)
        self.go_on: Callable[[], None] = lambda: None
        """Called when a transfer has begun."""
        self.clock = clock

    @property
    def bandwidths(self) -> list[Bandwidth]:
        return [self.dram, self.from_host, self.to_host]

    def link(self, *, inwards: bool) -> Bandwidth:
        """A direction of the link."""
        return self.from_host if inwards else self.to_host

    def cross(self, legs: Sequence[Leg], at: int, after: int) -> "Crossing":
        """Begin transfers of a command, one after the other, at a time; it completes `after`."""
        crossing = Crossing(self, list(legs), at, after)
        crossing.continue_at(at)
        self.go_on()
        return crossing


@dataclass(eq=False)
class Crossing:
    """The transfers of a command of the host; see `scheduler.Later`."""

    sharing: Sharing
    legs: list[Leg]
    """Transfers that have not begun."""
    at: int
    after: int
    """Time from the end of the last one to the command's completion."""
    _transfer: Transfer | None = None
    _due: int | None = None
    _on_due: Callable[[int], None] | None = None

    def continue_at(self, at: int) -> None:
        """The last transfer has ended, or the first one can begin."""
        self._transfer = None
        while self.legs:
            bandwidth, length = self.legs.pop(0)
            if length:
                self._transfer = bandwidth.begin(self.sharing.host, length, at, self.continue_at)
                return
        self._due = at + self.after
        if self._on_due is not None:
            self._on_due(self._due)

    def when_due(self, call: Callable[[int], None]) -> None:
        """Call a function with the time at which the command completes, once it is known."""
        self._on_due = call
        if self._due is not None:
            call(self._due)

    def wait(self, *, abortable: bool) -> Steps[int]:
        """Wait for the end of the last one; the time at which the command completes."""
        ended = Signal()
        self.when_due(ended.send)
        try:
            due: int = yield Wait(ended, always if abortable else never)
        except GeneratorExit:
            self.drop()
            raise
        return due

    def drop(self) -> None:
        """Nobody waits for them any more."""
        self.legs.clear()
        if self._transfer is not None:
            self._transfer.drop(self.sharing.clock.now())
            self.sharing.go_on()


class Transfers:
    """The transfers of one controller."""

    def __init__(
        self,
        profile: Profile,
        processor: CoreProfile,
        factor: int,
        clock: GuestClock,
        sharing: Sharing | None,
    ) -> None:
        self.sharing = sharing
        self._profile, self._processor = profile, processor
        self._factor, self._clock = factor, clock
        size, ns = profile.link
        fits = PIECE_NS * size // max(1, ns) // PAGE * PAGE
        self.piece = min(max(fits, LEAST_PIECE), LARGEST_PIECE)
        """Bytes of a piece of a job's read."""
        self._memory_free = 0
        """The time at which the DRAM of memory namespaces has executed all requests."""

    def memory(
        self, touched: int, sent: int = 0, after: int | None = None, *, inwards: bool = False
    ) -> int | Crossing:
        """The time at which a command on memory namespaces completes that arrives now.

        It reads and writes `touched` bytes of DRAM, which does one thing at a time if it has no
        shares, not before `after`; `sent` of them go over the link, into the drive if `inwards`.
        """
        profile, factor = self._profile, self._factor
        begins = self._clock.now() + (profile.submission_ns + profile.other_command_ns) * factor
        begins = max(begins, begins if after is None else after)
        dram = _taken(touched, self._processor.dram) * factor
        link, completion = self.link_ns(sent), profile.completion_ns * factor
        if self.sharing is not None:
            legs = [(self.sharing.dram, dram), (self.sharing.link(inwards=inwards), link)]
            return self.sharing.cross(legs, begins, completion)
        self._memory_free = max(begins, self._memory_free) + dram
        return self._memory_free + link + completion

    def link_ns(self, length: int) -> int:
        """The time that bytes take on the link alone."""
        return _taken(length, self._profile.link) * self._factor

    def cross(self, due: int, length: int, *, inwards: bool = False) -> int | Crossing:
        """The time at which a command completes whose data cross the link, and that the drive
        would complete at `due` if the link was free."""
        if self.sharing is None:
            return due
        begins, link, after = self.leg(self._clock.now(), due, length)
        return self.sharing.cross([(self.sharing.link(inwards=inwards), link)], begins, after)

    def leg(self, asked: int, due: int, length: int) -> tuple[int, int, int]:
        """The beginning of the transfer of a request that came at `asked` and completes at `due`
        if the link is free, how long it takes then, and the time from its end to the completion.
        """
        pages, after = -(-length // PAGE), self._profile.completion_ns * self._factor
        link = self.link_ns(pages * PAGE)
        return max(asked, due - after - link), link, after


def _taken(length: int, rate: Rate) -> int:
    """Nanoseconds for bytes at a rate, rounded up."""
    return -(-length * rate.ns // rate.bytes)

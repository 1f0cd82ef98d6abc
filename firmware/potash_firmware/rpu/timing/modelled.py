"""The time of a modelled drive of flash: which requests it gets, and when they complete.

The model decides about time alone; data are where they always are. All namespaces share the drive,
each at pages of its own. Nanoseconds are those of guest time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO

from csd_spec.traffic import MOST_COMPLETIONS, TimedCompletion
from nvme_spec.status import NvmeError, Status
from potash_device.cores import DEFAULT, CoreProfile
from potash_device.flash.profile import PAGE
from potash_device.flash.scaling import ZoneShape
from potash_device.trace import Trace
from potash_firmware.ftl.hooks import NO_HINT, Hint
from potash_firmware.ftl.interface import Ftl, FtlError, Held, Keeper
from potash_firmware.ftl.requests import FAILED, WORN, Op
from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.statistics import Histogram
from potash_firmware.rpu.timing.layout import Layout
from potash_firmware.rpu.timing.shares import Shares
from potash_firmware.rpu.timing.transfers import Crossing, Sharing, Transfers
from potash_firmware.rpu.timing.zones import ZoneStreams, require_sound

log = logging.getLogger(__name__)


Sizes = Mapping[int, int]
Zones = Mapping[int, ZoneShape]
_AS_BEFORE = "it is as when this device was started"
_WHOLE = ((0, 0),)
"""The pages of a request for the whole drive, or for a whole zone."""


ATTEMPTS = 3
"""Attempts at a request that has to be served; a failed policy is replaced before the next one."""


@dataclass(frozen=True)
class TimeSettings:
    """A drive whose time is modelled."""

    drive: Ftl
    factor: int = 1
    """A factor by which every modelled time is multiplied."""
    processor: CoreProfile = DEFAULT
    """The cores that run programs and models."""
    held: Held | None = None
    """The parts of the drive that namespaces have, if it was used before."""
    stepped: bool = False
    """The clock stands still until the host advances it (`rpu.admin.stepping`)."""
    hold: bool = False
    """Commands stop the guest, too, as jobs do (`rpu.timing.holding`)."""
    index_on_flash: bool = False
    """The index of keys is on flash, and not in DRAM."""
    keeper: Keeper | None = None
    """Moves the drive's state with a migration; None for a drive that begins empty then."""
    shares: Shares | None = None
    """The shares of DRAM and link; without them, each core has DRAM of its own, and the link is the
    drive's, first come, first served."""


class UnreadableError(NvmeError):
    """A read of flash with too many bit errors; the command ends with `error` at the time `due`."""

    def __init__(self, error: NvmeError, due: int) -> None:
        super().__init__(error.status, error.detail, dnr=error.dnr, lba=error.lba)
        self.due = due


class ModelledTime:
    """The modelled time of one controller.

    `sizes` are the bytes of flash of namespaces, by identifier, `zones` the zones of those that
    have some, and `logs` the namespaces with a log of values; `lateness` is how much later than
    their deadlines commands are completed. Raises ValueError for namespaces that the drive has no
    room for, and for pieces that it does not have.
    """

    def __init__(
        self,
        settings: TimeSettings,
        sizes: Sizes,
        zones: Zones,
        clock: GuestClock,
        lateness: Histogram,
        trace: Trace,
        logs: Collection[int] = (),
    ) -> None:
        self.drive = settings.drive
        self.factor = settings.factor
        self.processor = settings.processor
        sharing = None if settings.shares is None else Sharing(settings.shares, clock)
        self.transfers = Transfers(
            self.drive.profile, settings.processor, settings.factor, clock, sharing
        )
        self.clock = clock
        self.lateness = lateness
        self._trace = trace
        self.on_retired: Callable[[], None] = lambda: None
        """Called when superblocks have been retired."""
        self.on_unreadable: Callable[[int, int], NvmeError] = lambda nsid, offset: NvmeError(
            Status.UNRECOVERED_READ_ERROR
        )
        """Called with a namespace and the offset of bytes of it that cannot be read; what a command
        that reads them ends with."""
        self.has_errors = bool(self.drive.profile.rber)
        """True if the flash has bit errors."""
        self.asked: int | Crossing | NvmeError | None = None
        """The time at which the command completes that is about to begin, or its error, if the fast
        path has asked already."""
        self._keeper = settings.keeper
        self._advice = bytearray()
        """A byte for each page, once a host has given some: what Dataset Management says of it."""
        self._failure: FtlError | None = None
        self.executions = 0
        """Executions in compute namespaces that have ended."""
        self.execution_ns = 0
        """The duration of the last execution."""
        self.completions: deque[TimedCompletion] = deque(maxlen=MOST_COMPLETIONS)
        self.monitor: Callable[[Sequence[TimedCompletion]], object] = len
        self.wake: Callable[[int], int] = int
        """The time at which the drive is ready for a request that arrives at a time."""
        self.completion_count = 0
        """All completions, those included that are no longer kept."""
        self.drive.on_failure = self._request_failed
        self._begin(settings.held or Held(), sizes, zones, logs)

    def _begin(self, held: Held, sizes: Sizes, zones: Zones, logs: Collection[int]) -> None:
        """Go on with the drive, and the parts of it that namespaces have. Raises ValueError."""
        profile = self.drive.profile
        self._good = self.drive.good
        self._layout = Layout(profile.logical_pages, held.pieces)
        self._zones = self._fitting(sizes, zones)
        """The zones of each namespace whose zones have superblocks of their own."""
        self._zone_sizes = {nsid: shape.size for nsid, shape in zones.items()}
        # The state may be older than the namespaces.
        shapes = self._zones
        kept = [o for o in held.zones if o.nsid in shapes and o.zone in range(shapes[o.nsid].zones)]
        self._streams = ZoneStreams(profile, kept)
        self.place(sizes, zones, logs)
        known = {stream for _, _, stream in self._streams.every}
        for stream in set(self.drive.zone_streams) - known:
            self._submit(Op.RESET, _WHOLE, 0, stream=stream)

    def save(self) -> bytes:
        """The state of the drive for another process; empty if it does not move."""
        return b"" if self._keeper is None else self._keeper.carried(self.drive, self.held)

    def load(self, state: bytes, sizes: Sizes, zones: Zones, logs: Collection[int] = ()) -> None:
        """Go on with the drive of another process, which was saved; or else with this one, with a
        line in the log."""
        if self._keeper is None or not state:
            log.warning("the state of the modelled drive was not moved: %s", _AS_BEFORE)
            return
        try:
            held = self._keeper.load_held(BytesIO(state))
            require_sound(self.drive.profile, held)
            self._keeper.replace(self.drive, BytesIO(state))
            self._begin(held, sizes, zones, logs)
        except (ValueError, FtlError, NvmeError) as error:
            log.warning("the state of the modelled drive is not taken: %s; %s", error, _AS_BEFORE)

    def place(self, sizes: Sizes, zones: Zones, logs: Collection[int] = ()) -> None:
        """Adapt to changed namespaces: deleted ones are trimmed. A log gets the pages that are
        free, if it cannot have all its spare ones. Raises ValueError."""
        layout, before = self._layout, self._zones
        self._zone_sizes = {nsid: shape.size for nsid, shape in zones.items()}
        self._zones = self._fitting(sizes, zones)
        pages = {nsid: -(-size // PAGE) for nsid, size in sizes.items()}
        for nsid in list(layout.placed):
            has, asked = layout.pages(nsid), pages.get(nsid, 0)
            same = has == asked or (nsid in logs and has < asked)
            if not same or before.get(nsid) != self._zones.get(nsid):
                for stream in self._streams.take(nsid):
                    self._submit(Op.RESET, _WHOLE, self.clock.now(), stream=stream)
                self._forget_advice([nsid])
                self._trim_gone(layout.remove(nsid))
        for nsid, count in pages.items():
            if nsid not in layout.placed:
                # Namespaces that end within a page may have more pages in all than the drive; the
                # last one shares the page before its last.
                excess = count - layout.free
                fewer = 0 < excess <= len(pages) or nsid in logs
                layout.place(nsid, min(count, layout.free) if fewer else count)

    def _fitting(self, sizes: Sizes, zones: Zones) -> dict[int, ZoneShape]:
        """The namespaces for whose zones there are superblocks. Others are like those without zones
        to the drive: it was not made for them."""
        profile, found = self.drive.profile, dict[int, ZoneShape]()
        if zones and not self.drive.zones:
            log.warning("the FTL knows no zones: to it, their blocks are like those of others")
            return found
        pages = sum(-(-size // PAGE) for size in sizes.values())
        kept = profile.other_superblocks
        for nsid, shape in zones.items():
            pages -= -(-sizes[nsid] // PAGE)
            kept += shape.superblocks(profile.superblock_pages)
            if kept + -(-pages // profile.superblock_pages) > profile.superblocks:
                log.warning("the flash has not enough superblocks for zones of namespace %d", nsid)
                break
            found[nsid] = shape
        return found

    def _trim_gone(self, pieces: list[tuple[int, int]]) -> None:
        """TRIM what a namespace had that is gone, whatever policies fail on the way."""
        for _ in range(ATTEMPTS):
            with suppress(NvmeError):
                self._submit(Op.TRIM, pieces, self.clock.now())
                return

    def pieces(self, nsid: int) -> Sequence[tuple[int, int]]:
        """The pieces of the drive that a namespace has: first page and number."""
        return self._layout.placed.get(nsid, ())

    def size(self, nsid: int) -> int:
        """Bytes of the pages that a namespace has."""
        return self._layout.pages(nsid) * PAGE

    def owner(self, page: int) -> tuple[int, int]:
        """See `Layout.owner`."""
        return self._layout.owner(page)

    @property
    def held(self) -> Held:
        """The parts of the drive that namespaces have."""
        return Held(tuple(self._layout.pieces), tuple(self._streams.every))

    def charge(
        self,
        nsid: int,
        op: Op,
        offset: int,
        length: int,
        at: int | None = None,
        fua: bool = False,
        stream: int = 0,
        hint: Hint = NO_HINT,
    ) -> int:
        """The time at which a request for `length` bytes from `offset` of a namespace completes
        that arrives `at` (default: now); a write goes to the superblock of a stream.

        Bytes are extended to pages, or for TRIM reduced to them. A request of the future is served
        as if it came now, and completes as much later. Raises NvmeError where the drive is worn out
        or a policy fails.
        """
        at = self.clock.now() if at is None else at
        first, end = offset // PAGE, -(-(offset + length) // PAGE)
        if op is Op.TRIM:
            first, end = -(-offset // PAGE), (offset + length) // PAGE
        end = min(end, self._layout.pages(nsid))
        if op is not Op.TRIM:
            first = min(first, end - 1)
        pieces = self._layout.find(nsid, first, max(0, end - first))
        zones = self._zones.get(nsid)
        if op in (Op.WRITE, Op.WRITE_AREA) and self.drive.hints:
            size = self._zone_sizes.get(nsid)
            zone = offset // size if size else None
            hint = hint._replace(stream=stream, zone=zone, offset=offset % PAGE)
        if zones is None:
            if op is Op.COMMIT:
                return at
            op = Op.WRITE if op is Op.WRITE_AREA else op
            return self._submit(op, pieces, at, fua=fua, stream=stream, hint=hint)
        zone = offset // zones.size
        if op is Op.WRITE or op is Op.COMMIT:
            stale = None if offset % zones.size else self._streams.of(nsid, zone)
            if stale is not None:  # the state of the drive is older than the blocks
                self._submit(Op.RESET, _WHOLE, at, stream=stale)
            stream = self._streams.give(nsid, zone)
            return self._submit(op, pieces, at, fua=fua, stream=stream, hint=hint)
        if op is Op.READ or op is Op.WRITE_AREA:
            return self._submit(op, pieces, at, stream=self._streams.first)
        return self._reset(nsid, range(zone, -(-(offset + length) // zones.size)), at)

    def finish(self, nsid: int, zone: int) -> int:
        """The time at which the rest of a zone's superblock has been programmed."""
        stream = self._streams.of(nsid, zone)
        if stream is None:
            return self._reset(nsid, range(0), self.clock.now())
        return self._submit(Op.FINISH, _WHOLE, self.clock.now(), stream=stream)

    def _reset(self, nsid: int, zones: range, at: int) -> int:
        """The time at which the superblocks of zones have been erased."""
        profile = self.drive.profile
        end = at + self.factor * (
            profile.submission_ns + profile.other_command_ns + profile.completion_ns
        )
        streams = self._streams.take(nsid, zones)
        ends = [self._submit(Op.RESET, _WHOLE, at, stream=stream) for stream in streams]
        return max(ends, default=end)

    def read(self, nsid: int, offset: int, length: int) -> int:
        return self.charge(nsid, Op.READ, offset, length)

    def write(
        self,
        nsid: int,
        offset: int,
        length: int,
        *,
        after: int | None = None,
        sources: Iterable[tuple[int, int]] = (),
        fua: bool = False,
        stream: int = 0,
        hint: Hint = NO_HINT,
        area: bool = False,
    ) -> int:
        """The same as `charge`, for a write that begins when the data that is read for it is there:
        at `after`, or when bytes of the namespace have been read; it may be to a zone's `area`."""
        after = max((self.read(nsid, first, size) for first, size in sources), default=after)
        op = Op.WRITE_AREA if area else Op.WRITE
        return self.charge(nsid, op, offset, length, after, fua, stream, hint)

    def commit(self, namespace: Namespace, blocks: range) -> int:
        """The time at which the write buffer has blocks from the random write area of a zone."""
        size = namespace.block_size
        if not blocks:
            return self.clock.now()
        return self.charge(namespace.nsid, Op.COMMIT, blocks.start * size, len(blocks) * size)

    def trim(self, nsid: int, ranges: Iterable[tuple[int, int]]) -> int:
        """The same as `charge`, for several ranges."""
        ends = (self.charge(nsid, Op.TRIM, first, size) for first, size in ranges)
        return max(ends, default=self.clock.now())

    def advise(self, nsid: int, offset: int, length: int, dsm: int) -> None:
        """Keep what the host says of bytes of a namespace, for hints of later writes."""
        if not self._advice:
            self._advice = bytearray(self.drive.profile.logical_pages)
        first = offset // PAGE
        end = min(-(-(offset + length) // PAGE), self._layout.pages(nsid))
        for start, count in self._layout.find(nsid, first, max(0, end - first)):
            self._advice[start : start + count] = bytes([dsm]) * count

    def _forget_advice(self, nsids: Iterable[int]) -> None:
        """Forget what the host said of namespaces that are emptied, or gone."""
        for nsid in nsids if self._advice else ():
            self.advise(nsid, 0, self._layout.pages(nsid) * PAGE, 0)

    def describes_writes(self, nsid: int) -> bool:
        """True if a write to a namespace has a hint even if the command says nothing."""
        return bool(self._advice) or nsid in self._zone_sizes

    def flush(self) -> int:
        """The time at which all earlier writes are on flash."""
        return self._submit(Op.FLUSH, _WHOLE, self.clock.now())

    def erase(self, nsids: Collection[int]) -> int:
        """The time at which namespaces have been emptied; if these are all of them, the flash is
        empty, too."""
        placed = self._layout.placed
        self._forget_advice(nsids)
        if set(nsids) >= set(placed):
            for nsid in placed:
                self._streams.take(nsid)
            return self._submit(Op.FORMAT, _WHOLE, self.clock.now())
        return max(self.trim(nsid, [(0, self._layout.pages(nsid) * PAGE)]) for nsid in nsids)

    # Streams, which are the reclaim unit handles of data placement.

    @property
    def superblock(self) -> int:
        """Bytes of a superblock."""
        return self.drive.profile.superblock_pages * PAGE

    def filled(self, stream: int) -> int:
        """Bytes of the superblock that a stream fills."""
        return self.drive.filled(stream) * PAGE

    def close(self, stream: int) -> int:
        """The time at which a stream has begun another superblock."""
        return self._submit(Op.CLOSE, _WHOLE, self.clock.now(), stream=stream)

    def has_zones(self, nsid: int) -> bool:
        """True for a namespace whose zones have superblocks of their own, which are no stream's."""
        return nsid in self._zones

    @property
    def programmed(self) -> int:
        """Bytes written to flash since the start, for the host or by the drive itself."""
        return self.drive.counters.programmed * PAGE

    @property
    def erased(self) -> int:
        """Bytes, since the start."""
        return self.drive.counters.erased * self.superblock

    def _submit(
        self,
        op: Op,
        pieces: Iterable[tuple[int, int]],
        at: int,
        *,
        fua: bool = False,
        stream: int = 0,
        hint: Hint = NO_HINT,
    ) -> int:
        """The time at which requests for runs of the drive's pages are done that arrived `at`.

        A run is its first page and its length. Raises NvmeError.
        """
        if self.transfers.sharing is not None:
            self.drive.free_link()
        end, given = at, hint
        arrival = self.arrival(min(at, self.clock.now()))
        later = max(0, at - arrival * self.factor)
        for first, count in pieces:
            if hint.data or (self._advice and hint is not NO_HINT):
                given, hint = self._split(hint, first, count)
            done = self.drive.submit(arrival, op, first, count, stream, fua, given)
            end = max(end, self.time_of(done) + later)
            if self.has_errors and op is Op.READ and self.drive.unreadable >= 0:
                nsid, page = self._layout.owner(self.drive.unreadable)
                raise UnreadableError(self.on_unreadable(nsid, page * PAGE), end)
        self.notice_retired()
        self.show(op.name, at, end)
        return end

    def arrival(self, at: int) -> int:
        """The time of the drive at which requests arrive that come `at` a time that has passed."""
        return max(-(-self.wake(at) // self.factor), self.drive.now)

    def time_of(self, completion: int) -> int:
        """The time at which a request is done that the drive completes so. Raises NvmeError."""
        if completion >= 0:
            return completion * self.factor
        if completion == WORN:
            raise NvmeError(Status.NAMESPACE_WRITE_PROTECTED, "the drive's flash is worn out")
        assert completion == FAILED
        raise NvmeError(Status.INTERNAL_ERROR, str(self._failure), dnr=False)

    def fail_programs(self, count: int) -> None:
        """Have so many of the next programs fail. Raises NvmeError."""
        try:
            self.drive.fail_programs(count)
        except FtlError as error:
            raise NvmeError(Status.INVALID_FIELD, str(error)) from None

    def notice_retired(self) -> None:
        """Report superblocks that requests have retired."""
        if self.drive.good != self._good:
            self._good = self.drive.good
            self.on_retired()

    def _split(self, hint: Hint, first: int, count: int) -> tuple[Hint, Hint]:
        """The hints of a run of pages, with what the host said of the first one before, and of the
        rest of the write."""
        size = count * PAGE - hint.offset
        given = hint._replace(data=hint.data[:size])
        if self._advice and not (hint.frequency or hint.latency or hint.sequential):
            given = given.with_attributes(self._advice[first])
        return given, hint._replace(data=hint.data[size:], offset=0)

    def completed(self, *completions: TimedCompletion) -> None:
        """Keep completions for the log page on traffic."""
        self.completions += completions
        self.completion_count += len(completions)
        self.monitor(completions)

    def show(self, what: str, began: int, ends: int) -> None:
        """Put something that takes modelled time in the trace, if there is one."""
        if self._trace.sink is not None:
            behind = self.clock.behind
            times = {"began": (began + behind) / 1e9, "ends": (ends + behind) / 1e9}
            self._trace.sink("rpu.modelled", {"op": what, **times})

    def _request_failed(self, error: FtlError) -> None:
        self._failure = error
        log.error("%s", error)

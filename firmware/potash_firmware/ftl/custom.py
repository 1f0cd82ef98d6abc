"""A flash translation layer that a user's class is, behind checks of everything that it answers.

The class is the user's own code, which is not confined. What it raises, and an answer that makes no
sense, fail the request; the next one is served as if nothing had happened.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from csd_spec.notices import MOST_BYTES
from potash_device.flash.profile import Profile
from potash_firmware import extension_limits
from potash_firmware.extension_limits import limited, shown, why
from potash_firmware.extension_registry import RegisteredClass
from potash_firmware.ftl.hooks import NO_HINT, Hint
from potash_firmware.ftl.interface import FtlError, Upcalls
from potash_firmware.ftl.report import DriveReport, Erased, Spread, Wear
from potash_firmware.ftl.requests import (
    FAILED,
    WORN,
    Counters,
    Op,
    RequestError,
    check,
    in_closed_loop,
    problem_of,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

LARGEST = 1 << 62
"""The largest number of a report."""
MOST_KIND = 255
MOST_WORN = 255
"""The largest percentage of SMART."""
NO_COUNTERS = Counters(*(0,) * len(Counters._fields))
NO_SPREAD = Spread(0, 0.0, 0, 0, 0, 0, 0)
NO_WEAR = Wear(0, 100, False, 0, 0)
LONGEST = 1 << 61
"""Nanoseconds from the arrival of a request to its completion, at most."""


class CustomFtl:
    """The translation layer of a drive. Raises FtlError where the class cannot be used for it."""

    calls = True
    unreadable = -1
    upcalls: Upcalls | None = None

    def __init__(self, registered: RegisteredClass, profile: Profile) -> None:
        self.profile = profile
        self.on_failure: Callable[[FtlError], None] | None = None
        self.now = 0
        self.name, self._place = registered.name, registered.place
        self._reported: dict[str, Any] = {}
        """The last report of each kind that made sense."""
        self._wrong = set[str]()
        """The kinds of report of which an error was logged."""
        self._made: Callable[[Profile], Any] = registered.made
        self.hints, self.data = self._flag("hints", True), self._flag("data")
        self.zones = self._flag("zones")
        self.version: int | None = getattr(self._made, "version", None)
        """The version of its state; None if that is not kept."""
        self._check_version()
        self._called: list[Callable[[Upcalls], None]] = []
        """The upcalls of the current request, which are made after it: an interrupt of the class
        must not reach them."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be an empty drive. Raises FtlError."""
        made = partial(self._made, self.profile)
        self._own: Any = self._call(extension_limits.IMPORT_LIMIT, made)
        with contextlib.suppress(AttributeError):  # it has other slots
            self._own.notify, self._own.remap = self._notify, self._remap

    # Requests.

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
        """See `Ftl`."""
        if problem := problem_of(self.profile, self.now, time, op, first, count, stream):
            raise RequestError(f"request 0 {problem}")
        return self._serve(time, (time, op, first, count, stream, fua), hint)

    def run(self, requests: NDArray[np.void]) -> NDArray[np.int64]:
        """See `Ftl`."""
        check(self.profile, requests, self.now)
        rows = requests.tolist()
        return np.fromiter((self._serve(row[0], row) for row in rows), np.int64, len(rows))

    def closed_loop(
        self, requests: NDArray[np.void], flying: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """See `Ftl`."""
        requests["time"] = self.now
        check(self.profile, requests, self.now)
        return in_closed_loop(requests, flying, self._serve)

    def _serve(self, time: int, request: tuple[int, ...], hint: Hint = NO_HINT) -> int:
        """The completion of a request, which has the columns of `REQUEST`."""
        self.now = time
        _, op, first, count, stream, fua = request
        if stream and hint is NO_HINT:
            hint = Hint(stream)
        asked = time, Op(op), first, count, stream, bool(fua), hint
        try:
            done = self._call(extension_limits.STEP_LIMIT, self._own.submit, *asked)
            done = done if type(done) is int else self._call(1, index, done)
            if done != WORN and not time <= done <= time + LONGEST:
                raise self._nonsense("submit", done, f", and the request came at {time}")
            if self._called:
                self._make_calls()
        except FtlError as error:
            self._called.clear()
            if self.on_failure is None:
                raise
            self.on_failure(error)
            return FAILED
        return done

    # What the class declares.

    def _flag(self, name: str, default: bool = False) -> bool:
        """Raises FtlError."""
        found = getattr(self._made, name, default)
        if type(found) is not bool:
            raise self._nonsense(name, found)
        return found

    def _check_version(self) -> None:
        """Raises FtlError."""
        if self.version is None:
            return
        if type(self.version) is not int or not 0 <= self.version < LARGEST:
            raise self._nonsense("version", self.version)
        if not all(callable(getattr(self._made, name, None)) for name in ("save", "restore")):
            raise FtlError(f"{self.name} has a version, and no methods save and restore")

    def save(self) -> dict[str, NDArray[Any]]:
        """The arrays of its state. Raises FtlError where there are none."""
        if self.version is None:
            raise FtlError(f"{self.name} keeps no state: the class has no version")
        arrays = self._call(extension_limits.IMPORT_LIMIT, lambda: _arrays(self._own.save()))
        for name, array in arrays.items():
            if not (type(name) is str and name.isidentifier() and array.dtype.kind in "biuf"):
                raise FtlError(f"{self.name}: save returns other things than arrays of numbers")
        return arrays

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the arrays that `save` gave. Raises FtlError."""
        self._call(extension_limits.IMPORT_LIMIT, self._own.restore, saved)

    # What the class calls.

    def _notify(self, kind: int, data: bytes) -> None:
        """Add a notice to the drive's log, and raise its event. Raises ValueError."""
        kind, data = index(kind), bytes(memoryview(data))
        if not 0 <= kind <= MOST_KIND or len(data) > MOST_BYTES:
            raise ValueError(f"a notice has a kind of 0 to 255, and {MOST_BYTES} bytes at most")
        self._called.append(lambda calls: calls.notify(kind, data))

    def _remap(self, source: int, destination: int) -> None:
        """Have the data of a page be that of another one. Raises ValueError."""
        source, destination = index(source), index(destination)
        pages = range(self.profile.logical_pages)
        if source not in pages or destination not in pages:
            raise ValueError(f"the drive has no pages {source} and {destination}")
        self._called.append(lambda calls: calls.remap(source, destination))

    def _make_calls(self) -> None:
        """Make the upcalls of a request. Raises FtlError for one that is impossible."""
        called, self._called = self._called, []
        (file, line), upcalls = self._place, self.upcalls
        if upcalls is None:
            return
        try:
            for call in called:
                call(upcalls)
        except (ValueError, RuntimeError) as error:
            raise FtlError(f"{self.name}: {file}, line {line}: {error}") from None

    def fail_programs(self, count: int) -> None:
        """Raises FtlError."""
        raise FtlError("programs fail with the FTL page alone")

    def resize_cache(self, time: int, host: int) -> int:
        """Raises FtlError."""
        raise FtlError("only the FTL page has a cache of its mapping")

    def free_link(self) -> None:
        """See `Ftl`; a class whose method fails has the link of before."""
        with contextlib.suppress(FtlError):
            self._optional("free_link")

    def rest(self) -> None:
        """See `Ftl`. Raises FtlError."""
        self._optional("rest")
        self.now = 0

    def prepare(self) -> None:
        """See `Ftl`. Raises FtlError."""
        self._optional("prepare")

    def _optional(self, name: str) -> None:
        self._call(extension_limits.IMPORT_LIMIT, lambda: getattr(self._own, name, int)())

    # Reports: one that the class lacks, or that makes no sense, is as it was before.

    @property
    def counters(self) -> Counters:
        """See `Ftl`, as for all that follow."""
        return self._report("counters", NO_COUNTERS)

    @property
    def wear(self) -> Wear:
        return self._report("wear", NO_WEAR)

    @property
    def spread(self) -> Spread:
        return self._report("spread", NO_SPREAD)

    @property
    def report(self) -> DriveReport:
        erases = (Erased(0, 0, self.profile.superblocks),)
        default = DriveReport(self.now, self.counters, 0, self.wear, self.spread, erases)
        return self._report("report", default)

    @property
    def good(self) -> int:
        # After each request: a call behind all checks takes longer than some requests.
        found = getattr(self._own, "__dict__", {}).get("good")
        return found if type(found) is int and found >= 0 else self._good()

    def _good(self) -> int:
        return self._report("good", self.profile.superblocks)

    @property
    def worn(self) -> bool:
        return self.wear.worn

    @property
    def zone_streams(self) -> Collection[int]:
        first = self.profile.frontiers
        streams = range(first, first + self.profile.superblocks)
        return set(streams).intersection(self._report("zone_streams", ()) if self.zones else ())

    def filled(self, stream: int) -> int:
        return self._report("filled", 0, stream)

    def _report(self, name: str, default: T, *arguments: object) -> T:
        """A property of the class, or what a method answers."""
        found: T = self._reported.get(name, default)
        try:
            own = self._call(extension_limits.STEP_LIMIT, getattr, self._own, name, default)
            if arguments and callable(own):
                own = self._call(extension_limits.STEP_LIMIT, own, *arguments)
            if not _sound(own, default):
                raise self._nonsense(name, own)
            found = self._reported[name] = own
        except FtlError as error:
            if name not in self._wrong:
                self._wrong.add(name)
                log.error("%s", error)
        return found

    # Calls.

    def _call(self, seconds: float, function: Callable[..., T], *arguments: Any) -> T:
        """Call something of the class. Raises FtlError."""
        try:
            return limited(seconds, function, *arguments)
        except FtlError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.on_failure is None:
                raise
            raise FtlError(f"{self.name}: {why(error, *self._place)}") from error

    def _nonsense(self, name: str, value: object, more: str = "") -> FtlError:
        file, line = self._place
        verb = "returns" if callable(getattr(self._made, name, None)) else "is"
        return FtlError(f"{self.name}: {file}, line {line}: {name} {verb} {shown(value)}{more}")


def _arrays(saved: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in saved.items()}


def _sound(value: Any, like: Any) -> bool:
    """True for a report of the same type whose numbers are in range."""
    if isinstance(like, tuple):
        if hasattr(like, "_fields"):
            fits = type(value) is type(like) and all(map(_sound, value, like))
            return fits and (not isinstance(value, Wear) or value.percentage_used <= MOST_WORN)
        element = like[0] if like else 0
        return isinstance(value, Collection) and all(_sound(each, element) for each in value)
    if isinstance(like, bool):
        return isinstance(value, bool)
    numbers = int | np.integer | float if isinstance(like, float) else int | np.integer
    return isinstance(value, numbers) and bool(0 <= value <= LARGEST)

"""The common part of translation layers in Python: requests in, completion times out, and reports.

`plain` decides where data go.
"""

import dis
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from types import FunctionType

import numpy as np
from numpy.typing import NDArray

from potash_device.flash.plain import Flash
from potash_device.flash.profile import Profile
from potash_device.flash.state import COUNTERS
from potash_firmware.extension_limits import shown
from potash_firmware.ftl.hooks import NO_HINT, Hint
from potash_firmware.ftl.interface import FtlError, Upcalls
from potash_firmware.ftl.report import DriveReport, Spread, Wear, report, spread, wear
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

HOOKS = ("frontier", "victim", "relocate", "idle")
"""Methods that decide something. Where one fails, that of the class below takes its place."""
_BUILT_IN = ("PythonFtl.", "PageMapped.")


_PACKAGE = f"{__package__}."


def _assigned(cls: type) -> set[str]:
    """The attributes of its object that the `__init__` of a class, if it has one, assigns."""
    found = vars(cls).get("__init__")
    if not isinstance(found, FunctionType):
        return set()
    this = found.__code__.co_varnames[:1]
    return {
        store.argval
        for load, store in pairwise(dis.get_instructions(found))
        # From Python 3.13 on, one instruction may load several variables, of which this is last.
        if store.opname == "STORE_ATTR"
        and (load.argval if isinstance(load.argval, tuple) else (load.argval,))[-1:] == this
    }


class HookError(RuntimeError):
    """A hook answered what makes no sense; the rest of a sentence that begins with its name."""

    def __init__(self, hook: str, problem: str) -> None:
        super().__init__(problem)
        self.hook = hook


class PythonFtl(ABC):
    """A drive with the flash of a profile: see `potash_firmware.ftl.interface.Ftl`.

    `on_failure`, where it is set, is called with the error of a request that fails, which then is
    FAILED.
    """

    hints = True
    """True, as hooks use what is known of a write."""
    data = False
    """True for one that uses the data of writes."""
    calls = False
    """True for one that uses `upcalls`; a class of an extension has `notify` and `remap`."""
    upcalls: Upcalls | None = None
    version: int | None = None
    """The version of what `save` gives; None for one whose state is not kept."""
    unreadable = -1
    """It has no bit errors."""
    zones = False
    """True for one that gives each zone superblocks of its own."""

    notify: Callable[[int, bytes], None] = staticmethod(lambda kind, data: None)
    """Adds a notice of a kind (0 to 255) and up to 256 bytes to the log page on notices, and raises
    its asynchronous event. Without a host, nothing happens; likewise for `remap`."""
    remap: Callable[[int, int], None] = staticmethod(lambda source, destination: None)
    """Copies the data of a page of the drive: the host finds them at another one, too."""

    def __init_subclass__(cls) -> None:
        """Raises TypeError for a class that has an attribute of a built-in class for its own."""
        super().__init_subclass__()
        if cls.__module__.startswith(_PACKAGE):
            return
        assigned = _assigned(cls)
        for base in cls.__mro__:
            if base.__module__.startswith(_PACKAGE):
                methods = {name for name, value in vars(base).items() if callable(value)}
                own = {name for name in _assigned(base) if not hasattr(base, name)} - {"profile"}
                if taken := sorted(assigned & (methods - {*HOOKS} | own) | vars(cls).keys() & own):
                    raise TypeError(
                        f"{cls.__qualname__} has an attribute {taken[0]}, which is one of "
                        f"{base.__qualname__}, too: give it another name"
                    )

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.flash = Flash(profile, self.order())
        self.counts = {name: 0 for name in Counters._fields if name not in COUNTERS}
        self.good = profile.superblocks
        """Superblocks that are not retired."""
        self.worn = False
        """True if so many are retired that the drive refuses writes."""
        self.cores = [0] * profile.cores
        """The time at which each core is free."""
        self.on_failure: Callable[[FtlError], None] | None = None
        self.zone_streams: Collection[int] = ()

    @abstractmethod
    def serve(self, ready: int, op: Op, pages: range, stream: int, fua: bool, hint: Hint) -> int:
        """The time at which a request is done that the firmware has read at `ready`, or WORN."""

    @abstractmethod
    def filled(self, stream: int) -> int:
        """Pages in the superblock that a stream fills; 0 where it has none open."""

    @property
    @abstractmethod
    def mapped(self) -> int:
        """The host's pages that have data."""

    @property
    @abstractmethod
    def free_superblocks(self) -> int:
        """Superblocks that are erased and not open."""

    @abstractmethod
    def idle(self, until: int) -> None:
        """Work in the background: the drive has nothing to do up to a time, by which everything
        that this does has to end."""

    def order(self) -> list[int]:
        """The dies, in the order in which consecutive program units go to them: first to all
        channels. Die d of channel c has number c * dies + d."""
        channels, dies = self.profile.channels, self.profile.dies
        return [channel * dies + die for die in range(dies) for channel in range(channels)]

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
        """Completion of a request that arrives at `time`, in nanoseconds; WORN if it is refused,
        FAILED if it failed. Raises RequestError for one that the drive cannot have, and FtlError
        for one that fails while there is no `on_failure`."""
        if problem := problem_of(self.profile, self.now, time, op, first, count, stream):
            raise RequestError(f"request 0 {problem}")
        self._require_no_zone(stream)
        return self._serve(time, op, first, count, stream, fua, hint)

    def run(self, requests: NDArray[np.void]) -> NDArray[np.int64]:
        """Completions of the requests, an array of `REQUEST`; otherwise as `submit`."""
        check(self.profile, requests, self.now)
        self._require_no_zone(max(requests["stream"], default=0))
        served = (self._serve_columns(columns[0], columns) for columns in requests.tolist())
        return np.fromiter(served, np.int64, len(requests))

    def closed_loop(
        self, requests: NDArray[np.void], flying: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The same as `run`, where each request arrives when one in flight completes.

        `flying` is a heap of their completion times, none before `now`; it is kept up to date, and
        the requests' times are set.
        """
        requests["time"] = self.now
        check(self.profile, requests, self.now)
        self._require_no_zone(max(requests["stream"], default=0))
        return in_closed_loop(requests, flying, self._serve_columns)

    def _serve_columns(self, time: int, columns: tuple[int, ...]) -> int:
        _, op, first, count, stream, fua = columns
        return self._serve(time, Op(op), first, count, stream, bool(fua), NO_HINT)

    def _require_no_zone(self, stream: int) -> None:
        if stream >= self.profile.frontiers and not self.zones:
            raise RequestError(f"a request names a zone, and {type(self).__name__} has none")

    def _serve(
        self, time: int, op: Op, first: int, count: int, stream: int, fua: bool, hint: Hint
    ) -> int:
        flash = self.flash
        try:
            if flash.busy < time:
                flash.now = max(flash.now, flash.busy)
                self.idle(time)
                if flash.busy > time:
                    sentence = f"reserved flash for {flash.busy - time} ns longer than it is idle"
                    raise HookError("idle", sentence)
            flash.now = time
            ready = self.firmware(time + self.profile.submission_ns, op, count)
            end = self.serve(ready, op, range(first, first + count), stream, fua, hint)
        except (Exception, SystemExit) as error:
            found = self._fall_back(error)
            if self.on_failure is None:
                raise found from error
            self.on_failure(found)
            return FAILED
        return end if end == WORN else end + self.profile.completion_ns

    def firmware(self, time: int, op: Op, count: int) -> int:
        """The time at which a core has read a command: the one that is free first."""
        p = self.profile
        if op == Op.READ:
            short = count == 1 and p.short_read_command_ns >= 0
            cost = p.short_read_command_ns if short else p.read_command_ns
            cost += count * p.read_page_ns
        elif op in (Op.WRITE, Op.WRITE_AREA):
            cost = p.write_command_ns + count * p.write_page_ns
        else:
            cost = p.other_command_ns
        self.counts["core_ns"] += cost
        if not self.cores:
            return time + cost
        free = min(self.cores)
        core = self.cores.index(free)
        self.cores[core] = max(time, free) + cost
        return self.cores[core]

    def prepare(self) -> None:  # noqa: B027 - a subclass may have something to compile
        """Nothing is compiled."""

    def fail_programs(self, count: int) -> None:
        """Raises FtlError."""
        raise FtlError("programs fail with the FTL page alone")

    def resize_cache(self, time: int, host: int) -> int:
        """Raises FtlError."""
        raise FtlError("only the FTL page has a cache of its mapping")

    def free_link(self) -> None:
        """See `Ftl`."""
        self.flash.free_link()

    def rest(self) -> None:
        """Let the drive become idle, and set its clock and counters to 0."""
        self.flash.rest()
        self.cores = [0] * len(self.cores)
        self.counts = dict.fromkeys(self.counts, 0)

    # Reports.

    @property
    def now(self) -> int:
        """Arrival of the last request; none may arrive before it."""
        return self.flash.now

    @property
    def counters(self) -> Counters:
        """Counters since the drive was at rest."""
        return Counters(**self.counts, **self.flash.counters)

    @property
    def wear(self) -> Wear:
        """The drive's wear for SMART."""
        erases = sum(self.flash.erases)
        found = wear(self.profile, erases, self.good, self.free_superblocks, self.worn)
        return found._replace(slc=len(self.flash.slc))

    @property
    def spread(self) -> Spread:
        """Erases of its superblocks."""
        return spread(np.array(self.flash.erases))

    @property
    def report(self) -> DriveReport:
        """Its wear, spare and load."""
        erases = np.array(self.flash.erases)
        return report(self.now, self.counters, self.mapped, self.wear, erases)

    # Hooks that fail.

    def answer(self, hook: str, found: object, numbers: Collection[int], what: str) -> int:
        """The answer of a hook, which has to be one of some numbers. Raises HookError."""
        if not isinstance(found, int | np.integer) or found not in numbers:
            text = shown(found) if isinstance(found, int) else f"{found!r:.40}"
            raise HookError(hook, f"answered {text}, which is {what}")
        return int(found)

    def _fall_back(self, error: BaseException) -> FtlError:
        """Have the method that a failed hook replaced take its place again; the error to report."""
        if isinstance(error, HookError):
            code, problem = getattr(self, error.hook).__code__, str(error)
        else:
            frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
            codes = [frame.f_code for frame in frames if frame.f_locals.get("self") is self]
            own = [code for code in codes if not code.co_qualname.startswith(_BUILT_IN)]
            hooks = [code for code in codes if code.co_name in HOOKS]
            code = [*codes, *own, *hooks[:1]][-1]
            problem = f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        hook = code.co_name
        for base in type(self).__mro__ if hook in HOOKS else ():
            if getattr(base.__dict__.get(hook), "__code__", None) is code:
                setattr(self, hook, getattr(super(base, self), hook, getattr(self, hook)))
        return FtlError(f"{Path(code.co_filename).name}: {code.co_qualname} {problem}")

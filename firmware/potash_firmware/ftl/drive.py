"""A modelled drive for whoever uses it: requests in, completion times out."""

import struct
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potash_device.flash.profile import Profile
from potash_device.flash.state import NEVER, SLC, rest
from potash_firmware.ftl.compiled import bound, run
from potash_firmware.ftl.hooks import NO_HINT, Hint
from potash_firmware.ftl.interface import FtlError, Upcalls
from potash_firmware.ftl.policies import Policies, PolicyError, Superblocks, name_of
from potash_firmware.ftl.report import DriveReport, Spread, Wear, counters, report, spread, wear
from potash_firmware.ftl.requests import (
    COLUMNS,
    FAILED,
    LATEST,
    REQUEST,
    Counters,
    Op,
    RequestError,
    StreamCounters,
    check,
    problem_of,
)
from potash_firmware.ftl.state import (
    ADMITTED,
    BEGUN,
    CACHED,
    CHECK,
    CURSOR,
    FAILING,
    FREE,
    GOOD,
    HAND,
    IS_CLOSED,
    LOADED,
    MOVED,
    QUEUED,
    STEP,
    TARGET,
    TRANSLATION,
    UNREADABLE,
    VICTIM,
    WORN_OUT,
    WRITTEN,
    DriveState,
    new_cache,
    new_state,
)
from potash_firmware.ftl.words import Batch, Words

_PACK = struct.Struct(f"{COLUMNS}q").pack_into
_NONE = np.empty(0, np.int64)
"""Requests in flight, if requests arrive at their own times."""
_OWN = ("_words", "_row", "_done", "_completion", "_single", "_served", "_serve_row")
"""Attributes of which a copy of a drive has its own."""


class Drive:
    """A drive, empty at first. Raises PolicyError where the allocation policy fails.

    `on_failure`, where it is set, is called with the error of a policy that fails later, which the
    built-in one of its kind then replaces.
    """

    hints = data = calls = False
    upcalls: Upcalls | None = None
    zones = True

    def __init__(self, profile: Profile, policies: Policies | None = None) -> None:
        self.profile = profile
        self.policies = policies or Policies()
        self.on_failure: Callable[[FtlError], None] | None = None
        order = self.policies.dies(profile.channels, profile.dies)
        self.state = new_state(profile, order)
        self._pages = profile.logical_pages
        self._begin()

    def _begin(self) -> None:
        """Make what `submit` hands to compiled code."""
        self._words: Words | None = None
        """The state for compiled code, once it was used."""
        row, self._done = np.zeros((1, COLUMNS), np.int64), np.zeros(1, np.int64)
        self._single = Words(Batch(row, self._done, _NONE))
        self._row, self._completion = row.data, self._done.data
        self._served = self._single.results
        self._serve_row: Callable[[int], int] | None = None

    def __getstate__(self) -> dict[str, object]:
        # A copy has arrays of its own.
        return {name: value for name, value in self.__dict__.items() if name not in _OWN}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__ |= values
        self._begin()

    @property
    def now(self) -> int:
        """Arrival of the last request; none may arrive before it."""
        return int(self.state.flash.now.item())

    @property
    def counters(self) -> Counters:
        return counters(self.state)

    @property
    def streams(self) -> list[StreamCounters]:
        """Counters of each stream, since the drive was at rest."""
        return [StreamCounters(*row) for row in self.state.stream_counters.tolist()]

    @property
    def report(self) -> DriveReport:
        """Its wear, spare and load."""
        state = self.state
        mapped = int((state.places[: self.profile.logical_pages] >= 0).sum())
        return report(self.now, self.counters, mapped, self.wear, state.flash.erases)

    @property
    def good(self) -> int:
        """Superblocks that are not retired."""
        return int(self.state.registers[GOOD])

    @property
    def wear(self) -> Wear:
        """The drive's wear for SMART; faster than `report`, as is `spread`."""
        registers, erases = self.state.registers, int(self.state.flash.erases.sum())
        found = wear(self.profile, erases, self.good, int(registers[FREE]), self.worn)
        bad = int(self.state.flash.bad.sum())
        slc = int((self.state.flash.mode == SLC).sum())
        return found._replace(slc=slc, grown_bad=bad)

    @property
    def spread(self) -> Spread:
        """Erases of its superblocks."""
        return spread(self.state.flash.erases)

    @property
    def superblocks(self) -> Superblocks:
        """The view for policies: a copy, which they cannot change."""
        state = self.state
        return Superblocks(
            state.valid.copy(),
            state.flash.erases.copy(),
            state.closed_at.copy(),
            self._candidates(),
            self.profile.superblock_pages,
        )

    def _candidates(self) -> NDArray[np.int64]:
        """The closed superblocks of the reclaim group that is written to, without the one that is
        being refreshed."""
        registers, numbers = self.state.registers, np.arange(self.profile.superblocks)
        closed = (self.state.status == IS_CLOSED) & (numbers != registers[MOVED])
        return np.flatnonzero(closed & (numbers % self.profile.reclaim_groups == registers[TARGET]))

    @property
    def unreadable(self) -> int:
        """A page that the last request could not read, or -1."""
        return int(self.state.registers[UNREADABLE])

    def fail_programs(self, count: int) -> None:
        """Have so many of the next programs fail, by each of which a superblock grows bad. Raises
        FtlError for a drive with reclaim groups."""
        if self.profile.reclaim_groups > 1:
            raise FtlError("programs of a drive with reclaim_groups do not fail")
        self.state.registers[FAILING] += count

    def age(self, duration: int) -> None:
        """Let the data of an idle drive become older by so many nanoseconds."""
        born = self.state.flash.born
        born[born != NEVER] -= duration

    @property
    def worn(self) -> bool:
        """True if so many superblocks are retired that the drive refuses writes."""
        return bool(self.state.registers[WORN_OUT])

    @property
    def zone_streams(self) -> Collection[int]:
        """The streams of zones that have superblocks."""
        zones: NDArray[np.int64] = self.state.zone
        first = self.profile.frontiers
        return set(zones[zones >= 0].tolist()) & set(range(first, first + self.profile.superblocks))

    def filled(self, stream: int) -> int:
        """Pages in the superblock that a stream fills; 0 where it has none open."""
        state = self.state
        return int(state.filled[stream]) if state.open[stream] >= 0 else 0

    def prepare(self) -> None:
        """Have the model compiled, which takes ten seconds the first time, so that the first
        request does not wait for that."""
        self.run(np.empty(0, REQUEST))

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
        """Completion of a request that arrives at `time` (nanoseconds); WORN if it is refused.
        Raises what `run` does."""
        plain = Op.READ <= op <= Op.WRITE and not stream
        inside = 0 <= first < first + count <= self._pages
        if not (plain and inside and self.now <= time <= LATEST) and (
            problem := problem_of(self.profile, self.now, time, op, first, count, stream)
        ):
            raise RequestError(f"request 0 {problem}")
        _PACK(self._row, 0, time, op, first, count, stream, fua)
        serve = self._serve_row
        if serve is None:
            serve = self._serve_row = bound(self._state_words(), self._single)
        if serve(0):
            raise RuntimeError("compiled code has failed")
        if not self._served[0]:
            self._serve_by_policies(self._state_words(), self._single, self._done, 0)
        return self._completion[0]

    def _state_words(self) -> Words:
        words = self._words
        if words is None:
            words = self._words = Words(self.state)
        return words

    def run(self, requests: NDArray[np.void]) -> NDArray[np.int64]:
        """Completions of the requests, an array of `REQUEST`: WORN if one is refused, FAILED if a
        policy failed for it, after which the rest are served nevertheless.

        Raises RequestError for requests that the drive cannot have, of which none is served; and
        without `on_failure` PolicyError where a policy fails, with those before served. The drive
        remains usable: what the failing request had written stays written.
        """
        check(self.profile, requests, self.now)
        completions = np.empty(len(requests), np.int64)
        self._serve(Words(Batch(_rows(requests), completions, _NONE)), completions)
        return completions

    def closed_loop(
        self, requests: NDArray[np.void], flying: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Run requests, each of which arrives when one in flight completes, as with fio.

        `flying` is a heap of their completion times, none before `now`; it is kept up to date, and
        the requests' times are set.
        """
        requests["time"] = self.now
        check(self.profile, requests, self.now)
        rows, completions = _rows(requests), np.empty(len(requests), np.int64)
        try:
            self._serve(Words(Batch(rows, completions, flying)), completions)
        finally:
            requests["time"] = rows[:, 0]
        return completions

    def _serve(self, batch: Words, completions: NDArray[np.int64]) -> None:
        words = self._state_words()
        index = run(words, batch)
        if index < len(completions):
            self._serve_by_policies(words, batch, completions, index)

    def _serve_by_policies(
        self, words: Words, batch: Words, completions: NDArray[np.int64], index: int
    ) -> None:
        """Go on with the request at `index`, which needs a victim."""
        registers = self.state.registers
        victims = 0
        at = None
        try:
            while index < len(completions):
                victims = victims + 1 if at == (index, registers[STEP]) else 0
                at = index, int(registers[STEP])
                try:
                    self._choose(victims)
                except PolicyError as error:
                    if self.on_failure is None:
                        raise
                    self.fall_back(error)
                    self.on_failure(
                        PolicyError(error.kind, f"{error}; the built-in policy replaces it")
                    )
                    completions[index] = FAILED
                    registers[BEGUN] = 0
                    index += 1
                index = run(words, batch, index)
        finally:
            registers[BEGUN] = 0

    def _choose(self, victims: int) -> None:
        """Choose the next superblock to relocate, after so many for the same page of a request."""
        if victims > 2 * self.profile.superblocks:
            raise PolicyError("gc", f"{name_of(self.policies.gc)} frees nothing")
        registers, superblocks = self.state.registers, self.superblocks
        if not superblocks.candidates.size:  # so many have grown bad that nothing is closed
            registers[WORN_OUT] = 1
            return
        registers[VICTIM] = self.policies.victim(superblocks, wear=not victims)
        registers[CURSOR] = 0

    def fall_back(self, error: PolicyError) -> None:
        """Go on with the built-in policy instead of the one that failed."""
        self.policies = self.policies.without(error.kind)

    def become(self, other: "Drive") -> None:
        """Have the state of another drive, of the same profile."""
        self._replace(other.state)

    def _replace(self, state: DriveState) -> None:
        """Have other arrays, to which compiled code is bound anew."""
        self.state, self._words, self._serve_row = state, None, None

    def resize_cache(self, time: int, host: int) -> int:
        """See `Ftl`."""
        # They run as Python, but their import is that of the compiler.
        from potash_firmware.ftl.frontiers import place
        from potash_firmware.ftl.page import make_room

        profile, s, r = self.profile, self.state, self.state.registers
        if not profile.mapping_cache:
            raise FtlError("the drive has its whole mapping in memory")
        s.flash.now[0] = end = time
        for number, _, dirty, _ in s.cached[: r[CACHED]].tolist():
            victims = 0
            while dirty and not make_room(s, time, profile.streams):
                try:
                    self._choose(victims)
                except PolicyError as error:
                    self.fall_back(error)
                victims += 1
            if dirty and not self.worn:
                page = profile.logical_pages + number
                end = max(end, int(place(s, profile.streams, page, time)))
                s.counters[TRANSLATION] += 1
        cached = new_cache(profile, profile.mapping_cache + host)
        self._replace(s._replace(cached=cached))
        s.cached_at[:] = -1
        r[[CACHED, HAND]] = 0
        return end

    def free_link(self) -> None:
        """See `Ftl`."""
        link = self.profile.channels
        self.state.flash.intervals[link : link + 2] = 0

    def rest(self) -> None:
        """Let the drive become idle and set its clock and counters to 0, as after preconditioning.

        What is on flash, in the write buffer and in the caches stays.
        """
        state = self.state
        rest(state.flash)
        state.programs[: state.registers[QUEUED]] = 0
        state.cached[:, LOADED] = state.read_cached[:, LOADED] = 0
        state.cores[:] = state.ready[:] = state.counters[:] = state.stream_counters[:] = 0
        state.registers[[WRITTEN, ADMITTED, CHECK]] = 0


def _rows(requests: NDArray[np.void]) -> NDArray[np.int64]:
    """The requests as rows of numbers, in the same memory if that is in one piece."""
    return np.ascontiguousarray(requests).view(np.int64).reshape(-1, COLUMNS)

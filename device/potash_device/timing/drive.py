"""A modelled drive for whoever uses it: requests in, completion times out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from potash_device.timing.engine import run
from potash_device.timing.policies import Policies, PolicyError, Superblocks, name_of
from potash_device.timing.profile import Profile
from potash_device.timing.requests import COLUMNS, REQUEST, Counters, Op, check
from potash_device.timing.state import (
    ADMITTED,
    BEGUN,
    CURSOR,
    IS_CLOSED,
    NEVER,
    NOW,
    QUEUED,
    STEP,
    VICTIM,
    WORN_OUT,
    WRITTEN,
    new_state,
)


class Drive:
    """A drive, empty at first. Raises PolicyError where the allocation policy fails."""

    def __init__(self, profile: Profile, policies: Policies | None = None) -> None:
        self.profile = profile
        self.policies = policies or Policies()
        order = self.policies.dies(profile.channels, profile.dies)
        self.state = new_state(profile, order)

    @property
    def counters(self) -> Counters:
        return Counters(*self.state.counters.tolist())

    @property
    def superblocks(self) -> Superblocks:
        """What policies see, copied, so that they cannot change it."""
        state = self.state
        return Superblocks(
            state.valid.copy(),
            state.erases.copy(),
            state.closed_at.copy(),
            np.flatnonzero(state.status == IS_CLOSED),
            self.profile.superblock_pages,
        )

    @property
    def worn(self) -> bool:
        """Whether so many superblocks are retired that the drive refuses writes."""
        return bool(self.state.registers[WORN_OUT])

    def submit(
        self, time: int, op: Op, first: int = 0, count: int = 0, stream: int = 0, fua: bool = False
    ) -> int:
        """When a request completes that arrives at `time` (nanoseconds); WORN if it is refused.

        Raises what `run` does.
        """
        request = np.array([(time, op, first, count, stream, fua)], REQUEST)
        return int(self.run(request)[0])

    def run(self, requests: NDArray[np.void]) -> NDArray[np.int64]:
        """When each of the requests, an array of `REQUEST`, completes; WORN where it is refused.

        Raises RequestError for requests that the drive cannot have, of which none is served; and
        PolicyError where a policy fails, with those before served.
        """
        registers = self.state.registers
        check(self.profile, requests, int(registers[NOW]))
        rows = np.ascontiguousarray(requests).view(np.int64).reshape(-1, COLUMNS)
        completions = np.empty(len(rows), np.int64)
        index = victims = 0
        at = None
        try:
            while (index := run(self.state, rows, completions, index)) < len(rows):
                victims = victims + 1 if at == (index, registers[STEP]) else 0
                at = index, int(registers[STEP])
                if victims > 2 * self.profile.blocks:
                    raise PolicyError(f"{name_of(self.policies.gc)} frees nothing")
                registers[VICTIM] = self.policies.victim(self.superblocks)
                registers[CURSOR] = 0
        finally:
            registers[BEGUN] = 0
        return completions

    def rest(self) -> None:
        """Let the drive become idle and set its clock and counters to 0, as after preconditioning.

        What is on flash, in the write buffer and in the cache of the mapping stays.
        """
        state = self.state
        for times in (state.erased, state.last, state.reads_done, state.cores, state.ready):
            times[:] = 0
        state.programmed[state.programmed != NEVER] = 0
        state.programs[: state.registers[QUEUED]] = 0
        state.cached[:, 1] = 0
        state.intervals[:] = state.counters[:] = 0
        state.registers[[NOW, WRITTEN, ADMITTED]] = 0

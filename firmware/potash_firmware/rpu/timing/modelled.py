"""The time of a modelled drive of flash: which requests it gets, and when they complete.

The model decides about time alone; data are where they always are. All namespaces share the drive,
each at pages of its own. Nanoseconds are those of guest time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvme_spec.status import NvmeError, Status
from potash_device.timing.policies import PolicyError
from potash_device.timing.profile import PAGE
from potash_device.timing.requests import FAILED, WORN, Op
from potash_firmware.rpu.timing.clock import GuestClock
from potash_firmware.rpu.timing.counts import Lateness

if TYPE_CHECKING:  # it takes numba, which a drive without a model has no use for
    from potash_device.timing.drive import Drive


@dataclass(frozen=True)
class TimeSettings:
    """A drive whose time is modelled."""

    drive: Drive
    factor: int = 1
    """By which every modelled time is multiplied."""


class ModelledTime:
    """The modelled time of one controller.

    `sizes` are the bytes of namespaces with blocks, by identifier, `lateness` how much later than
    their deadlines commands are completed. Raises ValueError for namespaces that the drive has no
    room for.
    """

    def __init__(
        self,
        settings: TimeSettings,
        sizes: Mapping[int, int],
        clock: GuestClock,
        lateness: Lateness,
    ) -> None:
        self.drive = settings.drive
        self.factor = settings.factor
        self.clock = clock
        self.lateness = lateness
        self._first: dict[int, int] = {}
        self._pages: dict[int, int] = {}
        self._failure: PolicyError | None = None
        self.drive.on_failure = self._policy_failed
        used = 0
        for nsid, size in sizes.items():
            self._first[nsid], self._pages[nsid] = used, -(-size // PAGE)
            used += self._pages[nsid]
        if used > self.drive.profile.logical_pages:
            raise ValueError(f"the modelled drive has no room for {used} pages of namespaces")

    def charge(
        self,
        nsid: int,
        op: Op,
        offset: int,
        length: int,
        at: int | None = None,
        *,
        fua: bool = False,
    ) -> int:
        """When a request for `length` bytes from `offset` of a namespace completes that comes `at`
        (default: now).

        Bytes are extended to pages, or for TRIM reduced to them. A request of the future is served
        as if it came now, and completes as much later. FLUSH is for all namespaces, whatever it
        names. Raises NvmeError where the drive is worn out, or a policy fails.
        """
        now = self.clock.now()
        at = now if at is None else at
        first, count = 0, 0
        if op is Op.TRIM:
            first = -(-offset // PAGE)
            count = (offset + length) // PAGE - first
            if count < 1:
                return at
        elif op is not Op.FLUSH:
            first = offset // PAGE
            count = -(-(offset + length) // PAGE) - first
        arrival = max(-(-min(at, now) // self.factor), self.drive.now)
        done = self.drive.submit(arrival, op, self._first.get(nsid, 0) + first, count, fua=fua)
        if done == WORN:
            raise NvmeError(Status.NAMESPACE_WRITE_PROTECTED, "the drive's flash is worn out")
        if done == FAILED:
            raise NvmeError(Status.INTERNAL_ERROR, str(self._failure), dnr=False)
        return done * self.factor + max(0, at - arrival * self.factor)

    def _policy_failed(self, error: PolicyError) -> None:
        self._failure = error

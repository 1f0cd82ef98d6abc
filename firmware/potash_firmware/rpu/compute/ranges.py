"""Memory range sets of one compute namespace, and the checks of ranges for programs.

Source: Computational Programs Command Set 1.1, as implementers have it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from nvme_spec.computational import MemoryRange
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.compute.engine import Shared, SharedRange
from potash_firmware.rpu.settings import ComputeSettings

RANGE_SHIFT = 12
"""MRSG: a range starts and ends on a page, so that a program's memory is mapped and not copied."""

Memory = Callable[[int], Shared | None]
"""The memory of an attached memory namespace that can be reached; None where there is none."""


@dataclass(eq=False, slots=True)
class RangeSet:
    """Ranges that a host has put together."""

    ranges: tuple[MemoryRange, ...]


class RangeSets:
    """The range sets of one namespace. `in_use` says whether an Execute command uses a set."""

    def __init__(
        self, limits: ComputeSettings, memory: Memory, in_use: Callable[[RangeSet], bool]
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._in_use = in_use
        self._sets: dict[int, RangeSet] = {}

    def create(self, ranges: Sequence[MemoryRange]) -> int:
        """A new set; its RSID. Raises NvmeError."""
        self.check_count(len(ranges))
        if len(self._sets) >= self._limits.range_sets:
            raise NvmeError(
                Status.MAXIMUM_MEMORY_RANGE_SETS_EXCEEDED,
                detail=f"there are {len(self._sets)} memory range sets",
            )
        self.resolve(ranges)
        rsid = next(number for number in count(1) if number not in self._sets)
        self._sets[rsid] = RangeSet(tuple(ranges))
        return rsid

    def delete(self, rsid: int) -> None:
        """Forget a set. Raises NvmeError."""
        if self._in_use(self.get(rsid)):
            raise NvmeError(
                Status.MEMORY_RANGE_SET_IN_USE,
                dnr=False,
                detail=f"memory range set {rsid} is in use",
            )
        del self._sets[rsid]

    def get(self, rsid: int) -> RangeSet:
        """A set by its identifier. Raises NvmeError."""
        found = self._sets.get(rsid)
        if found is None:
            raise NvmeError(
                Status.INVALID_MEMORY_RANGE_SET_IDENTIFIER,
                detail=f"there is no memory range set {rsid}",
            )
        return found

    def clear(self) -> None:
        self._sets.clear()

    def describe(self, rsid: int = 0) -> dict[int, tuple[MemoryRange, ...]]:
        """The ranges of all sets, or of one, by RSID. Raises NvmeError."""
        if rsid:
            return {rsid: self.get(rsid).ranges}
        return {number: self._sets[number].ranges for number in sorted(self._sets)}

    def load(self, sets: Mapping[int, tuple[MemoryRange, ...]]) -> None:
        """Have these sets and no others. Raises NvmeError for what nobody can have created."""
        for ranges in sets.values():
            self.check_count(len(ranges))
            self.resolve(ranges)
        self._sets = {rsid: RangeSet(ranges) for rsid, ranges in sets.items()}

    def check_count(self, number: int) -> None:
        """Raise NvmeError for a set of that many ranges, which nobody can have."""
        if not 1 <= number <= self._limits.ranges:
            raise NvmeError(
                Status.MAXIMUM_MEMORY_RANGES_EXCEEDED,
                detail=f"a set has 1 to {self._limits.ranges} ranges, not {number}",
            )

    def resolve(self, ranges: Iterable[MemoryRange]) -> tuple[SharedRange, ...]:
        """The memory that ranges are of, as things are now. Raises NvmeError."""
        found = tuple(self._resolve(area) for area in ranges)
        ordered = sorted((area.memory.handle, area.offset, area.length) for area in found)
        for (handle, offset, length), (after, start, _) in pairwise(ordered):
            if handle == after and start < offset + length:
                raise NvmeError(
                    Status.OVERLAPPING_MEMORY_RANGES, detail="two ranges of one set overlap"
                )
        return found

    def _resolve(self, area: MemoryRange) -> SharedRange:
        memory = self._memory(area.nsid)
        if memory is None:
            raise NvmeError(
                Status.INVALID_MEMORY_NAMESPACE,
                detail=f"namespace {area.nsid:#x} is no memory that can be reached",
            )
        if not area.length or (area.start | area.length) % (1 << RANGE_SHIFT):
            raise NvmeError(
                Status.INVALID_MEMORY_RANGE_SET,
                detail=f"a range starts and ends at multiples of {1 << RANGE_SHIFT} bytes",
            )
        if area.start + area.length > memory.length:
            raise NvmeError(
                Status.INVALID_MEMORY_RANGE_SET,
                detail=f"a range leaves the {memory.length} bytes of namespace {area.nsid}",
            )
        return SharedRange(memory, area.start, area.length)

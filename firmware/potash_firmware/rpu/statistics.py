"""Counters of a controller since its power-on, for the status socket.

Nothing here is seen by a host, whose own counters are the health log's.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.key_value import KeyValueOpcode
from nvme_spec.memory_commands import MemoryOpcode
from nvme_spec.opcodes import IoOpcode

BOUNDS: tuple[int, ...] = tuple(digit * 10**power for power in range(3, 9) for digit in (1, 2, 5))
"""Upper bounds of the buckets in nanoseconds: 1 µs to 500 ms."""


class Histogram:
    """A histogram of nanoseconds."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        """Times that were at most each of `BOUNDS`, but above the one before; the last ones were
        above all."""
        self.total = 0
        self.largest: int = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, time: int, count: int = 1) -> None:
        """`count` times of as many nanoseconds."""
        self.buckets[bisect_left(BOUNDS, time)] += count
        self.total += time * count
        if time > self.largest:  # noqa: PLR1730 - `max` takes 0.1 µs, for each command
            self.largest = time

    def add_all(self, times: list[int]) -> None:
        """Times, at least one, in nanoseconds."""
        buckets = self.buckets
        for time in times:
            buckets[bisect_left(BOUNDS, time)] += 1
        self.total += sum(times)
        self.largest = max(self.largest, *times)

    def percentile(self, share: float) -> int:
        """Nanoseconds that this share of times, 0 to 1, is not above, as an upper bound; 0 where
        there are none."""
        target, found = share * self.count, 0
        for bound, count in zip(BOUNDS, self.buckets, strict=False):
            found += count
            if found >= target:
                return min(bound, self.largest)
        return self.largest


_BLOCKS = (int(IoOpcode.READ), int(IoOpcode.WRITE))
_READ_AND_WRITE = {
    int(CommandSet.NVM): _BLOCKS,
    int(CommandSet.ZONED): _BLOCKS,
    int(CommandSet.KEY_VALUE): (int(KeyValueOpcode.RETRIEVE), int(KeyValueOpcode.STORE)),
    int(CommandSet.MEMORY): (int(MemoryOpcode.MEMORY_READ), int(MemoryOpcode.MEMORY_WRITE)),
}
"""The opcodes of the commands that read and write, by command set."""


class Statistics:
    def __init__(self) -> None:
        self.commands: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        """Commands that were fetched, by queue, command set and opcode."""
        self.errors: defaultdict[int, int] = defaultdict(int)
        """Commands that ended with an error, by status (SCT << 8 | SC)."""
        self.reads = Histogram()
        self.writes = Histogram()
        self.others = Histogram()
        """Times from the fetch of I/O commands to their completion, as the guest sees them: of Read
        and Write, whatever the command set, and of all others."""
        self.moved = 0
        """Bytes that commands copied, and jobs wrote, inside the drive."""
        self.read_by_jobs: Callable[[], int] = lambda: 0
        """Bytes that jobs read from local storage."""
        self.uncounted = 0
        """Admin commands that the log page on traffic leaves out: its own reads, and those that
        only advance the clock."""
        self.resets = 0
        """Ends of a host's session, whatever the kind of reset."""

    def fetched(self, qid: int, csi: int, reads: int, writes: int) -> None:
        """Reads and writes that were fetched together, each of which ends at a time of its own."""
        read, write = _READ_AND_WRITE[csi]
        if reads:
            self.commands[qid, csi, read] += reads
        if writes:
            self.commands[qid, csi, write] += writes

    def executed(self, qid: int, csi: int, reads: int, writes: int, nanoseconds: int) -> None:
        """Reads and writes that were fetched together, and have ended together so much later."""
        read, write = _READ_AND_WRITE[csi]
        if reads:
            self.commands[qid, csi, read] += reads
            self.reads.add(nanoseconds, reads)
        if writes:
            self.commands[qid, csi, write] += writes
            self.writes.add(nanoseconds, writes)

    def ended(self, csi: int, opcode: int, nanoseconds: int) -> None:
        """An I/O command has ended so long after its fetch."""
        read, write = _READ_AND_WRITE.get(csi, (None, None))
        kind = self.reads if opcode == read else self.writes if opcode == write else self.others
        kind.add(nanoseconds)

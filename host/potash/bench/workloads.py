"""The loads that a drive is measured with."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True)
class Workload:
    """What each processor does to the drive: `mode` is fio's `rw`, `depth` commands at a time."""

    name: str
    mode: str
    block: int
    depth: int

    @property
    def random(self) -> bool:
        return self.mode.startswith("rand")

    @property
    def reads(self) -> bool:
        return self.mode.endswith("read")


WORKLOADS = (
    Workload("randread-4k-qd1", "randread", 4 * KIB, 1),
    Workload("randread-4k-qd32", "randread", 4 * KIB, 32),
    Workload("randwrite-4k-qd1", "randwrite", 4 * KIB, 1),
    Workload("randwrite-4k-qd32", "randwrite", 4 * KIB, 32),
    Workload("seqread-128k-qd8", "read", 128 * KIB, 8),
    Workload("seqwrite-128k-qd8", "write", 128 * KIB, 8),
)

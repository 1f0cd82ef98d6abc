"""Media and loads for benchmarks of drives."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from potash.sdk.errors import restated

FOLDER = Path("/dev/shm")
"""A file system in memory: what is compared are the devices, not a disk."""
SIZE = 64 << 20
"""Bytes of each drive."""


def random_bytes() -> bytes:
    """The contents of a drive."""
    return os.urandom(1 << 20) * (SIZE >> 20)


@contextlib.contextmanager
def filled(*names: str) -> Iterator[Path]:
    """A folder with these files in it, for as long as the block lasts. Raises PotashError where
    there is no room for them."""
    with contextlib.ExitStack() as stack:
        with restated(OSError, f"the drives have no room in {FOLDER}"):
            named = tempfile.TemporaryDirectory(prefix="potash-bench-", dir=FOLDER)
            folder = Path(stack.enter_context(named))
            for name in names:
                (folder / name).write_bytes(random_bytes())
        yield folder


class Workload(NamedTuple):
    """The load of each processor on the drive: `mode` is fio's `rw`, `depth` its queue depth."""

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
    Workload("randread-4k-qd1", "randread", 4 << 10, 1),
    Workload("randread-4k-qd32", "randread", 4 << 10, 32),
    Workload("randwrite-4k-qd1", "randwrite", 4 << 10, 1),
    Workload("randwrite-4k-qd32", "randwrite", 4 << 10, 32),
    Workload("seqread-128k-qd8", "read", 128 << 10, 8),
    Workload("seqwrite-128k-qd8", "write", 128 << 10, 8),
)

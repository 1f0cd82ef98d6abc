"""Data sets that are spread over drives, and what comes of jobs on their shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from potash.fleet.directory import File
from potash.sdk.errors import PotashError


@dataclass(frozen=True)
class Dataset:
    """A list of files that are spread over drives: for each its drive, in the order of shards.

    `missing` has the shards, from 0 on, that no drive has which is served.
    """

    name: str
    shards: Sequence[tuple[str, File]]
    missing: Sequence[int]

    @property
    def held(self) -> int:
        """Bytes of all shards that are there."""
        return sum(file.size for _, file in self.shards)


@dataclass(frozen=True)
class Result:
    """What came of one shard: its output, or the `error`. `moved` counts the bytes of program,
    arguments and output between worker and drive.

    `drive` and `held`, its bytes, are unknown of one that was `missing` from the start.
    """

    name: str
    shard: int
    drive: str | None = None
    held: int | None = None
    output: bytes = b""
    produced: int = 0
    return_value: int | None = None
    printed: Sequence[str] = ()
    seconds: float = 0.0
    moved: int = 0
    worker: str | None = None
    error: str = ""
    missing: bool = False


@dataclass
class Totals:
    """The sum of some results: shards by what came of them, and bytes."""

    done: int = 0
    failed: int = 0
    missing: int = 0
    held: int = 0
    moved: int = 0

    def add(self, result: Result) -> None:
        """Count one more."""
        self.missing += result.missing
        self.failed += bool(result.error) and not result.missing
        self.done += not result.error
        self.held += result.held or 0
        self.moved += result.moved

    @property
    def shards(self) -> int:
        """All of them."""
        return self.done + self.failed + self.missing


def dataset_of(name: str, files: Iterable[tuple[str, File]]) -> Dataset:
    """The files of a data set among those of all drives. Raises PotashError."""
    shards = sorted(
        ((drive, file) for drive, file in files if file.dataset == name),
        key=lambda one: one[1].shard,
    )
    if not shards:
        raise PotashError(f"no drive that is served has a data set {name!r}")
    there = [file.shard for _, file in shards]
    counts = {file.of for _, file in shards}
    if len(counts) > 1 or len(set(there)) < len(there):
        raise PotashError(
            f"the drives have parts of two data sets {name!r}, as a drive was not there when one"
            " was removed; remove it, and put it again"
        )
    return Dataset(name, shards, sorted(set(range(counts.pop())) - set(there)))


def missing(dataset: Dataset, index: int) -> Result:
    """What came of a shard that no drive has."""
    error = f"no drive that is served has shard {index} of {dataset.name}"
    return Result(f"{dataset.name}/?", index, error=error, missing=True)


def numbered(indices: Sequence[int], most: int = 10) -> str:
    """Numbers of shards, not too many."""
    said = ", ".join(map(str, indices[:most]))
    return said if len(indices) <= most else f"{said} and {len(indices) - most} more"

"""Data sets that are spread over drives, and the results of jobs on their shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from csd_spec.reporting import Amount, Count, Key, Signed64
from csd_spec.traffic import TrafficLog
from potash.fleet.directory import File
from potash.sdk.errors import PotashError


class Dataset(NamedTuple):
    """A data set: files that are spread over drives."""

    name: Annotated[str, "The data set's name."]
    shards: Sequence[tuple[str, File]]
    """Its files, in the order of shards, each with its drive."""
    missing: Annotated[Sequence[int], "Numbers, from 0 on, of the files that no served drive has."]

    @property
    def files(self) -> Annotated[Count, Key("shards", before="missing")]:
        """Number of its files on drives that are served."""
        return len(self.shards)

    @property
    def held(self) -> Annotated[Count, Key(before="missing")]:
        """Size of these files in bytes."""
        return sum(file.size for _, file in self.shards)


class Result(NamedTuple):
    """The result of a program on one file of a data set."""

    name: Annotated[str, "The file's name; ends in ? if it was missing from the start."]
    shard: Annotated[Count, "Number of the shard in the data set, from 0 on."]
    drive: Annotated[str | None, "The drive that has it; null if unknown."] = None
    worker: Annotated[str | None, "Address of the worker that ran the job; null if none did."] = (
        None
    )
    held: Annotated[Count | None, "Size of the file in bytes; null if unknown."] = None
    output: bytes = b""
    produced: Annotated[Count, "Number of output bytes."] = 0
    moved: Annotated[Count, "Bytes of program, arguments and output to and from the drive."] = 0
    return_value: Annotated[
        Signed64 | None, "The program's return value; null if there is none."
    ] = None
    printed: Annotated[Sequence[str], "Lines that the program printed."] = ()
    seconds: Annotated[Amount, "Duration of the job in seconds, as its worker has seen it."] = 0.0
    error: Annotated[str, "The reason if there is no result; otherwise empty."] = ""
    missing: Annotated[bool, "True if the reason is that the drive is not served."] = False
    modelled_ns: Annotated[
        Count | None, "Modelled duration of the job in ns; null if time is not modelled."
    ] = None
    traffic: Annotated[
        TrafficLog | None,
        "Data that the drive moved meanwhile, and the times; null without a result.",
    ] = None


@dataclass
class Totals:
    """The sum of some results: shards by outcome, and bytes."""

    done: Annotated[Count, "Number of shards with a result."] = 0
    failed: Annotated[Count, "Number of shards whose job failed."] = 0
    missing: Annotated[Count, "Number of shards whose drive is not served."] = 0
    held: Annotated[Count, "Size of all shards that are known, in bytes."] = 0
    moved: Annotated[Count, "Bytes of program, arguments and outputs to and from all drives."] = 0

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
    """The result of a shard that no drive has."""
    error = f"no drive that is served has shard {index} of {dataset.name}"
    return Result(f"{dataset.name}/?", index, error=error, missing=True)


def numbered(indices: Sequence[int], most: int = 10) -> str:
    """Numbers of shards, not too many."""
    said = ", ".join(map(str, indices[:most]))
    return said if len(indices) <= most else f"{said} and {len(indices) - most} more"

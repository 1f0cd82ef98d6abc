"""What `potash fleet` reports as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from potash.cli.drive.reports import ReturnValue
from potash.schema import Amount, Count


@dataclass(frozen=True)
class FleetDrive:
    """A drive of a fleet."""

    name: Annotated[str, "The drive's name."]
    worker: Annotated[str | None, "Address of the worker that serves it; null if none does."]
    reason: Annotated[str, "Why it is not served; empty if it is."]
    files: Annotated[Count | None, "Number of files on it; null if it is not served."]
    held: Annotated[Count | None, "Size of these files in bytes."]
    room: Annotated[Count | None, "Size of the largest file that it has room for, in bytes."]


@dataclass(frozen=True)
class FleetDataset:
    """A data set: files that are spread over drives."""

    name: Annotated[str, "The data set's name."]
    shards: Annotated[Count, "Number of its files on drives that are served."]
    held: Annotated[Count, "Size of these files in bytes."]
    missing: Annotated[Sequence[int], "Numbers, from 0 on, of the files that no served drive has."]


@dataclass(frozen=True)
class FleetStatus:
    """The drives and data sets of a fleet."""

    scheduler: Annotated[str | None, "Address of the Dask scheduler; null without one."]
    drives: Annotated[Sequence[FleetDrive], "All drives."]
    datasets: Annotated[Sequence[FleetDataset], "All data sets, by name."]


@dataclass(frozen=True)
class FleetShard:
    """The result of a program on one file of a data set."""

    name: Annotated[str, "The file's name; ends in ? if it was missing from the start."]
    shard: Annotated[Count, "Its number in the data set, from 0 on."]
    drive: Annotated[str | None, "The drive that has it; null if unknown."]
    worker: Annotated[str | None, "Address of the worker that ran the job; null if none did."]
    held: Annotated[Count | None, "Size of the file in bytes; null if unknown."]
    produced: Annotated[Count, "Number of output bytes."]
    moved: Annotated[Count, "Bytes of program, arguments and output to and from the drive."]
    return_value: Annotated[ReturnValue | None, "What the program returned; null if it did not."]
    printed: Annotated[Sequence[str], "Lines that the program printed."]
    seconds: Annotated[Amount, "Duration of the job in seconds, as its worker has seen it."]
    error: Annotated[str, "Why there is no result; empty if there is one."]
    missing: Annotated[bool, "Whether the reason is that the drive is not served."]


@dataclass(frozen=True)
class FleetMapped:
    """The results of a program on a data set."""

    dataset: Annotated[str, "The data set."]
    done: Annotated[Count, "Number of shards with a result."]
    failed: Annotated[Count, "Number of shards whose job failed."]
    missing: Annotated[Count, "Number of shards whose drive is not served."]
    held: Annotated[Count, "Size of all shards that are known, in bytes."]
    moved: Annotated[Count, "Bytes of program, arguments and outputs to and from all drives."]
    moves: Annotated[Count, "How often a drive has come back on another worker meanwhile."]
    seconds: Annotated[Amount, "Duration in seconds, without the start of the drives."]
    shards: Annotated[Sequence[FleetShard], "One for each shard, in the order of shards."]


@dataclass(frozen=True)
class FleetCopied:
    """Files that were copied to the drives of a fleet, from them, or were removed."""

    dataset: Annotated[str, "The data set."]
    files: Annotated[Count, "Number of files."]
    size: Annotated[Count | None, "Their size in bytes; null for files that were removed."]

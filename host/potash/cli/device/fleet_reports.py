"""What `potash fleet` reports as JSON."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from potash.fleet import Dataset, Result, Totals
from potash.schema import INLINE, Amount, Count, Form


class FleetDrive(NamedTuple):
    """A drive of a fleet."""

    name: Annotated[str, "The drive's name."]
    worker: Annotated[str | None, "Address of the worker that serves it; null if none does."]
    reason: Annotated[str, "Why it is not served; empty if it is."]
    files: Annotated[Count | None, "Number of files on it; null if it is not served."]
    held: Annotated[Count | None, "Size of these files in bytes."]
    room: Annotated[Count | None, "Size of the largest file that it has room for, in bytes."]


class FleetStatus(NamedTuple):
    """The drives and data sets of a fleet."""

    scheduler: Annotated[str | None, "Address of the Dask scheduler; null without one."]
    drives: Annotated[Sequence[FleetDrive], "All drives."]
    datasets: Annotated[
        Sequence[Annotated[Dataset, Form(title="FleetDataset")]], "All data sets, by name."
    ]


class FleetMapped(NamedTuple):
    """The results of a program on a data set."""

    dataset: Annotated[str, "The data set."]
    totals: Annotated[Totals, INLINE]
    moves: Annotated[Count, "How often a drive has come back on another worker meanwhile."]
    seconds: Annotated[Amount, "Duration in seconds, without the start of the drives."]
    shards: Annotated[
        Sequence[Annotated[Result, Form(title="FleetShard")]],
        "One for each shard, in the order of shards.",
    ]


class FleetCopied(NamedTuple):
    """Files that were copied to the drives of a fleet, from them, or were removed."""

    dataset: Annotated[str, "The data set."]
    files: Annotated[Count, "Number of files."]
    size: Annotated[Count | None, "Their size in bytes; null for files that were removed."]

"""What `potash drive` reports as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from potash.schema import Amount, Count, Form, Positive


@dataclass(frozen=True)
class DriveInfo:
    """A modelled drive."""

    profile: Annotated[str, "Name or file of its profile."]
    profiles: Annotated[Sequence[str], "The built-in profiles."]
    capacity: Annotated[Positive, "Capacity for the host in bytes."]
    spare: Annotated[float, "Spare flash as a share of the capacity."]
    dies: Annotated[Positive, "Number of dies of all channels."]
    superblocks: Annotated[
        Positive, "Number of superblocks, which is that of the blocks of a plane."
    ]
    superblock: Annotated[Positive, "Size of a superblock in bytes."]
    program_unit: Annotated[Positive, "Bytes that a die programs at once."]
    idle_read_us: Annotated[
        Sequence[float], "Latency of a 4 KiB read of the idle drive in microseconds, by page type."
    ]
    idle_write_us: Annotated[Amount, "Latency of a 4 KiB write of the idle drive in microseconds."]


@dataclass(frozen=True)
class DriveLatency:
    """Latencies of reads, or of writes, in microseconds."""

    kind: Annotated[str, Form(enum=["read", "write"]), "Reads or writes."]
    requests: Annotated[Positive, "Number of requests."]
    bytes: Annotated[Positive, "Bytes transferred, in whole pages of 4 KiB."]
    mean_us: Annotated[Amount, "The mean."]
    p50_us: Annotated[Amount, "The median."]
    p99_us: Annotated[Amount, "The 99th percentile."]
    p999_us: Annotated[Amount, "The 99.9th percentile."]
    max_us: Annotated[Amount, "The maximum."]


@dataclass(frozen=True)
class DrivePreconditioned:
    """A modelled drive that was written to and saved."""

    output: Annotated[str, "The drive's file."]
    mapped: Annotated[Count, "Mapped bytes, including translation pages."]
    erases: Annotated[Count, "Number of superblocks erased."]


@dataclass(frozen=True)
class DriveSimulated:
    """The result of a trace on a modelled drive."""

    profile: Annotated[str, "Name or file of the drive's profile."]
    requests: Annotated[Positive, "Number of requests of the trace."]
    refused: Annotated[Count, "Number of writes that were refused because the drive was worn out."]
    modelled_seconds: Annotated[
        Amount, "Modelled seconds from the first arrival to the last completion."
    ]
    latencies: Annotated[Sequence[DriveLatency], "Reads, then writes, if there were any."]
    write_amplification: Annotated[Amount, "Pages programmed per page that the host wrote."]
    counters: Annotated[
        Mapping[str, int],
        "Pages of 4 KiB that the host wrote (`host`), relocated pages, translation pages written, "
        "and padding; reads of rows (`senses`), programs, suspensions, erased superblocks; hits "
        "and misses of the mapping's cache; total busy time of dies, buses and the link's "
        "directions in nanoseconds.",
    ]
    dies_busy: Annotated[
        Amount, "Mean share of the modelled time in which dies were busy; above 1 if work remained."
    ]
    buses_busy: Annotated[Amount, "The same for channels."]
    link_busy: Annotated[Amount, "The same for the link's two directions."]

"""What `potash drive` reports as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from potash.schema import Amount, Count, Form, Positive


@dataclass(frozen=True)
class DriveInfo:
    """A modelled drive."""

    profile: Annotated[str, "Its profile: a name, or a file."]
    profiles: Annotated[Sequence[str], "The built-in profiles."]
    capacity: Annotated[Positive, "Bytes that the host sees."]
    spare: Annotated[float, "Bytes of flash beyond it, as a share of it."]
    dies: Annotated[Positive, "Of all channels."]
    superblocks: Annotated[Positive, "How many there are: the blocks of a plane."]
    superblock: Annotated[Positive, "Bytes of each."]
    program_unit: Annotated[Positive, "Bytes that a die programs at once."]
    idle_read_us: Annotated[
        Sequence[float], "A read of 4 KiB on the idle drive, in microseconds, by type of page."
    ]
    idle_write_us: Annotated[Amount, "A write of 4 KiB likewise."]


@dataclass(frozen=True)
class DriveLatency:
    """Latencies of reads, or of writes, in microseconds."""

    kind: Annotated[str, Form(enum=["read", "write"]), "Which."]
    requests: Annotated[Positive, "How many there were."]
    bytes: Annotated[Positive, "What they moved, in whole pages of 4 KiB."]
    mean_us: Annotated[Amount, "Their mean."]
    p50_us: Annotated[Amount, "Their median."]
    p99_us: Annotated[Amount, "The 99th percentile."]
    p999_us: Annotated[Amount, "The 99.9th percentile."]
    max_us: Annotated[Amount, "The longest."]


@dataclass(frozen=True)
class DrivePreconditioned:
    """A modelled drive that was written on and kept."""

    output: Annotated[str, "The file."]
    mapped: Annotated[Count, "Bytes that are mapped, translation pages among them."]
    erases: Annotated[Count, "Of superblocks, so far."]


@dataclass(frozen=True)
class DriveSimulated:
    """A trace that was run against a modelled drive."""

    profile: Annotated[str, "The drive's profile: a name, or a file."]
    requests: Annotated[Positive, "Of the trace."]
    refused: Annotated[Count, "Writes that a drive at its end of life refused."]
    modelled_seconds: Annotated[Amount, "From the first arrival to the last completion."]
    latencies: Annotated[Sequence[DriveLatency], "Reads, then writes, where there were any."]
    write_amplification: Annotated[Amount, "Pages programmed for each that the host wrote."]
    counters: Annotated[
        Mapping[str, int],
        "Pages of 4 KiB that the host wrote (`host`), that were relocated, translation pages that "
        "were written, and padding; reads of rows (`senses`), programs, suspensions, superblocks "
        "erased; hits and misses of the mapping's cache; nanoseconds that dies, buses and the "
        "link's directions were busy, each together.",
    ]
    dies_busy: Annotated[Amount, "Share of that time, on average; above 1 where work is left over."]
    buses_busy: Annotated[Amount, "Likewise, of the channels."]
    link_busy: Annotated[Amount, "Likewise, of the link's two directions."]

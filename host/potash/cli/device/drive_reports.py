"""Types of the JSON reports of `potash drive`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from csd_spec.reporting import INLINE, Amount, Count, Form, Positive, Share
from potash.timing.steady import Percentiles, Window
from potash_firmware.ftl.report import DriveReport


class DriveInfo(NamedTuple):
    """A modelled drive."""

    profile: Annotated[str, "Name or file of the drive's profile."]
    profiles: Annotated[Sequence[str], "The built-in profiles."]
    capacity: Annotated[Positive, "Capacity for the host in bytes."]
    spare: Annotated[float, "Spare flash as a share of the capacity."]
    dies: Annotated[Positive, "Number of dies of all channels."]
    superblocks: Annotated[
        Positive,
        "Number of superblocks: of each group, as many as a plane has good blocks.",
    ]
    superblock: Annotated[Positive, "Size of a superblock in bytes."]
    program_unit: Annotated[Positive, "Bytes that a die programs in one operation."]
    idle_read_us: Annotated[
        Sequence[float], "Latency of a 4 KiB read of the idle drive in microseconds, by page type."
    ]
    idle_write_us: Annotated[Amount, "Latency of a 4 KiB write of the idle drive in microseconds."]
    slc: Annotated[Count, "Maximum number of superblocks in SLC mode, which are no spare."]


class DriveLatency(NamedTuple):
    """Latencies of reads, or of writes, in microseconds."""

    kind: Annotated[str, Form(enum=["read", "write"]), "Reads or writes."]
    requests: Annotated[Positive, "Number of requests."]
    bytes: Annotated[Positive, "Bytes transferred, in whole pages of 4 KiB."]
    mean_us: Annotated[Amount, "The mean."]
    percentiles: Annotated[Percentiles, INLINE]
    max_us: Annotated[Amount, "The maximum."]


class DrivePreconditioned(NamedTuple):
    """A modelled drive that was written to and saved."""

    output: Annotated[str, "The drive's file."]
    mapped: Annotated[Count, "Mapped bytes, including translation pages."]
    erases: Annotated[Count, "Number of superblocks erased."]


Wear = Annotated[
    DriveReport, Form(title="Wear", description="Wear of a modelled drive."), "The drive's wear."
]
WearAtEnd = Annotated[Wear, "The drive's wear at the end."]


class DriveWorn(NamedTuple):
    """Wear of a modelled drive, and the writes that caused it."""

    profile: Annotated[str, "Name or file of the drive's profile."]
    written: Annotated[Count, "Bytes that `--overwrite` wrote, or else `--fill`."]
    write_amplification: Annotated[
        Amount, "Pages programmed per page of these; 0 if there were none."
    ]
    endurance: Annotated[
        Count | None,
        "Bytes that the host can write until the average superblock has all its erases, at that "
        "write amplification; null if the profile has no limit or nothing was written.",
    ]
    wear: Wear


class DrivePlotted(NamedTuple):
    """The way of a modelled drive to its steady state."""

    output: Annotated[str | None, "The SVG file; null without --output."]
    profile: Annotated[str, "Name or file of the drive's profile."]
    windows: Annotated[Sequence[Window], "The requests in parts of equal number."]
    wear: WearAtEnd


class DriveVariant(NamedTuple):
    """A modelled drive among those that are compared."""

    profile: Annotated[str, "Name or file of the drive's profile."]
    ftl: Annotated[str, "Its flash translation layer."]
    policies: Annotated[Sequence[str], "Its policies, each as KIND=POLICY."]
    windows: Annotated[Sequence[Window], "The requests in parts of equal number."]
    wear: WearAtEnd


class DriveCompared(NamedTuple):
    """Modelled drives on their way to the steady state, with the same requests."""

    output: Annotated[str | None, "The SVG file; null without --output."]
    variants: Annotated[Sequence[DriveVariant], "The drives."]


class DriveSimulated(NamedTuple):
    """The result of a trace on a modelled drive."""

    profile: Annotated[str, "Name or file of the drive's profile."]
    form: Annotated[str, "Format of the trace."]
    requests: Annotated[Positive, "Number of requests of the drive."]
    folded: Annotated[
        Count, "Number of requests beyond the drive's end, which begin again at its start."
    ]
    split: Annotated[Count, "Number of requests across the drive's end, which are two."]
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
        "directions in nanoseconds; read retries, and uncorrectable reads of rows; those of the "
        "relocated pages that were in the SLC cache (`folded`), and that were old or read often "
        "(`refreshed`); pages that could not be read when they were relocated (`lost`); hits "
        "and misses of the read cache; pages relocated within their dies (`copied`); those of the "
        "programs that were in SLC mode (`slc_programs`); pages written to random write "
        "areas of zones (`area_writes`), and programmed from there (`commits`).",
    ]
    dies_busy: Annotated[
        Amount, "Mean busy share of the dies, of the modelled time; above 1 if work remained."
    ]
    buses_busy: Annotated[Amount, "Mean busy share of the channels."]
    link_busy: Annotated[Amount, "Mean busy share of the link's two directions."]
    cores_busy: Annotated[Amount, "Mean busy share of the firmware cores."]
    cache_hits: Annotated[
        Share, "Hit rate of the mapping's cache; 1 if the whole mapping is in memory."
    ]
    wear: WearAtEnd


class DriveJobs(NamedTuple):
    """Files of fio's jobs to measure a drive."""

    files: Annotated[Sequence[str], "The files."]


class FittedNumber(NamedTuple):
    """A number of the fitted profile."""

    name: Annotated[str, "The key in the profile."]
    value: Annotated[Sequence[int], "Its value; several for lists, and bytes and ns of a rate."]
    base: Annotated[Sequence[int], "The same in the base profile."]
    shown: Annotated[bool, "True if measurements show it, false if it was taken from the base."]


class FittedLatency(NamedTuple):
    """A percentile of a job."""

    measured_us: Annotated[Amount, "Measured, in microseconds."]
    modelled_us: Annotated[Amount, "Modelled, in microseconds."]
    error: Annotated[float, "Difference as a part of the measured latency."]


class FittedJob(NamedTuple):
    """Reads, or writes, of a job as measured and as modelled."""

    job: Annotated[str, "Name of the job."]
    kind: Annotated[str, Form(enum=["read", "write"]), "Reads or writes."]
    p50: Annotated[FittedLatency, "The median."]
    p99: Annotated[FittedLatency, "The 99th percentile."]


class DriveFitted(NamedTuple):
    """The profile of a drive that was measured."""

    output: Annotated[str | None, "The profile's file; null without --output."]
    picture: Annotated[str | None, "The SVG file; null without --picture."]
    base: Annotated[str, "The profile that it changes."]
    numbers: Annotated[Sequence[FittedNumber], "Numbers that were fitted, or could have been."]
    jobs: Annotated[Sequence[FittedJob], "Latencies of all jobs."]

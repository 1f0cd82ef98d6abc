"""The snapshot that a running device gives of its counters; `status` fills it.

The types are declared here only: JSON, its schema, `potash top` and Prometheus follow from them.
Times are in seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from csd_spec.reporting import Amount, Count, Form, Positive


class Controller(TypedDict):
    """The NVMe controller."""

    state: Annotated[
        str, Form(enum=["disabled", "enabling", "ready", "failed"]), "State of its life cycle."
    ]
    host_attached: Annotated[bool, "Whether a host is connected."]
    shadow_doorbells: Annotated[bool, "Whether shadow doorbells are in use."]
    memory_by_messages: Annotated[bool, "Whether the host's memory is not mapped, which is slower."]
    session_ends: Annotated[Count, "Number of resets and disconnections."]
    interrupts: Annotated[Count, "Number of interrupts sent."]


class Moved(TypedDict):
    """Data transferred by reads and writes, over the drive's life."""

    read: Annotated[Count, "Bytes read by hosts."]
    written: Annotated[Count, "Bytes written by hosts."]


class NamespaceSize(TypedDict):
    """A namespace."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    bytes: Annotated[Count, "Its size in bytes."]
    block_size: Annotated[int, Form(enum=[512, 4096]), "Size of a block in bytes."]


class Queue(TypedDict):
    """A queue pair."""

    qid: Annotated[Count, "The queue's identifier; 0 for the admin queue."]
    size: Annotated[
        Annotated[int, Form(minimum=2)] | None, "Number of entries; null for a deleted queue."
    ]
    waiting: Annotated[Count, "Number of commands in the queue that were not fetched yet."]
    outstanding: Annotated[Count, "Number of commands that were fetched and not completed yet."]
    commands: Annotated[Mapping[str, Positive], "Number of commands by name."]


class Errors(TypedDict):
    """A status that commands ended with."""

    status: Annotated[Count, "Status code type and status code: `SCT << 8 | SC`."]
    meaning: Annotated[str, "The status in words."]
    commands: Annotated[Positive, "Number of commands with this status."]


class Media(TypedDict):
    """The media executor."""

    work_in_flight: Annotated[Count, "Number of media operations in progress."]


class Mailbox(TypedDict):
    """The mailbox between RPU and APU."""

    apu_running: Annotated[bool, "Whether the APU is running."]
    apu_starts: Annotated[Count, "Number of times that the APU was started."]
    sent: Annotated[Count, "Number of messages sent to the APU."]
    received: Annotated[Count, "Number of messages received from the APU."]
    requests_in_flight: Annotated[Count, "Number of requests without a reply yet."]


class Jobs(TypedDict):
    """How many."""

    started: Annotated[Count, "Number of jobs started."]
    done: Annotated[Count, "Number of jobs that ended normally."]
    failed: Annotated[Count, "Number of jobs that failed."]
    stopped: Annotated[Count, "Number of jobs that the host stopped."]


class JobBytes(TypedDict):
    """Of jobs."""

    input: Annotated[Count, "Bytes of input."]
    output: Annotated[Count, "Bytes of output."]


class Vta(TypedDict):
    """The tensor accelerator."""

    streams: Annotated[Count, "Number of instruction streams."]
    instructions: Annotated[Count, "Number of instructions in these streams."]
    modelled_cycles: Annotated[
        Count, "Their modelled cycles; counted only where the device was started with --metrics."
    ]


class AcceleratorState(TypedDict):
    """An accelerator."""

    id: Annotated[Count, "The accelerator's ID."]
    state: Annotated[
        str, Form(enum=["idle", "running", "done", "failed", "stopped"]), "Its status."
    ]
    running_for: Annotated[
        Amount | None, "Run time of the current job in seconds; null if there is none."
    ]
    jobs: Annotated[Jobs, "Numbers of jobs."]
    seconds: Annotated[Amount, "Total run time of finished jobs in seconds."]
    bytes: Annotated[JobBytes, "Data of jobs."]
    models: Annotated[Count, "Number of models run."]
    vta: Annotated[Vta, "The tensor accelerator."]


class Bucket(TypedDict):
    """Commands whose time is above the most of the bucket before."""

    most: Annotated[Amount, "Their time in seconds, at most."]
    commands: Annotated[Count, "Number of commands."]


class Histogram(TypedDict):
    """Times of commands, in seconds."""

    commands: Annotated[Count, "Number of commands."]
    seconds: Annotated[Amount, "Sum of all."]
    p50: Annotated[Amount, "Median, as the upper bound of its bucket."]
    p99: Annotated[Amount, "99th percentile, likewise."]
    most: Annotated[Amount, "The greatest."]
    buckets: Annotated[Sequence[Bucket], "Histogram; still longer ones are in none."]


class Latencies(TypedDict):
    """From the fetch of an I/O command to its completion, in the guest's time."""

    read: Annotated[Histogram, "Commands that read blocks, or a memory namespace."]
    write: Annotated[Histogram, "Commands that write them."]
    other: Annotated[Histogram, "All other I/O commands."]


class LogLine(TypedDict):
    """A line that the device's process has logged."""

    time: Annotated[Amount, "Seconds since 1970."]
    level: Annotated[str, "Its level."]
    component: Annotated[str, "The component that has logged it."]
    message: Annotated[str, "The text."]


class Pages(TypedDict):
    """Pages of 4 KiB programmed, by why."""

    host: Annotated[Count, "Written by hosts."]
    relocated: Annotated[Count, "Relocated by garbage collection and wear levelling."]
    translation: Annotated[Count, "Written from the mapping's cache."]
    padding: Annotated[Count, "Left empty by FUA and Flush."]


class Operations(TypedDict):
    """Operations of the flash."""

    senses: Annotated[Count, "Reads of rows."]
    programs: Annotated[Count, "Programs of units."]
    erases: Annotated[Count, "Erases of superblocks."]
    suspensions: Annotated[Count, "Programs and erases suspended for a read."]


class MappingCache(TypedDict):
    """The cache of the mapping; none of both where all of it is in memory."""

    hits: Annotated[Count, "Accesses that hit."]
    misses: Annotated[Count, "Accesses that missed."]


class Resource(TypedDict):
    """A kind of resource."""

    number: Annotated[Count, "How many there are."]
    seconds: Annotated[Amount, "Busy time of all together."]


class Busy(TypedDict):
    """Busy time by resource, reservations for commands that are under way included."""

    dies: Annotated[Resource, "Dies of flash."]
    channels: Annotated[Resource, "Channels (buses) of flash."]
    link: Annotated[Resource, "Directions of the PCIe link."]
    cores: Annotated[Resource, "Cores of the firmware."]


class EraseCounts(TypedDict):
    """Distribution of the superblocks' erase counts."""

    total: Annotated[Count, "Sum."]
    least: Annotated[Count, "The smallest."]
    p50: Annotated[Count, "Median."]
    p90: Annotated[Count, "90th percentile."]
    p99: Annotated[Count, "99th percentile."]
    most: Annotated[Count, "The greatest."]


class FlashWear(TypedDict):
    """Wear of the modelled flash."""

    percentage_used: Annotated[Count, "As in SMART."]
    available_spare: Annotated[Count, "As in SMART."]
    worn: Annotated[bool, "Whether writes are refused."]
    superblocks: Annotated[Count, "Number of superblocks."]
    free: Annotated[Count, "Those that are erased."]
    retired: Annotated[Count, "Those at the end of their life."]
    erases: Annotated[EraseCounts, "Erase counts."]


class ModelledTime(TypedDict):
    """The modelled time of the drive; times are in the guest's seconds, the factor included."""

    factor: Annotated[Positive, "By which modelled times are multiplied."]
    guest_seconds: Annotated[Amount, "The guest's clock."]
    frozen_seconds: Annotated[Amount, "Time that the guest stood still."]
    lateness: Annotated[
        Histogram, "How much later than at their modelled times commands were completed."
    ]
    pages: Annotated[Pages, "Pages programmed."]
    write_amplification: Annotated[Amount, "Pages programmed for each that hosts wrote."]
    operations: Annotated[Operations, "Operations of the flash."]
    mapping: Annotated[MappingCache, "The cache of the mapping."]
    busy: Annotated[Busy, "Busy time."]
    wear: Annotated[FlashWear, "Wear of the flash."]


class Snapshot(TypedDict):
    """A device's state and counters at a moment."""

    version: Annotated[Positive, "Version of this format; keys may be added without a new version."]
    pid: Annotated[Positive, "Process ID of the device."]
    time: Annotated[Amount, "Seconds of the machine's monotonic clock."]
    controller: Annotated[Controller, "The NVMe controller."]
    bytes: Annotated[Moved, "Data transferred by reads and writes, over the drive's life."]
    namespaces: Annotated[Sequence[NamespaceSize], "All attached namespaces."]
    queues: Annotated[Sequence[Queue], "All queues, including deleted ones."]
    latencies: Annotated[Latencies, "How long I/O commands took."]
    errors: Annotated[Sequence[Errors], "Each status with which commands failed."]
    media: Annotated[Media, "The media executor."]
    mailbox: Annotated[Mailbox, "The mailbox between RPU and APU."]
    accelerators: Annotated[Sequence[AcceleratorState], "One for each accelerator."]
    modelled: Annotated[
        ModelledTime | None, "With --time modelled, the modelled drive; otherwise null."
    ]
    log: Annotated[Sequence[LogLine], "The last lines that the device's process has logged."]

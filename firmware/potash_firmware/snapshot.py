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
    host_attached: Annotated[bool, "True while a host is connected."]
    shadow_doorbells: Annotated[bool, "True while shadow doorbells are in use."]
    memory_by_messages: Annotated[bool, "True if the host's memory is not mapped, which is slower."]
    session_ends: Annotated[Count, "Number of resets and disconnections."]
    interrupts: Annotated[Count, "Number of interrupts sent."]


class Moved(TypedDict):
    """Data transferred by reads and writes, over the drive's life."""

    read: Annotated[Count, "Bytes read by hosts."]
    written: Annotated[Count, "Bytes written by hosts."]


class NamespaceSize(TypedDict):
    """A namespace."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    bytes: Annotated[Count, "Size of the namespace in bytes."]
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


class AccessGroup(TypedDict):
    """The access of a controller to a group of namespaces (ANA)."""

    controller: Annotated[Count, "The controller's identifier."]
    group: Annotated[Positive, "The group's identifier."]
    state: Annotated[
        str,
        Form(enum=["optimized", "non-optimized", "inaccessible", "persistent-loss", "change"]),
        "State of the controller's access to it.",
    ]
    changes: Annotated[Count, "Number of changes of the state and of the namespaces."]
    namespaces: Annotated[Sequence[int], "Identifiers of the attached namespaces in it."]


class Errors(TypedDict):
    """A status that commands ended with."""

    status: Annotated[Count, "The status code type and the status code: `SCT << 8 | SC`."]
    meaning: Annotated[str, "The status in words."]
    commands: Annotated[Positive, "Number of commands with this status."]


class Media(TypedDict):
    """The media executor."""

    work_in_flight: Annotated[Count, "Number of media operations in progress."]


class Mailbox(TypedDict):
    """The mailbox between RPU and APU."""

    apu_running: Annotated[bool, "True while the APU is running."]
    apu_starts: Annotated[Count, "Number of times that the APU was started."]
    sent: Annotated[Count, "Number of messages sent to the APU."]
    received: Annotated[Count, "Number of messages received from the APU."]
    requests_in_flight: Annotated[Count, "Number of requests without a reply yet."]


class Jobs(TypedDict):
    """Numbers of jobs."""

    started: Annotated[Count, "Number of jobs started."]
    done: Annotated[Count, "Number of jobs that ended normally."]
    failed: Annotated[Count, "Number of jobs that failed."]
    stopped: Annotated[Count, "Number of jobs that the host stopped."]


class JobBytes(TypedDict):
    """Data of jobs."""

    input: Annotated[Count, "Bytes of input."]
    output: Annotated[Count, "Bytes of output."]


class Vta(TypedDict):
    """The tensor accelerator."""

    streams: Annotated[Count, "Number of instruction streams."]
    instructions: Annotated[Count, "Number of instructions in these streams."]
    modelled_cycles: Annotated[
        Count, "Modelled cycles of these streams; counted only if the device has --metrics."
    ]


class AcceleratorState(TypedDict):
    """An accelerator."""

    id: Annotated[Count, "The accelerator's ID."]
    state: Annotated[
        str,
        Form(enum=["idle", "running", "done", "failed", "stopped"]),
        "The accelerator's status.",
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
    """Commands that took at most `most`, but longer than the limit of the previous bucket."""

    most: Annotated[Amount, "Upper bound of the commands' times in seconds."]
    commands: Annotated[Count, "Number of commands in the bucket."]


class Histogram(TypedDict):
    """Times of commands, in seconds."""

    commands: Annotated[Count, "Number of commands."]
    seconds: Annotated[Amount, "Sum of the commands' times in seconds."]
    p50: Annotated[Amount, "The median: the upper bound of its bucket."]
    p99: Annotated[Amount, "The 99th percentile: the upper bound of its bucket."]
    most: Annotated[Amount, "The longest time."]
    buckets: Annotated[Sequence[Bucket], "The histogram; slower commands are in no bucket."]


class Latencies(TypedDict):
    """Times from the fetch of an I/O command to its completion, by the guest's clock."""

    read: Annotated[Histogram, "Commands that read blocks or a memory namespace."]
    write: Annotated[Histogram, "Commands that write blocks or a memory namespace."]
    other: Annotated[Histogram, "All other I/O commands."]


class LogLine(TypedDict):
    """A line that the device's process has logged."""

    time: Annotated[Amount, "Seconds since 1970."]
    level: Annotated[str, "The line's level."]
    component: Annotated[str, "The component that logged the line."]
    message: Annotated[str, "Text of the line."]


class Pages(TypedDict):
    """Pages of 4 KiB programmed, by cause."""

    host: Annotated[Count, "Pages written by hosts."]
    relocated: Annotated[Count, "Pages relocated by garbage collection and wear levelling."]
    translation: Annotated[Count, "Translation pages, written from the mapping's cache."]
    padding: Annotated[Count, "Pages that FUA and Flush left empty."]


class Operations(TypedDict):
    """Operations of the flash."""

    senses: Annotated[Count, "Number of reads of rows."]
    programs: Annotated[Count, "Number of units programmed."]
    erases: Annotated[Count, "Number of superblocks erased."]
    suspensions: Annotated[Count, "Number of programs and erases that were suspended for a read."]


class CacheAccesses(TypedDict):
    """Accesses to a cache of the modelled drive; both numbers are 0 if it has none."""

    hits: Annotated[Count, "Number of accesses that hit."]
    misses: Annotated[Count, "Number of accesses that missed."]


class Resource(TypedDict):
    """The resources of a kind."""

    number: Annotated[Count, "Number of resources of this kind."]
    seconds: Annotated[Amount, "Total busy time in seconds."]


class Busy(TypedDict):
    """Busy time by resource, including reservations for commands in progress."""

    dies: Annotated[Resource, "Dies of flash."]
    channels: Annotated[Resource, "Channels (buses) of flash."]
    link: Annotated[Resource, "The two directions of the PCIe link."]
    cores: Annotated[Resource, "Cores that run the firmware."]


class EraseCounts(TypedDict):
    """Distribution of the superblocks' erase counts."""

    total: Annotated[Count, "Sum over all superblocks."]
    least: Annotated[Count, "The smallest count."]
    p50: Annotated[Count, "The median."]
    p90: Annotated[Count, "The 90th percentile."]
    p99: Annotated[Count, "The 99th percentile."]
    most: Annotated[Count, "The greatest count."]


class FlashWear(TypedDict):
    """Wear of the modelled flash."""

    percentage_used: Annotated[Count, "Percentage Used, as in SMART."]
    available_spare: Annotated[Count, "Available Spare, as in SMART."]
    worn: Annotated[bool, "True if the drive is worn out and refuses writes."]
    superblocks: Annotated[Count, "Number of superblocks."]
    free: Annotated[Count, "Number of superblocks that are erased."]
    retired: Annotated[Count, "Number of superblocks at the end of their life."]
    erases: Annotated[EraseCounts, "The superblocks' erase counts."]
    grown_bad: Annotated[Count, "Number of superblocks of which a program has failed."]


class Stops(TypedDict):
    """Stops of the guest for one cause."""

    number: Annotated[Count, "Number of stops."]
    seconds: Annotated[Amount, "Seconds for which they were wanted, on the host's clock."]


class StopsByCause(TypedDict):
    """Stops of the guest; one that both causes want counts for both."""

    jobs: Annotated[Stops, "Jobs and executions whose emulation was behind."]
    commands: Annotated[Stops, "Block commands whose emulation was behind (`--hold`)."]


class SlcCache(TypedDict):
    """The SLC cache of the flash, and the SLC buffer of zones."""

    superblocks: Annotated[Count, "Number of superblocks that are in SLC mode."]
    folded: Annotated[Count, "Pages of 4 KiB relocated from the cache and the buffer."]
    programs: Annotated[Count, "Programs of units in SLC mode."]


class BitErrors(TypedDict):
    """Bit errors of the flash, and what is done against them."""

    retries: Annotated[Count, "Number of retries of reads of rows."]
    uncorrectable: Annotated[Count, "Number of reads of rows with too many errors."]
    lost: Annotated[Count, "Pages of 4 KiB that could not be read when they were relocated."]
    refreshed: Annotated[Count, "Pages of 4 KiB relocated as they were old, or were read often."]


class RandomWriteAreas(TypedDict):
    """Random write areas of zones, from which pages are programmed when they are committed."""

    written: Annotated[Count, "Pages of 4 KiB written to areas."]
    committed: Annotated[Count, "Pages of 4 KiB programmed from areas."]


class ValueLogs(TypedDict):
    """Bytes of the logs of key value namespaces, and of their indexes."""

    stored: Annotated[Count, "Bytes of values that hosts stored."]
    written: Annotated[Count, "Bytes of pages of the logs that were written to flash."]
    moved: Annotated[Count, "Bytes of values that were moved within the logs, to have room."]
    index: Annotated[Count, "Bytes of pages of indexes that were written to flash."]
    write_amplification: Annotated[
        Amount, "Bytes of these pages for each byte stored, before the FTL's own relocations."
    ]


class ModelledTime(TypedDict):
    """The modelled time of the drive; times are in the guest's seconds, the factor included."""

    factor: Annotated[Positive, "The factor by which modelled times are multiplied."]
    guest_seconds: Annotated[Amount, "Seconds on the guest's clock."]
    frozen_seconds: Annotated[Amount, "Seconds for which the guest was stopped."]
    lateness: Annotated[Histogram, "Delay of completions after their modelled times."]
    pages: Annotated[Pages, "Pages of 4 KiB programmed, by cause."]
    write_amplification: Annotated[Amount, "Pages programmed per page that hosts wrote."]
    operations: Annotated[Operations, "Operations of the flash."]
    mapping: Annotated[CacheAccesses, "The mapping's cache."]
    busy: Annotated[Busy, "Busy time by resource."]
    wear: Annotated[FlashWear, "Wear of the flash."]
    stops: Annotated[StopsByCause, "Stops of the guest by cause."]
    slc: Annotated[SlcCache, "The SLC cache of the flash, and the SLC buffer of zones."]
    errors: Annotated[BitErrors, "Bit errors of the flash."]
    read_cache: Annotated[CacheAccesses, "The read cache."]
    copied_back: Annotated[Count, "Pages of 4 KiB relocated within their dies (copy back)."]
    areas: Annotated[RandomWriteAreas, "Random write areas of zones."]
    values: Annotated[ValueLogs, "Key value namespaces on flash."]


class PlacementHandle(TypedDict):
    """Bytes of a placement handle, over the drive's life."""

    host: Annotated[Count, "Bytes that the host wrote by it."]
    media: Annotated[Count, "Bytes written to flash for it: the host's, moved ones and padding."]
    moved: Annotated[Count, "Bytes on flash that the drive moved."]
    padding: Annotated[Count, "Bytes on flash that are empty, to fill program units."]
    write_amplification: Annotated[Amount, "Bytes written to flash for each byte of the host."]


class Extension(TypedDict):
    """An addition of an extension to the drive."""

    kind: Annotated[str, "The kind: Admin command, I/O command, log page, and so on."]
    number: Annotated[Count | None, "Opcode, identifier or number; null if it has none."]
    name: Annotated[str, "The name."]
    source: Annotated[str, "The extension's file."]
    calls: Annotated[
        Count | None, "Number of calls; null if programs make them, which are not counted."
    ]
    failures: Annotated[Count | None, "Number of failures of the function; null as for `calls`."]


class OtherController(TypedDict):
    """A further controller of the device, with the same keys as the first one."""

    id: Annotated[Positive, "The controller's identifier."]
    controller: Annotated[Controller, "The NVMe controller."]
    namespaces: Annotated[Sequence[NamespaceSize], "All attached namespaces."]
    queues: Annotated[Sequence[Queue], "All queues, including deleted ones."]
    latencies: Annotated[Latencies, "Times that I/O commands took."]
    errors: Annotated[Sequence[Errors], "Each status with which commands failed."]


class Snapshot(TypedDict):
    """A device's state and counters at a moment."""

    version: Annotated[Positive, "Version of this format; keys may be added without a new version."]
    pid: Annotated[Positive, "Process ID of the device."]
    time: Annotated[Amount, "Seconds of the machine's monotonic clock."]
    controller: Annotated[Controller, "The NVMe controller."]
    bytes: Annotated[Moved, "Data transferred by reads and writes, over the drive's life."]
    namespaces: Annotated[Sequence[NamespaceSize], "All attached namespaces."]
    queues: Annotated[Sequence[Queue], "All queues, including deleted ones."]
    latencies: Annotated[Latencies, "Times that I/O commands took."]
    errors: Annotated[Sequence[Errors], "Each status with which commands failed."]
    media: Annotated[Media, "The media executor."]
    mailbox: Annotated[Mailbox, "The mailbox between RPU and APU."]
    accelerators: Annotated[Sequence[AcceleratorState], "One for each accelerator."]
    modelled: Annotated[ModelledTime | None, "The modelled drive; null without --time modelled."]
    extensions: Annotated[Sequence[Extension], "All that extensions add to the drive."]
    placement: Annotated[
        Sequence[PlacementHandle], "The placement handles, in their order; none without --fdp."
    ]
    access_groups: Annotated[
        Sequence[AccessGroup],
        "The access of each controller to the groups with attached namespaces; none without ANA.",
    ]
    log: Annotated[Sequence[LogLine], "The last lines that the device's process logged."]
    others: Annotated[
        Sequence[OtherController],
        "The controllers behind the first one, of a device with several sockets.",
    ]

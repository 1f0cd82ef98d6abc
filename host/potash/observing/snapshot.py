"""What a running device reports: a snapshot of its counters, and the rates between two of them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

from potash.schema import Amount, Count, Form, Positive, Share


class Controller(TypedDict):
    """The NVMe controller."""

    state: Annotated[Literal["disabled", "enabling", "ready", "failed"], "Of its life cycle."]
    host_attached: Annotated[bool, "Whether a host holds the device."]
    shadow_doorbells: Annotated[bool, "Whether the host writes doorbells to memory."]
    session_ends: Annotated[Count, "Resets, and hosts that have gone."]
    interrupts: Annotated[Count, "That were raised."]


class Moved(TypedDict):
    """Moved by reads and writes."""

    read: Annotated[Count, "To the host."]
    written: Annotated[Count, "From the host."]


class NamespaceSize(TypedDict):
    """A namespace."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    bytes: Annotated[Count, "Its size."]
    block_size: Annotated[Literal[512, 4096], "Bytes of a block."]


class Queue(TypedDict):
    """A queue pair."""

    qid: Annotated[Count, "The queue's identifier; 0 for the admin queue."]
    size: Annotated[
        Annotated[int, Form(minimum=2)] | None, "Entries; null where the queue is gone."
    ]
    waiting: Annotated[Count, "Commands that nobody has taken yet."]
    outstanding: Annotated[Count, "Commands that were taken and not completed."]
    commands: Annotated[Mapping[str, Positive], "How often each command came, by its name."]


class Errors(TypedDict):
    """A status that commands ended with."""

    status: Annotated[Count, "Status code type and status code: `SCT << 8 | SC`."]
    meaning: Annotated[str, "In words."]
    commands: Annotated[Positive, "How many."]


class Media(TypedDict):
    """What the drive keeps its bytes in."""

    work_in_flight: Annotated[Count, "Pieces of work that are not finished."]


class Mailbox(TypedDict):
    """Between the real-time processor and the application processor."""

    apu_running: Annotated[bool, "Whether the application processor runs."]
    apu_starts: Annotated[Count, "How often it was started."]
    sent: Annotated[Count, "Messages to it."]
    received: Annotated[Count, "Messages from it."]
    requests_in_flight: Annotated[Count, "Requests without a reply."]


class Jobs(TypedDict):
    """How many."""

    started: Annotated[Count, "Begun."]
    done: Annotated[Count, "Ended well."]
    failed: Annotated[Count, "Ended with an error."]
    stopped: Annotated[Count, "Stopped by the host."]


class JobBytes(TypedDict):
    """Of jobs."""

    input: Annotated[Count, "That they were given."]
    output: Annotated[Count, "That they made."]


class Vta(TypedDict):
    """The tensor accelerator."""

    streams: Annotated[Count, "That it ran."]
    instructions: Annotated[Count, "In them."]
    modelled_cycles: Annotated[
        Count,
        "That they take by its modelled clock; counted where the device counts cycles, as with "
        "--metrics.",
    ]


class AcceleratorState(TypedDict):
    """An accelerator."""

    id: Annotated[Count, "Its identifier."]
    state: Annotated[Literal["idle", "running", "done", "failed", "stopped"], "Its status."]
    running_for: Annotated[Amount | None, "Seconds since its present job began; null without one."]
    jobs: Annotated[Jobs, "How many."]
    seconds: Annotated[Amount, "Of jobs that have ended, together."]
    bytes: Annotated[JobBytes, "Of jobs."]
    models: Annotated[Count, "Models that were run."]
    vta: Annotated[Vta, "The tensor accelerator."]


class Snapshot(TypedDict):
    """A device's state and counters at a moment."""

    version: Annotated[Positive, "Of this form; keys may come without another one."]
    pid: Annotated[Positive, "The device's process."]
    time: Annotated[Amount, "Seconds of the machine's monotonic clock."]
    controller: Annotated[Controller, "The NVMe controller."]
    bytes: Annotated[Moved, "Moved by reads and writes."]
    namespaces: Annotated[Sequence[NamespaceSize], "Those that are there."]
    queues: Annotated[Sequence[Queue], "Those that there are, and that there were."]
    errors: Annotated[Sequence[Errors], "Each status that commands have failed with."]
    media: Annotated[Media, "What the drive keeps its bytes in."]
    mailbox: Annotated[Mailbox, "Between the real-time processor and the application processor."]
    accelerators: Annotated[Sequence[AcceleratorState], "One for each."]


class Rates(TypedDict):
    """Rates a second, since the snapshot before."""

    seconds: Annotated[Amount, "Between the two snapshots."]
    commands: Annotated[Amount, "Of all queues."]
    read_bytes: Annotated[Amount, "To the host."]
    written_bytes: Annotated[Amount, "From the host."]
    interrupts: Annotated[Amount, "That were raised."]
    messages: Annotated[Amount, "Of the mailbox, in both directions."]
    errors: Annotated[Amount, "Commands that failed."]
    jobs: Annotated[Amount, "That began."]
    queues: Annotated[Mapping[int, Amount], "Commands, by the queue's identifier."]
    accelerators: Annotated[
        Mapping[int, Share], "The share of the time that each had a job, by its identifier."
    ]


class Interval(Snapshot):
    """An interval of a running device: its state at the end, and the rates; one a line."""

    rates: Annotated[Rates, "Rates a second, since the snapshot before."]

"""What the commands for a drive report as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from potash.schema import Count, Form, Signed64

ReturnValue = Annotated[Signed64, "What the program returned (r0), as a signed number of 64 bits."]

AcceleratorId = Annotated[Count, "The accelerator's ID."]
FirmwareId = Annotated[Count, "The firmware's ID."]
FaultId = Annotated[int, Form(minimum=1, maximum=65535), "The number that it is ended by."]
OutputFile = Annotated[str, "The file that has them; - for standard output."]


@dataclass(frozen=True)
class Accelerator:
    """An accelerator."""

    id: Annotated[Count, "What the commands call it."]
    firmware: Annotated[bool, "Whether it takes programs."]
    input_size: Annotated[Count, "Bytes of its input buffer."]
    output_size: Annotated[Count, "Bytes of its output buffer."]


@dataclass(frozen=True)
class Accelerators:
    """The accelerators of a drive."""

    accelerators: Annotated[Sequence[Accelerator], "In the order of their IDs."]


@dataclass(frozen=True)
class LogEntry:
    """An entry of an accelerator's log."""

    timestamp: Annotated[Count, "When it was, in milliseconds since 1970 (UTC)."]
    type: Annotated[Count, "The entry's type as a number of the accelerator command set."]
    name: Annotated[str, "The same as a word."]
    text: Annotated[str, "What happened, or what the program printed."]


@dataclass(frozen=True)
class Log:
    """What an accelerator remembers."""

    accelerator: AcceleratorId
    lost: Annotated[Count, "Older entries that had to make room."]
    entries: Annotated[Sequence[LogEntry], "The oldest first."]


@dataclass(frozen=True)
class OutputRead:
    """What was read from an output buffer."""

    accelerator: AcceleratorId
    offset: Annotated[Count, "The buffer's first byte that was read."]
    read: Annotated[Count, "Bytes."]
    output: OutputFile


@dataclass(frozen=True)
class InputWritten:
    """What was sent to an input buffer."""

    accelerator: AcceleratorId
    offset: Annotated[Count, "The buffer's first byte that was written."]
    written: Annotated[Count, "Bytes."]


@dataclass(frozen=True)
class Status:
    """What an accelerator does, or did last."""

    accelerator: AcceleratorId
    status: Annotated[
        str,
        Form(pattern="^(idle|running|done|failed|stopped|status [0-9]+)$"),
        "What it does: idle, running, done, failed or stopped; `status N` where the number is not "
        "known.",
    ]
    status_id: Annotated[Count, "The same as the number of the accelerator command set."]
    firmware: Annotated[Count | None, "The active firmware's ID; null where none is active."]
    return_value: ReturnValue
    consumed: Annotated[Count, "Bytes of input that the job has read."]
    produced: Annotated[Count, "Bytes of output that it has made."]


@dataclass(frozen=True)
class FaultAdded:
    """A fault that was armed."""

    id: FaultId
    fault: Annotated[str, "The fault, as a line."]


@dataclass(frozen=True)
class Armed:
    """A fault that a drive has."""

    id: FaultId
    fault: Annotated[str, "The fault, as a line."]
    triggered: Annotated[Count, "How often it has triggered."]
    spent: Annotated[bool, "Whether it triggers no more."]


@dataclass(frozen=True)
class Faults:
    """The faults of a drive."""

    faults: Annotated[Sequence[Armed], "Those that were armed and not ended, spent ones too."]


@dataclass(frozen=True)
class FirmwareRead:
    """A program that was read back."""

    accelerator: AcceleratorId
    firmware: FirmwareId
    read: Annotated[Count, "Bytes."]
    output: OutputFile


@dataclass(frozen=True)
class FirmwareSent:
    """A program that was stored."""

    accelerator: AcceleratorId
    firmware: FirmwareId
    sent: Annotated[Count, "Bytes."]


@dataclass(frozen=True)
class InPlace:
    """What the drive read and wrote in place, without the host."""

    input: Annotated[bool, "The input."]
    output: Annotated[bool, "The output."]


@dataclass(frozen=True)
class JobEnded:
    """How a job ended."""

    output: Annotated[str, "The file that has the output; - for standard output."]
    produced: Annotated[Count, "Bytes of output."]
    return_value: ReturnValue
    printed: Annotated[Sequence[str], "Lines that the program printed."]
    in_place: Annotated[InPlace, "What the drive read and wrote in place, without the host."]

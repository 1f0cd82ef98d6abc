"""What the commands for a drive report as JSON."""

from collections.abc import Sequence
from typing import Annotated, TypedDict

from potash.schema import Count, Form, Signed64


class Accelerator(TypedDict):
    """An accelerator."""

    id: Annotated[Count, "What the commands call it."]
    firmware: Annotated[bool, "Whether it takes programs."]
    input_size: Annotated[Count, "Bytes of its input buffer."]
    output_size: Annotated[Count, "Bytes of its output buffer."]


class Accelerators(TypedDict):
    """The accelerators of a drive."""

    accelerators: Annotated[Sequence[Accelerator], "In the order of their IDs."]


class LogEntry(TypedDict):
    """An entry of an accelerator's log."""

    timestamp: Annotated[Count, "When it was, in milliseconds since 1970 (UTC)."]
    type: Annotated[Count, "The entry's type as a number of the accelerator command set."]
    name: Annotated[str, "The same as a word."]
    text: Annotated[str, "What happened, or what the program printed."]


class Log(TypedDict):
    """What an accelerator remembers."""

    accelerator: Annotated[Count, "The accelerator's ID."]
    lost: Annotated[Count, "Older entries that had to make room."]
    entries: Annotated[Sequence[LogEntry], "The oldest first."]


class OutputRead(TypedDict):
    """What was read from an output buffer."""

    accelerator: Annotated[Count, "The accelerator's ID."]
    offset: Annotated[Count, "The buffer's first byte that was read."]
    read: Annotated[Count, "Bytes."]
    output: Annotated[str, "The file that has them; - for standard output."]


class InputWritten(TypedDict):
    """What was sent to an input buffer."""

    accelerator: Annotated[Count, "The accelerator's ID."]
    offset: Annotated[Count, "The buffer's first byte that was written."]
    written: Annotated[Count, "Bytes."]


class Status(TypedDict):
    """What an accelerator does, or did last."""

    accelerator: Annotated[Count, "The accelerator's ID."]
    status: Annotated[
        Annotated[str, Form(pattern="^(idle|running|done|failed|stopped|status [0-9]+)$")],
        "What it does: idle, running, done, failed or stopped; `status N` where the number is not known.",
    ]
    status_id: Annotated[Count, "The same as the number of the accelerator command set."]
    firmware: Annotated[Count | None, "The active firmware's ID; null where none is active."]
    return_value: Annotated[
        Signed64, "What the program returned (r0), as a signed number of 64 bits."
    ]
    consumed: Annotated[Count, "Bytes of input that the job has read."]
    produced: Annotated[Count, "Bytes of output that it has made."]


class FaultAdded(TypedDict):
    """A fault that was armed."""

    id: Annotated[Annotated[int, Form(minimum=1, maximum=65535)], "The number that it is ended by."]
    fault: Annotated[str, "The fault, as a line."]


class Armed(TypedDict):
    """A fault that a drive has."""

    id: Annotated[Annotated[int, Form(minimum=1, maximum=65535)], "The number that it is ended by."]
    fault: Annotated[str, "The fault, as a line."]
    triggered: Annotated[Count, "How often it has triggered."]
    spent: Annotated[bool, "Whether it triggers no more."]


class Faults(TypedDict):
    """The faults of a drive."""

    faults: Annotated[Sequence[Armed], "Those that were armed and not ended, spent ones too."]


class FirmwareRead(TypedDict):
    """A program that was read back."""

    accelerator: Annotated[Count, "The accelerator's ID."]
    firmware: Annotated[Count, "The firmware's ID."]
    read: Annotated[Count, "Bytes."]
    output: Annotated[str, "The file that has them; - for standard output."]


class FirmwareSent(TypedDict):
    """A program that was stored."""

    accelerator: Annotated[Count, "The accelerator's ID."]
    firmware: Annotated[Count, "The firmware's ID."]
    sent: Annotated[Count, "Bytes."]


class InPlace(TypedDict):
    """What the drive read and wrote in place, without the host."""

    input: Annotated[bool, "The input."]
    output: Annotated[bool, "The output."]


class JobEnded(TypedDict):
    """How a job ended."""

    output: Annotated[str, "The file that has the output; - for standard output."]
    produced: Annotated[Count, "Bytes of output."]
    return_value: Annotated[
        Signed64, "What the program returned (r0), as a signed number of 64 bits."
    ]
    printed: Annotated[Sequence[str], "Lines that the program printed."]
    in_place: Annotated[InPlace, "What the drive read and wrote in place, without the host."]

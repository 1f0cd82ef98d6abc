"""Types of the JSON reports of the commands for a drive."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from csd_spec.descriptors import AcceleratorStatus, LogPage
from csd_spec.reporting import INLINE, Count, Form, Key, Signed64
from potash.sdk.accelerator import Accelerator
from potash.sdk.faults import Fault, describe

ReturnValue = Annotated[Signed64, "The program's return value (r0), as a signed number of 64 bits."]
ModelledTime = Annotated[
    Count | None, "Modelled time that the job took, in ns; null if time is not modelled."
]

AcceleratorId = Annotated[Count, "The accelerator's ID."]
FirmwareId = Annotated[Count, "The firmware's ID."]
OutputFile = Annotated[str, "The file with these bytes; - for standard output."]


class Accelerators(NamedTuple):
    """The accelerators of a drive."""

    accelerators: Annotated[
        Sequence[Annotated[Accelerator, Form(description="An accelerator.")]],
        "All accelerators, in the order of their IDs.",
    ]


class Log(NamedTuple):
    """The log of an accelerator."""

    accelerator: AcceleratorId
    page: Annotated[LogPage, INLINE]


class OutputRead(NamedTuple):
    """Data read from an output buffer."""

    accelerator: AcceleratorId
    offset: Annotated[Count, "Offset of the first byte read, in the buffer."]
    read: Annotated[Count, "Number of bytes read."]
    output: OutputFile


class InputWritten(NamedTuple):
    """Data sent to an input buffer."""

    accelerator: AcceleratorId
    offset: Annotated[Count, "Offset of the first byte written, in the buffer."]
    written: Annotated[Count, "Number of bytes written."]


class Status(NamedTuple):
    """The status of an accelerator and of its current or last job."""

    accelerator: AcceleratorId
    status: Annotated[AcceleratorStatus, INLINE]


class FaultAdded(NamedTuple):
    """A fault that was armed."""

    id: Annotated[
        int, Form(minimum=1, maximum=65535), "The fault's number, with which it is cleared."
    ]
    fault: Annotated[str, "The fault as a line of text."]


class Armed(NamedTuple):
    """A fault of a drive."""

    armed: Annotated[Fault, INLINE]

    @property
    def fault(self) -> Annotated[str, Key(before="triggered")]:
        """The fault as a line of text."""
        return describe(self.armed)


class Faults(NamedTuple):
    """The faults of a drive."""

    faults: Annotated[
        Sequence[Armed],
        "All faults that were added and not cleared, including those whose count is used up.",
    ]


class FirmwareRead(NamedTuple):
    """A program read from an accelerator."""

    accelerator: AcceleratorId
    firmware: FirmwareId
    read: Annotated[Count, "Number of bytes read."]
    output: OutputFile


class FirmwareSent(NamedTuple):
    """A program sent to an accelerator."""

    accelerator: AcceleratorId
    firmware: FirmwareId
    sent: Annotated[Count, "Number of bytes sent."]


class InPlace(NamedTuple):
    """Use of files in place, without a transfer through the host."""

    input: Annotated[bool, "True if the drive read the input in place."]
    output: Annotated[bool, "True if the drive wrote the output in place."]


class JobEnded(NamedTuple):
    """The result of a job."""

    output: Annotated[str, "The output file; - for standard output."]
    produced: Annotated[Count, "Number of output bytes."]
    return_value: ReturnValue
    printed: Annotated[Sequence[str], "Lines that the program printed."]
    in_place: Annotated[
        InPlace, "The files that the drive used in place, without a transfer through the host."
    ]
    measured_ns: Annotated[Count, "Time that the job took as this host measured it, in ns."]
    modelled_ns: ModelledTime

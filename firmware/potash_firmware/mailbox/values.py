"""The messages about values of key value namespaces that running programs read.

A worker sends its request to the APU, which checks it and passes it on to the RPU. The RPU reads
the value, copies it to memory that it shares with the program, and answers.
"""

from typing import Annotated

from csd_spec.values import LONGEST_FIRST
from potash_device.cores import Count
from potash_firmware.mailbox.datagrams import fields, message
from potash_firmware.mailbox.shared import SLOT_SIZE
from potash_wire.records import BOOL, I64, U8, U16, U32, U64, At, Number, Range

_Tag = Annotated[U32, At(4)]

MAX_OWN = 4096
"""Bytes of a value that are sent in a message: to memory that the RPU does not share."""

NO_RANGE = 0xFF
"""In place of the index of a memory range: the target is in the program's own memory."""


@fields
class _ReadValue:
    tag: _Tag
    """The tag of the execution, or of the job."""
    nsid: U32
    room: Annotated[U32, Range(0, SLOT_SIZE)]
    """Bytes of the target."""
    key: Annotated[bytes, Number("B", 3), Range(0, LONGEST_FIRST)]
    lists: Annotated[BOOL, At(1)] = False
    """It is a request for keys, from `key` on, and not for the value of `key`."""
    at: Annotated[Count, At(16)] = 0
    """The time of the request, as in `Read`."""
    moved: Count = 0
    """Bytes in DRAM, as in `Read`."""
    offset: U64 = 0
    """The place of the target in the memory range, or in the accelerator's arena."""


@message(42)
class ReadValue(_ReadValue):
    """Worker to APU to RPU: an execution reads a value of a key value namespace, or keys.

    `ValueRead` with the same tag answers it unless the execution has ended. An execution has one
    request at a time.
    """

    range: Annotated[U8, At(2)] = NO_RANGE
    """Index of the memory range of the target, or `NO_RANGE`."""


@fields
class _ValueRead:
    tag: _Tag
    result: Annotated[I64, At(8)]
    """The size of the value, or the number of keys; or else a negated errno."""
    data: Annotated[bytes, Number("H", 16), Range(0, MAX_OWN)] = b""
    """The bytes for a target in the program's own memory; others are there already."""


@message(43)
class ValueRead(_ValueRead):
    """RPU to APU to worker: a value has been read for an execution, or cannot be."""


@message(53)
class ReadJobValue(_ReadValue):
    """Worker to APU to RPU: the same as `ReadValue`, for a job. `JobValueRead` answers it in any
    case: until then, the RPU may write to the arena."""

    accelerator: Annotated[U16, At(40)] = 0


@message(54)
class JobValueRead(_ValueRead):
    """RPU to APU to worker: a value has been read for a job, or cannot be."""

    accelerator: Annotated[U16, At(2)] = 0

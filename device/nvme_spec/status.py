"""Status codes of a completion: status code type (SCT) and status code (SC) in one number.

NVM Express Base Specification 2.0, section 3.3.3.2.1 (Status field); NVM Command Set
Specification 1.0, section 2.1; Zoned Namespace Command Set Specification 1.1, section 2.1. Those of
computational storage are from Base Specification 2.2, figure 104.
Those of NVMe over Fabrics are left out: they reuse values of the I/O command sets.
"""

from enum import IntEnum
from typing import NamedTuple


class StatusCodeType(IntEnum):
    GENERIC = 0
    COMMAND_SPECIFIC = 1
    MEDIA_AND_DATA_INTEGRITY = 2
    PATH_RELATED = 3
    VENDOR_SPECIFIC = 7


class Status(IntEnum):
    """`SCT << 8 | SC`."""

    # Generic command status.
    SUCCESS = 0x000
    INVALID_OPCODE = 0x001
    INVALID_FIELD = 0x002
    COMMAND_ID_CONFLICT = 0x003
    DATA_TRANSFER_ERROR = 0x004
    POWER_LOSS_ABORTED = 0x005
    INTERNAL_ERROR = 0x006
    ABORT_REQUESTED = 0x007
    SQ_DELETION_ABORTED = 0x008
    FAILED_FUSED_COMMAND = 0x009
    MISSING_FUSED_COMMAND = 0x00A
    INVALID_NAMESPACE = 0x00B
    COMMAND_SEQUENCE_ERROR = 0x00C
    INVALID_SGL_SEGMENT_DESCRIPTOR = 0x00D
    INVALID_NUMBER_OF_SGL_DESCRIPTORS = 0x00E
    DATA_SGL_LENGTH_INVALID = 0x00F
    METADATA_SGL_LENGTH_INVALID = 0x010
    SGL_DESCRIPTOR_TYPE_INVALID = 0x011
    INVALID_USE_OF_CMB = 0x012
    INVALID_PRP_OFFSET = 0x013
    ATOMIC_WRITE_UNIT_EXCEEDED = 0x014
    OPERATION_DENIED = 0x015
    SGL_OFFSET_INVALID = 0x016
    HOST_IDENTIFIER_INCONSISTENT_FORMAT = 0x018
    KEEP_ALIVE_TIMER_EXPIRED = 0x019
    KEEP_ALIVE_TIMEOUT_INVALID = 0x01A
    PREEMPT_ABORTED = 0x01B
    SANITIZE_FAILED = 0x01C
    SANITIZE_IN_PROGRESS = 0x01D
    SGL_DATA_BLOCK_GRANULARITY_INVALID = 0x01E
    COMMAND_NOT_SUPPORTED_FOR_QUEUE_IN_CMB = 0x01F
    NAMESPACE_WRITE_PROTECTED = 0x020
    COMMAND_INTERRUPTED = 0x021
    TRANSIENT_TRANSPORT_ERROR = 0x022
    COMMAND_PROHIBITED_BY_LOCKDOWN = 0x023
    ADMIN_COMMAND_MEDIA_NOT_READY = 0x024
    FDP_DISABLED = 0x029
    INVALID_PLACEMENT_HANDLE_LIST = 0x02A
    LBA_OUT_OF_RANGE = 0x080
    CAPACITY_EXCEEDED = 0x081
    NAMESPACE_NOT_READY = 0x082
    RESERVATION_CONFLICT = 0x083
    FORMAT_IN_PROGRESS = 0x084
    INVALID_VALUE_SIZE = 0x085
    INVALID_KEY_SIZE = 0x086
    KV_KEY_DOES_NOT_EXIST = 0x087
    UNRECOVERED_ERROR = 0x088
    KEY_EXISTS = 0x089

    # Command specific status.
    COMPLETION_QUEUE_INVALID = 0x100
    INVALID_QUEUE_IDENTIFIER = 0x101
    INVALID_QUEUE_SIZE = 0x102
    ABORT_LIMIT = 0x103
    AER_LIMIT = 0x105
    INVALID_FIRMWARE_SLOT = 0x106
    INVALID_FIRMWARE_IMAGE = 0x107
    INVALID_INTERRUPT_VECTOR = 0x108
    INVALID_LOG_PAGE = 0x109
    INVALID_FORMAT = 0x10A
    FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x10B
    INVALID_QUEUE_DELETION = 0x10C
    FEATURE_NOT_SAVEABLE = 0x10D
    FEATURE_NOT_CHANGEABLE = 0x10E
    FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10F
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x110
    FIRMWARE_NEEDS_CONTROLLER_RESET = 0x111
    FIRMWARE_NEEDS_MAXIMUM_TIME = 0x112
    FIRMWARE_ACTIVATION_PROHIBITED = 0x113
    OVERLAPPING_RANGE = 0x114
    NAMESPACE_INSUFFICIENT_CAPACITY = 0x115
    NAMESPACE_IDENTIFIER_UNAVAILABLE = 0x116
    NAMESPACE_ALREADY_ATTACHED = 0x118
    NAMESPACE_IS_PRIVATE = 0x119
    NAMESPACE_NOT_ATTACHED = 0x11A
    THIN_PROVISIONING_NOT_SUPPORTED = 0x11B
    CONTROLLER_LIST_INVALID = 0x11C
    DEVICE_SELF_TEST_IN_PROGRESS = 0x11D
    BOOT_PARTITION_WRITE_PROHIBITED = 0x11E
    INVALID_CONTROLLER_IDENTIFIER = 0x11F
    INVALID_SECONDARY_CONTROLLER_STATE = 0x120
    INVALID_NUMBER_OF_CONTROLLER_RESOURCES = 0x121
    INVALID_RESOURCE_IDENTIFIER = 0x122
    SANITIZE_PROHIBITED_WITH_PMR = 0x123
    ANA_GROUP_IDENTIFIER_INVALID = 0x124
    ANA_ATTACH_FAILED = 0x125
    INSUFFICIENT_CAPACITY = 0x126
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = 0x127
    LOCKDOWN_NOT_SUPPORTED = 0x128
    IO_COMMAND_SET_NOT_SUPPORTED = 0x129
    IO_COMMAND_SET_NOT_ENABLED = 0x12A
    IO_COMMAND_SET_COMBINATION_REJECTED = 0x12B
    INVALID_IO_COMMAND_SET = 0x12C
    IDENTIFIER_UNAVAILABLE = 0x12D
    STREAM_RESOURCE_ALLOCATION_FAILED = 0x17F
    CONFLICTING_ATTRIBUTES = 0x180
    INVALID_PROTECTION_INFORMATION = 0x181
    WRITE_TO_READ_ONLY_RANGE = 0x182
    COMMAND_SIZE_LIMIT_EXCEEDED = 0x183
    INCOMPATIBLE_NAMESPACE = 0x185
    FAST_COPY_NOT_POSSIBLE = 0x186
    OVERLAPPING_IO_RANGE = 0x187
    NAMESPACE_NOT_REACHABLE = 0x188
    INSUFFICIENT_RESOURCES = 0x189
    INSUFFICIENT_PROGRAM_RESOURCES = 0x18A
    INVALID_MEMORY_NAMESPACE = 0x18B
    INVALID_MEMORY_RANGE_SET = 0x18C
    INVALID_MEMORY_RANGE_SET_IDENTIFIER = 0x18D
    INVALID_PROGRAM_DATA = 0x18E
    INVALID_PROGRAM_INDEX = 0x18F
    INVALID_PROGRAM_TYPE = 0x190
    MAXIMUM_MEMORY_RANGES_EXCEEDED = 0x191
    MAXIMUM_MEMORY_RANGE_SETS_EXCEEDED = 0x192
    MAXIMUM_PROGRAMS_ACTIVATED = 0x193
    MAXIMUM_PROGRAM_BYTES_EXCEEDED = 0x194
    MEMORY_RANGE_SET_IN_USE = 0x195
    NO_PROGRAM = 0x196
    OVERLAPPING_MEMORY_RANGES = 0x197
    PROGRAM_NOT_ACTIVATED = 0x198
    PROGRAM_IN_USE = 0x199
    PROGRAM_INDEX_NOT_DOWNLOADABLE = 0x19A
    PROGRAM_TOO_BIG = 0x19B
    INVALID_ZONE_OPERATION_REQUEST = 0x1B6
    ZRWA_RESOURCES_UNAVAILABLE = 0x1B7
    ZONE_BOUNDARY_ERROR = 0x1B8
    ZONE_IS_FULL = 0x1B9
    ZONE_IS_READ_ONLY = 0x1BA
    ZONE_IS_OFFLINE = 0x1BB
    ZONE_INVALID_WRITE = 0x1BC
    TOO_MANY_ACTIVE_ZONES = 0x1BD
    TOO_MANY_OPEN_ZONES = 0x1BE
    INVALID_ZONE_STATE_TRANSITION = 0x1BF

    # Media and data integrity errors.
    WRITE_FAULT = 0x280
    UNRECOVERED_READ_ERROR = 0x281
    GUARD_CHECK_ERROR = 0x282
    APPLICATION_TAG_CHECK_ERROR = 0x283
    REFERENCE_TAG_CHECK_ERROR = 0x284
    COMPARE_FAILURE = 0x285
    ACCESS_DENIED = 0x286
    DEALLOCATED_OR_UNWRITTEN_BLOCK = 0x287
    STORAGE_TAG_CHECK_ERROR = 0x288

    # Path related status.
    INTERNAL_PATH_ERROR = 0x300
    ASYMMETRIC_ACCESS_PERSISTENT_LOSS = 0x301
    ASYMMETRIC_ACCESS_INACCESSIBLE = 0x302
    ASYMMETRIC_ACCESS_TRANSITION = 0x303
    CONTROLLER_PATHING_ERROR = 0x360
    HOST_PATHING_ERROR = 0x370
    COMMAND_ABORTED_BY_HOST = 0x371


class StatusParts(NamedTuple):
    sct: int
    sc: int


def split(status: int) -> StatusParts:
    """Status code type and status code of a `SCT << 8 | SC` number."""
    return StatusParts(status >> 8 & 7, status & 0xFF)


_ABBREVIATIONS = frozenset({"SQ", "SGL", "CMB", "PRP", "LBA", "KV", "AER", "PMR", "ANA", "IO"})


def describe(status: int) -> str:
    """A status as words, with its numbers; unknown and vendor specific values included."""
    sct, sc = split(status)
    numbers = f"SCT {sct:X}h, SC {sc:02X}h"
    try:
        words = Status(status & 0x7FF).name.split("_")
    except ValueError:
        vendor = sct == StatusCodeType.VENDOR_SPECIFIC or sc >= 0xC0
        return f"{'vendor specific' if vendor else 'unknown'} status ({numbers})"
    cased = [word if word in _ABBREVIATIONS else word.capitalize() for word in words]
    return f"{' '.join(cased)} ({numbers})"


class NvmeError(Exception):
    """A command ends with `status` (`SCT << 8 | SC`) instead of success.

    `dnr` is the Do Not Retry bit of the completion; `detail` says for a person what was wrong. The
    error log is given `location`, where in the command it was (`nvme_spec.logs`), and `lba`, the
    first block that has to do with it; 0 where none has. `result` is dwords 0 and 1 of the
    completion.
    """

    def __init__(
        self,
        status: int,
        detail: str = "",
        *,
        dnr: bool = True,
        location: int | None = None,
        lba: int = 0,
        result: int = 0,
    ) -> None:
        super().__init__(status, dnr, detail)
        self.status = status
        self.dnr = dnr
        self.detail = detail
        self.location = location
        self.lba = lba
        self.result = result

    def __str__(self) -> str:
        return f"{describe(self.status)}: {self.detail}" if self.detail else describe(self.status)

"""Log pages and asynchronous events.

NVM Express Base Specification 2.0, section 5.16.1 (log specific information) and section 5.2
(Asynchronous Event Request).
"""

import struct
from collections.abc import Mapping
from enum import IntEnum, IntFlag

from nvme_spec.layout import Structure, bits, raw, table, text, u8, u16, u32, u64, u128, uint, uints
from nvme_spec.words import Word, field


class LogPage(IntEnum):
    """Log page identifiers (section 5.16.1)."""

    SUPPORTED_LOG_PAGES = 0x00
    ERROR_INFORMATION = 0x01
    SMART = 0x02
    FIRMWARE_SLOT = 0x03
    CHANGED_NAMESPACE_LIST = 0x04
    COMMANDS_SUPPORTED_AND_EFFECTS = 0x05
    DEVICE_SELF_TEST = 0x06
    TELEMETRY_HOST = 0x07
    TELEMETRY_CONTROLLER = 0x08
    ENDURANCE_GROUP = 0x09
    PREDICTABLE_LATENCY_NVM_SET = 0x0A
    PREDICTABLE_LATENCY_AGGREGATE = 0x0B
    ASYMMETRIC_NAMESPACE_ACCESS = 0x0C
    PERSISTENT_EVENT = 0x0D
    LBA_STATUS = 0x0E
    ENDURANCE_GROUP_EVENT_AGGREGATE = 0x0F
    MEDIA_UNIT_STATUS = 0x10
    SUPPORTED_CAPACITY_CONFIGURATION_LIST = 0x11
    FEATURE_IDENTIFIERS_SUPPORTED_AND_EFFECTS = 0x12
    NVME_MI_COMMANDS_SUPPORTED_AND_EFFECTS = 0x13
    LOCKDOWN = 0x14
    BOOT_PARTITION = 0x15
    ROTATIONAL_MEDIA = 0x16
    REACHABILITY_GROUPS = 0x1A
    REACHABILITY_ASSOCIATIONS = 0x1B
    FDP_CONFIGURATIONS = 0x20
    RECLAIM_UNIT_HANDLE_USAGE = 0x21
    FDP_STATISTICS = 0x22
    FDP_EVENTS = 0x23
    DISCOVERY = 0x70
    RESERVATION_NOTIFICATION = 0x80
    SANITIZE_STATUS = 0x81
    PROGRAM_LIST = 0x82
    DOWNLOADABLE_PROGRAM_TYPES = 0x83
    MEMORY_RANGE_SETS = 0x84
    HOST_ADDRESSABLE_NAMESPACES = 0x85
    CHANGED_ZONE_LIST = 0xBF


FIRST_VENDOR_PAGE = 0xC0
LOG_PAGE_COUNT = 256
COMMAND_COUNT = 256
CHANGED_NAMESPACE_LIST_SIZE = 4096
CHANGED_NAMESPACE_LIST_OVERFLOW = 0xFFFF_FFFF
"""The first and only entry when more namespaces changed than the list can hold."""


class LogPageSupport(IntFlag):
    """An entry of the Supported Log Pages log (section 5.16.1.1)."""

    LSUPP = 1 << 0
    IOS = 1 << 1


LOG_PAGE_SPECIFIC_SHIFT = 16
"""Bits 31:16 of such an entry are specific to the page."""


class ErrorLogEntry(Structure):
    """Error Information, 64 bytes (section 5.16.1.2)."""

    SIZE = 64
    error_count = u64(0)
    sqid = u16(8)
    cid = u16(10)
    phase = bits(12, 2, 0, 0)
    status = bits(12, 2, 1, 11)
    """`SCT << 8 | SC`."""
    more = bits(12, 2, 14, 14)
    dnr = bits(12, 2, 15, 15)
    parameter_error_location = u16(14)
    lba = u64(16)
    nsid = u32(24)
    vendor_log_page = u8(28)
    trtype = u8(29)
    command_specific = u64(32)
    transport_specific = u16(40)


NO_PARAMETER_ERROR_LOCATION = 0xFFFF
NO_COMMAND = 0xFFFF
"""SQID and CID of an error that is no particular command's."""


class CommandByte(IntEnum):
    """Offsets of a command's parameters, for a parameter error location."""

    OPCODE = 0
    FLAGS = 1
    CID = 2
    NSID = 4
    MPTR = 16
    PRP1 = 24
    PRP2 = 32
    CDW10 = 40
    CDW11 = 44
    CDW12 = 48


def parameter_error_location(byte: int, bit: int = 0) -> int:
    """The byte of a command and the bit in it that are wrong."""
    return bit << 8 | byte


class CriticalWarning(IntFlag):
    """Byte 0 of the SMART log, and bits 7:0 of the asynchronous event configuration."""

    SPARE_BELOW_THRESHOLD = 1 << 0
    TEMPERATURE = 1 << 1
    RELIABILITY_DEGRADED = 1 << 2
    READ_ONLY = 1 << 3
    VOLATILE_MEMORY_BACKUP_FAILED = 1 << 4
    PERSISTENT_MEMORY_REGION_READ_ONLY = 1 << 5


SMART_DATA_UNIT = 512 * 1000
"""Bytes in one data unit read or written; the counters round up."""


class SmartLog(Structure):
    """SMART / Health Information, 512 bytes (section 5.16.1.3): Kelvin, minutes, hours."""

    SIZE = 512
    critical_warning = u8(0)
    composite_temperature = uint(1, 2)
    available_spare = u8(3)
    available_spare_threshold = u8(4)
    percentage_used = u8(5)
    endurance_group_critical_warning = u8(6)
    data_units_read = u128(32)
    data_units_written = u128(48)
    host_read_commands = u128(64)
    host_write_commands = u128(80)
    controller_busy_time = u128(96)
    power_cycles = u128(112)
    power_on_hours = u128(128)
    unsafe_shutdowns = u128(144)
    media_errors = u128(160)
    error_log_entries = u128(176)
    warning_temperature_time = u32(192)
    critical_temperature_time = u32(196)
    temperature_sensors = uints(200, 2, 8)
    thermal_transitions_1 = u32(216)
    thermal_transitions_2 = u32(220)
    thermal_time_1 = u32(224)
    thermal_time_2 = u32(228)


class FirmwareSlotLog(Structure):
    """Firmware Slot Information, 512 bytes (section 5.16.1.4); `frs` one revision a slot."""

    SIZE = 512
    active_slot = bits(0, 1, 0, 2)
    next_slot = bits(0, 1, 4, 6)
    frs1 = text(8, 8)
    frs2 = text(16, 8)
    frs3 = text(24, 8)
    frs4 = text(32, 8)
    frs5 = text(40, 8)
    frs6 = text(48, 8)
    frs7 = text(56, 8)


class CommandEffects(IntFlag):
    """An entry of the Commands Supported and Effects log (section 5.16.1.6)."""

    CSUPP = 1 << 0
    LBCC = 1 << 1
    NCC = 1 << 2
    NIC = 1 << 3
    CCC = 1 << 4
    NAMESPACE_SCOPE = 1 << 20
    CONTROLLER_SCOPE = 1 << 21


class SubmissionRestriction(IntEnum):
    """CSE, bits 18:16 of a command's effects: what may be outstanding beside the command."""

    NONE = 0
    ANY_NAMESPACE = 2


CSE_SHIFT = 16


class CommandEffectsLog(Structure):
    """Commands Supported and Effects, 4096 bytes: one dword an opcode, Admin before I/O."""

    SIZE = 4096
    acs = uints(0, 4, COMMAND_COUNT)
    iocs = uints(1024, 4, COMMAND_COUNT)


class FeatureEffects(IntFlag):
    """An entry of the Feature Identifiers Supported and Effects log (section 5.16.1.18)."""

    FSUPP = 1 << 0
    NCC = 1 << 2
    NIC = 1 << 3
    CCC = 1 << 4
    NAMESPACE_SCOPE = 1 << 20
    CONTROLLER_SCOPE = 1 << 21


def encode_dword_log(entries: Mapping[int, int]) -> bytes:
    """A log of 256 dwords with `entries` by index: supported log pages, features."""
    return struct.pack(f"<{LOG_PAGE_COUNT}I", *(entries.get(i, 0) for i in range(LOG_PAGE_COUNT)))


class SelfTestResult(IntEnum):
    """Result of a device self-test (section 5.16.1.7)."""

    PASSED = 0x0
    ABORTED_BY_COMMAND = 0x1
    ABORTED_BY_RESET = 0x2
    ABORTED_BY_NAMESPACE_REMOVAL = 0x3
    ABORTED_BY_FORMAT = 0x4
    FATAL_ERROR = 0x5
    UNKNOWN_SEGMENT_FAILED = 0x6
    SEGMENT_FAILED = 0x7
    ABORTED = 0x8
    ABORTED_BY_SANITIZE = 0x9
    NOT_USED = 0xF


class SelfTestEntry(Structure):
    """One result of the Device Self-test log, 28 bytes."""

    SIZE = 28
    result = bits(0, 1, 0, 3)
    code = bits(0, 1, 4, 7)
    segment = u8(1)
    nsid_valid = bits(2, 1, 0, 0)
    lba_valid = bits(2, 1, 1, 1)
    sct_valid = bits(2, 1, 2, 2)
    sc_valid = bits(2, 1, 3, 3)
    power_on_hours = u64(4)
    nsid = u32(12)
    failing_lba = u64(16)
    sct = bits(24, 1, 0, 2)
    sc = u8(25)
    vendor_specific = u16(26)


SELF_TEST_RESULTS = 20


TELEMETRY_BLOCK_SIZE = 512
"""Bytes; offset and length of a read of a telemetry log are multiples of it."""

TELEMETRY_CREATE = 1 << 0
"""Log specific parameter of the host-initiated log: capture the controller's state now."""


class TelemetryHeader(Structure):
    """Telemetry Host-Initiated and Controller-Initiated, block 0 (sections 5.16.1.8, 5.16.1.9).

    Data area n is the blocks 1 to `last_block_n`, so each includes the ones before it. The host's
    generation is reserved in the controller-initiated log.
    """

    SIZE = TELEMETRY_BLOCK_SIZE
    lid = u8(0)
    ieee = uint(5, 3)
    last_block_1 = u16(8)
    last_block_2 = u16(10)
    last_block_3 = u16(12)
    last_block_4 = u32(16)
    host_generation = u8(381)
    controller_available = u8(382)
    controller_generation = u8(383)
    reason = raw(384, 128)


class LbaStatusLog(Structure):
    """LBA Status Information, the header (NVM Command Set 1.0, section 4.1.4.5)."""

    SIZE = 16
    lslplen = u32(0)
    nlslne = u32(4)
    estulb = u32(8)
    lsgc = u16(14)


class LbaStatusElement(Structure):
    """LBA Status Log Namespace Element, the header: a namespace and how many ranges follow."""

    SIZE = 16
    neid = u32(0)
    nlrd = u32(4)
    ratype = u8(8)


class LbaRangeDescriptor(Structure):
    """A range of blocks that may be unrecoverable; the number is 0's based."""

    SIZE = 16
    rslba = u64(0)
    rnlb_z = u32(8)


class DeviceSelfTestLog(Structure):
    """Device Self-test, 564 bytes (section 5.16.1.7): the operation at hand, then 20 results."""

    SIZE = 564
    current_operation = bits(0, 1, 0, 3)
    current_completion = bits(1, 1, 0, 6)
    results = table(4, SelfTestEntry, SELF_TEST_RESULTS)


class SanitizeState(IntEnum):
    """Bits 2:0 of SSTAT."""

    NEVER_SANITIZED = 0
    SUCCEEDED = 1
    IN_PROGRESS = 2
    FAILED = 3
    SUCCEEDED_WITH_DEALLOCATION = 4


SANITIZE_PROGRESS_UNIT = 1 << 16
"""SPROG counts in parts of this."""
SANITIZE_NO_PROGRESS = 0xFFFF
"""SPROG while no sanitize operation is in progress."""
NO_TIME_REPORTED = 0xFFFF_FFFF


class SanitizeStatusLog(Structure):
    """Sanitize Status, 512 bytes (section 5.16.1.25); times in seconds.

    Those that end in `_nd` are with No-Deallocate After Sanitize.
    """

    SIZE = 512
    sprog = u16(0)
    state = bits(2, 2, 0, 2)
    passes = bits(2, 2, 3, 7)
    global_data_erased = bits(2, 2, 8, 8)
    scdw10 = u32(4)
    overwrite_time = u32(8)
    block_erase_time = u32(12)
    crypto_erase_time = u32(16)
    overwrite_time_nd = u32(20)
    block_erase_time_nd = u32(24)
    crypto_erase_time_nd = u32(28)


class AsyncEventType(IntEnum):
    """Bits 2:0 of dword 0."""

    ERROR = 0
    SMART = 1
    NOTICE = 2
    IO_COMMAND_SET = 6
    VENDOR_SPECIFIC = 7


class ErrorEvent(IntEnum):
    """Information of an error event."""

    INVALID_DOORBELL_REGISTER = 0x00
    INVALID_DOORBELL_VALUE = 0x01
    DIAGNOSTIC_FAILURE = 0x02
    TRANSIENT_INTERNAL_ERROR = 0x04


class SmartEvent(IntEnum):
    """Information of a health status event."""

    RELIABILITY = 0x00
    TEMPERATURE_THRESHOLD = 0x01
    SPARE_BELOW_THRESHOLD = 0x02


class NoticeEvent(IntEnum):
    """Information of a notice."""

    NAMESPACE_ATTRIBUTE_CHANGED = 0x00
    FIRMWARE_ACTIVATION_STARTING = 0x01
    TELEMETRY_LOG_CHANGED = 0x02
    ASYMMETRIC_ACCESS_CHANGE = 0x03
    LBA_STATUS = 0x05
    REACHABILITY_GROUP_CHANGE = 0x07
    REACHABILITY_ASSOCIATION_CHANGE = 0x08
    ALLOCATED_NAMESPACE_ATTRIBUTE_CHANGED = 0x09
    ZONE_DESCRIPTOR_CHANGED = 0xEF


class IoCommandSetEvent(IntEnum):
    """Information of an I/O command specific event."""

    RESERVATION_LOG_PAGE_AVAILABLE = 0x00
    SANITIZE_COMPLETED = 0x01


class AsyncEvent(Word):
    """Dwords 0 and 1 of an Asynchronous Event Request's completion."""

    WIDTH = 8
    type = field(0, 2)
    info = field(8, 15)
    log_page = field(16, 23)
    nsid = field(32, 63)
    """The namespace of a zone event (Zoned Namespace Command Set 1.1, figure 43)."""

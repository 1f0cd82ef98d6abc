"""Log pages and a feature of the Open Compute Project, which have vendor specific identifiers.

A host names them by the index of the project's UUID in the controller's UUID list (Base 2.0,
section 8.25).

Source: OCP Datacenter NVMe SSD Specification 2.0, sections 4.8.6 (log C0h), 4.8.9 (log C3h) and
4.15.7 (feature C5h), and appendix C (latency monitoring).
"""

from enum import IntEnum
from uuid import UUID

from nvme_spec.layout import Structure, raw, u8, u16, u32, u64, u128, uint, uints

OCP_UUID = UUID("c194d55b-e094-4794-a21d-29998f56be6f")
UUID_INDEX = 1
"""Its index in the list, which has no other."""

LATENCY_MONITOR_FEATURE = 0xC5


class OcpLogPage(IntEnum):
    """Log page identifiers."""

    SMART_EXTENDED = 0xC0
    LATENCY_MONITOR = 0xC3


class SmartExtended(Structure):
    """Log C0h, SMART / Health Information Extended."""

    SIZE = 512
    VERSION = 3
    GUID = UUID(int=0xAFD514C97C6F4F9CA4F2BFEA2810AFC5).bytes[::-1]
    physical_media_units_written = u128(0)
    physical_media_units_read = u128(16)
    bad_user_blocks = uint(32, 6)
    bad_user_blocks_normalized = u16(38)
    bad_system_blocks = uint(40, 6)
    bad_system_blocks_normalized = u16(46)
    uncorrectable_read_errors = u64(56)
    soft_ecc_errors = u64(64)
    system_data_used = u8(80)
    refresh_count = uint(81, 7)
    most_erases = u32(88)
    least_erases = u32(92)
    throttling_events = u8(96)
    throttling_status = u8(97)
    dssd_point_version = u16(99)
    dssd_minor_version = u16(101)
    dssd_major_version = u8(103)
    incomplete_shutdowns = u32(112)
    free_blocks = u8(120)
    capacitor_health = u16(128)
    unaligned_io = u64(136)
    total_nuse = u64(152)
    power_state_changes = u64(200)
    version = u16(494)
    guid = raw(496, 16)


BUCKETS = 4
NO_TIME = (1 << 64) - 1
"""The time of a latency that was not measured."""


class LatencyMonitorLog(Structure):
    """Log C3h, Latency Monitor. A counter of bucket b and operation o (0 TRIM, 1 write, 2 read) is
    number 4 * b + o + 1, its time and latency are number 3 * (3 - b) + o: the last bucket is first.
    """

    SIZE = 512
    VERSION = 1
    GUID = UUID(int=0x85D45E58D4E643709C6C84D08CC07A92).bytes[::-1]
    status = u8(0)
    timer = u16(2)
    timer_threshold = u16(4)
    thresholds = uints(6, 1, BUCKETS)
    configuration = u16(10)
    minimum_window = u8(12)
    counters = uints(0x20, 4, 16)
    times = uints(0x60, 8, 12)
    latencies = uints(0xC0, 2, 12)
    static_counters = uints(0xF0, 4, 16)
    static_times = uints(0x130, 8, 12)
    static_latencies = uints(0x190, 2, 12)
    debug_time = u64(0x1C4)
    version = u16(0x1EE)
    guid = raw(0x1F0, 16)


class LatencyMonitorSettings(Structure):
    """The data of feature C5h, Latency Monitor: what the log has of it, and what it does."""

    SIZE = 4096
    timer_threshold = u16(0)
    thresholds = uints(2, 1, BUCKETS)
    configuration = u16(6)
    minimum_window = u8(8)
    debug_triggers = u16(9)
    discard_debug_log = u8(11)
    enable = u8(12)

"""Opcodes, operations and the numbers that both ends of a command must agree on.

Alkali CSD platform documentation, sections 4.2.1, 4.3.1 and 4.3.2. As everywhere in NVMe, bits 1:0
of an opcode give the direction of its data.
"""

from enum import IntEnum


class AdminOpcode(IntEnum):
    """Vendor specific Admin commands (section 4.3.1)."""

    GLOBAL_CONTROL = 0xC0
    IDENTIFY = 0xC2
    GET_STATUS = 0xC6


class FaultOpcode(IntEnum):
    """Admin commands for fault injection (extension; `csd_spec.faults`)."""

    FAULT_SEND = 0xF1
    FAULT_RECEIVE = 0xF2


class ClockOpcode(IntEnum):
    """The Admin command of a drive whose clock waits for its host (extension)."""

    ADVANCE = 0xF4


class IoOpcode(IntEnum):
    """Vendor specific I/O commands (section 4.3.2); the last four are extensions."""

    SEND_DATA = 0x81
    READ_DATA = 0x82
    SEND_FIRMWARE = 0x85
    READ_FIRMWARE = 0x86
    LOCAL_INPUT = 0x88
    LOCAL_OUTPUT = 0x8C
    CONTROL = 0x91
    APPEND_LOCAL_INPUT = 0x94
    APPEND_LOCAL_OUTPUT = 0x98
    GRANT_LOCAL_STORAGE = 0x9C
    SEND_PEER_DATA = 0x84


class ChainOpcode(IntEnum):
    """The I/O command of compute namespaces for several executions (extension;
    `csd_spec.chains`)."""

    EXECUTE_CHAIN = 0xA1


class ValueOpcode(IntEnum):
    """The I/O command of memory namespaces that copies values of key value namespaces (extension;
    `csd_spec.values`)."""

    COPY_VALUES = 0xA1


class GlobalOperation(IntEnum):
    """CDW12 of Global Accelerator Control."""

    ENABLE = 0
    DISABLE = 1


class Operation(IntEnum):
    """CDW13 of Basic Accelerator Control; the last one is an extension."""

    RESET = 0
    START = 1
    STOP = 2
    SELECT_FIRMWARE = 3
    START_CHAIN = 4


class LogPage(IntEnum):
    """Vendor specific log pages (section 4.3.1); all but the first are extensions."""

    ACCELERATORS = 0xC0
    MODELLED_TIME = 0xC1
    TRAFFIC = 0xC2
    PLACEMENT_HANDLES = 0xCE
    """Bytes of placement handles: `csd_spec.placement.PlacementLog`."""
    NOTICES = 0xCF
    """The notices of a translation layer that an extension has: `csd_spec.notices.NoticeLog`."""


LOG_PAGE = LogPage.ACCELERATORS
"""Log page identifier of the accelerator log; the Log Specific Identifier is the accelerator ID."""

TIMING_LOG_PAGE = LogPage.MODELLED_TIME
"""Log page identifier of the log on modelled time (extension): `csd_spec.timing.TimingLog`."""

TRAFFIC_LOG_PAGE = LogPage.TRAFFIC
"""Log page identifier of the log on traffic (extension): `csd_spec.traffic.TrafficLog`."""

JOB_ENDED_EVENT = 0x00
"""Information of the vendor specific asynchronous event that a finished job raises (extension)."""

KEEP_ACTIVE_FIRMWARE = 0xFFFF_FFFF
"""The firmware ID with which Start leaves the active firmware as it is (extension)."""

QUERY_FIRMWARE = 0xFFFF_FFFE
"""The firmware ID of the device-defined program that queries tables (extension)."""

PAGE_SIZE = 4096
"""Bytes of a page: the unit of a local storage range, whatever the namespace's block size."""

DWORD_SIZE = 4

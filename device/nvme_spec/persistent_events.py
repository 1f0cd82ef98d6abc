"""The Persistent Event log: its header, and the events that it may hold.

An event's data is a structure that knows its own type. NVM Express Base Specification 2.0, section
5.16.1.14 (Persistent Event Log); NVM Command Set Specification 1.0, section 4.1.4.2.
"""

from enum import IntEnum
from typing import ClassVar

from nvme_spec.layout import Structure, bits, nested, raw, text, u8, u16, u32, u64, u128
from nvme_spec.logs import SmartLog, TelemetryHeader

LOG_REVISION = 3
"""Revision of the log page in Base 2.0."""

EVENT_REVISION = 1

SIZE_UNIT = 64 << 10
"""Bytes that PELS in Identify Controller counts the log's size in."""

REPORTING_CONTEXT_EXISTS = 1 << 18
"""Bit of RCI: the context was there before the command that reads it."""

NVM_SUBSYSTEM_PORT = 1 << 16
"""RCPIT of RCI: whoever has the context is a host at a port of the subsystem."""

ESTABLISH_AND_READ_HEADER = 1 << 0
"""Bit of the page's specific field in the Supported Log Pages log: the action of that name."""


class PersistentEventAction(IntEnum):
    """Log specific parameter, CDW10 bits 9:8."""

    READ = 0
    ESTABLISH_AND_READ = 1
    RELEASE = 2
    ESTABLISH_AND_READ_HEADER = 3


class PersistentEventType(IntEnum):
    """Event types; each is a bit of SEB, too."""

    SMART_SNAPSHOT = 0x01
    FIRMWARE_COMMIT = 0x02
    TIMESTAMP_CHANGE = 0x03
    POWER_ON_OR_RESET = 0x04
    HARDWARE_ERROR = 0x05
    CHANGE_NAMESPACE = 0x06
    FORMAT_START = 0x07
    FORMAT_COMPLETION = 0x08
    SANITIZE_START = 0x09
    SANITIZE_COMPLETION = 0x0A
    SET_FEATURE = 0x0B
    TELEMETRY_LOG_CREATED = 0x0C
    THERMAL_EXCURSION = 0x0D
    VENDOR_SPECIFIC = 0xDE


class PersistentEventHeader(Structure):
    """The header of the log, 512 bytes."""

    SIZE = 512
    lid = u8(0)
    tnev = u32(4)
    tll = u64(8)
    revision = u8(16)
    lhl = u16(18)
    """Bytes of the header that follow this field."""
    timestamp = u64(20)
    power_on_hours = u128(28)
    power_cycles = u64(44)
    vid = u16(52)
    ssvid = u16(54)
    sn = text(56, 20)
    mn = text(76, 40)
    subnqn = text(116, 256, pad=b"\0")
    generation = u16(372)
    rci = u32(374)
    seb = raw(480, 32)


LHL = PersistentEventHeader.SIZE - 20


class PortType(IntEnum):
    """PIT of an event: what port it is associated with."""

    NONE = 3


class EventHeader(Structure):
    """The header of an event, 24 bytes. `el` bytes follow it, vendor's information first."""

    SIZE = 24
    type = u8(0)
    revision = u8(1)
    ehl = u8(2)
    """Bytes of the header that follow this field."""
    pit = bits(3, 1, 0, 1)
    cntlid = u16(4)
    timestamp = u64(6)
    pelpid = u16(14)
    vsil = u16(20)
    el = u16(22)


EHL = EventHeader.SIZE - 3


class EventData(Structure):
    """Base class of the data of events; a subclass is the data of one type of event."""

    SIZE = 0
    TYPE: ClassVar[PersistentEventType]


class SmartSnapshot(EventData):
    """01h: the SMART / Health Information log as it was."""

    SIZE = SmartLog.SIZE
    TYPE = PersistentEventType.SMART_SNAPSHOT
    smart = nested(0, SmartLog)


class FirmwareCommitted(EventData):
    """02h: a Firmware Commit command, successful or not."""

    SIZE = 22
    TYPE = PersistentEventType.FIRMWARE_COMMIT
    old_revision = text(0, 8)
    new_revision = text(8, 8)
    action = u8(16)
    slot = u8(17)
    sct = u8(18)
    sc = u8(19)
    vendor_result = u16(20)


class TimestampChanged(EventData):
    """03h: the timestamp before, and milliseconds since the last reset."""

    SIZE = 16
    TYPE = PersistentEventType.TIMESTAMP_CHANGE
    previous = u64(0)
    since_reset = u64(8)


class PowerOnOrReset(EventData):
    """04h: the firmware that began, and how its one controller came to it.

    `firmware_activation` is 1 where the reset has activated another firmware.
    """

    SIZE = 44
    TYPE = PersistentEventType.POWER_ON_OR_RESET
    revision = text(0, 8)
    cntlid = u16(8)
    firmware_activation = u8(10)
    operation_in_progress = u8(11)
    power_cycle = u32(24)
    power_on_milliseconds = u64(28)
    timestamp = u64(36)


class HardwareErrorCode(IntEnum):
    """Codes of the NVM Subsystem Hardware Error event that are not about PCI Express."""

    CRITICAL_WARNING = 0x06
    UNSAFE_SHUTDOWN = 0x08
    CONTROLLER_FATAL_STATUS = 0x09
    MEDIA_AND_DATA_INTEGRITY = 0x0A


class HardwareError(EventData):
    """05h, without additional information."""

    SIZE = 4
    TYPE = PersistentEventType.HARDWARE_ERROR
    code = u16(0)


class NamespaceChanged(EventData):
    """06h: a Namespace Management command, and the namespace that it made or removed."""

    SIZE = 48
    TYPE = PersistentEventType.CHANGE_NAMESPACE
    cdw10 = u32(0)
    nsze = u64(8)
    ncap = u64(24)
    flbas = u8(32)
    dps = u8(33)
    nmic = u8(34)
    anagrpid = u32(36)
    nvmsetid = u16(40)
    nsid = u32(44)


class FormatStarted(EventData):
    """07h."""

    SIZE = 12
    TYPE = PersistentEventType.FORMAT_START
    nsid = u32(0)
    fna = u8(4)
    cdw10 = u32(8)


class FormatCompleted(EventData):
    """08h; `format_status` has bit 0 set when the format did not succeed, `status` says why."""

    SIZE = 12
    TYPE = PersistentEventType.FORMAT_COMPLETION
    nsid = u32(0)
    smallest_fpi = u8(4)
    format_status = u8(5)
    completion_information = u16(6)
    status = u16(8)


class SanitizeStarted(EventData):
    """09h."""

    SIZE = 12
    TYPE = PersistentEventType.SANITIZE_START
    sanicap = u32(0)
    cdw10 = u32(4)
    cdw11 = u32(8)


class SanitizeCompleted(EventData):
    """0Ah."""

    SIZE = 8
    TYPE = PersistentEventType.SANITIZE_COMPLETION
    sprog = u16(0)
    sstat = u16(2)
    completion_information = u16(4)


class TelemetryCreated(EventData):
    """0Ch: the header of the telemetry log that a host had made."""

    SIZE = TelemetryHeader.SIZE
    TYPE = PersistentEventType.TELEMETRY_LOG_CREATED
    header = nested(0, TelemetryHeader)


class ThermalExcursion(EventData):
    """0Dh: by how many Kelvin the temperature was beyond which threshold."""

    SIZE = 2
    TYPE = PersistentEventType.THERMAL_EXCURSION
    over_temperature = u8(0)
    threshold = u8(1)

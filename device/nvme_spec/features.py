"""Features: their identifiers, which value of one is meant, and the layouts of CDW11.

NVM Express Base Specification 2.0, section 5.27.1 (Feature Specific Information), where
each layout stands under its feature's name; NVM Command Set Specification 1.0, section 4.1.3.
"""

from enum import IntEnum, IntFlag

from nvme_spec.layout import Structure, bits, raw, table, u8, u16, u64, uint
from nvme_spec.words import Word, field


class FeatureId(IntEnum):
    """Feature identifiers."""

    ARBITRATION = 0x01
    POWER_MANAGEMENT = 0x02
    LBA_RANGE_TYPE = 0x03
    TEMPERATURE_THRESHOLD = 0x04
    ERROR_RECOVERY = 0x05
    VOLATILE_WRITE_CACHE = 0x06
    NUMBER_OF_QUEUES = 0x07
    INTERRUPT_COALESCING = 0x08
    INTERRUPT_VECTOR_CONFIGURATION = 0x09
    WRITE_ATOMICITY_NORMAL = 0x0A
    ASYNCHRONOUS_EVENT_CONFIGURATION = 0x0B
    AUTONOMOUS_POWER_STATE_TRANSITION = 0x0C
    HOST_MEMORY_BUFFER = 0x0D
    TIMESTAMP = 0x0E
    KEEP_ALIVE_TIMER = 0x0F
    HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10
    NON_OPERATIONAL_POWER_STATE = 0x11
    READ_RECOVERY_LEVEL = 0x12
    PREDICTABLE_LATENCY_MODE_CONFIG = 0x13
    PREDICTABLE_LATENCY_MODE_WINDOW = 0x14
    LBA_STATUS_INFORMATION_ATTRIBUTES = 0x15
    HOST_BEHAVIOR_SUPPORT = 0x16
    SANITIZE_CONFIG = 0x17
    ENDURANCE_GROUP_EVENT_CONFIGURATION = 0x18
    IO_COMMAND_SET_PROFILE = 0x19
    SPINUP_CONTROL = 0x1A
    FLEXIBLE_DATA_PLACEMENT = 0x1D
    FDP_EVENTS = 0x1E
    KEY_VALUE_CONFIGURATION = 0x20
    ENHANCED_CONTROLLER_METADATA = 0x7D
    CONTROLLER_METADATA = 0x7E
    NAMESPACE_METADATA = 0x7F
    SOFTWARE_PROGRESS_MARKER = 0x80
    HOST_IDENTIFIER = 0x81
    RESERVATION_NOTIFICATION_MASK = 0x82
    RESERVATION_PERSISTENCE = 0x83
    NAMESPACE_WRITE_PROTECTION = 0x84


class Select(IntEnum):
    """Get Features, CDW10 bits 10:8."""

    CURRENT = 0
    DEFAULT = 1
    SAVED = 2
    SUPPORTED_CAPABILITIES = 3


class FeatureCapabilities(IntFlag):
    """Dword 0 of the completion of Get Features with SUPPORTED_CAPABILITIES."""

    SAVEABLE = 1 << 0
    NAMESPACE_SPECIFIC = 1 << 1
    CHANGEABLE = 1 << 2


class Arbitration(Word):
    """01h. LPW, MPW and HPW are 0's based."""

    ab = field(0, 2)
    lpw_z = field(8, 15)
    mpw_z = field(16, 23)
    hpw_z = field(24, 31)


class PowerManagement(Word):
    """02h: power state and workload hint."""

    ps = field(0, 4)
    wh = field(5, 7)


class AutonomousTransition(Structure):
    """An entry of 0Ch: the power state that a drive enters which was idle for so many
    milliseconds."""

    SIZE = 8
    itps = bits(0, 4, 3, 7)
    itpt = bits(0, 4, 8, 31)


class AutonomousTransitions(Structure):
    """The data of 0Ch: an entry for each power state."""

    SIZE = 256
    entries = table(0, AutonomousTransition, 32)

    class Enable(Word):
        """The dword of 0Ch."""

        apste = field(0)


class ThresholdType(IntEnum):
    """THSEL of the Temperature Threshold feature."""

    OVER = 0
    UNDER = 1


class TemperatureThreshold(Word):
    """04h: Kelvin, sensor, over or under."""

    tmpth = field(0, 15)
    tmpsel = field(16, 19)
    thsel = field(20, 21)


class LbaRangeType(Word):
    """03h (NVM Command Set): how many ranges the data structure holds, 0's based."""

    num_z = field(0, 5)


class RangeType(IntEnum):
    """TYPE of an LBA range; 80h to FFh are vendor specific."""

    GENERAL_PURPOSE = 0
    PAGE_OR_SWAP_FILE = 4


FIRST_VENDOR_RANGE_TYPE = 0x80
MAX_LBA_RANGES = 64


class LbaRange(Structure):
    """03h: one range of up to 64. NLB is not 0's based."""

    SIZE = 64
    type = u8(0)
    attributes = u8(1)
    slba = u64(16)
    nlb = u64(24)
    guid = raw(32, 16)


COMPOSITE_TEMPERATURE = 0
ALL_TEMPERATURES = 0xF
"""TMPSEL of the Temperature Threshold feature; 1 to 8 are single sensors."""


class ErrorRecovery(Word):
    """05h (NVM Command Set): time limit in 100 ms, deallocated block errors."""

    tler = field(0, 15)
    dulbe = field(16)


class VolatileWriteCache(Word):
    """06h: whether the cache is on."""

    wce = field(0)


class NumberOfQueues(Word):
    """07h; asked for in CDW11, granted in dword 0. Both are 0's based."""

    nsq_z = field(0, 15)
    ncq_z = field(16, 31)


UNLIMITED_BURST = 7
"""Arbitration's AB for which a queue keeps its turn while it has commands."""

COALESCING_UNIT = 100e-6
"""Seconds that Interrupt Coalescing counts its time in."""


class InterruptCoalescing(Word):
    """08h: completions (0's based) and time in 100 microseconds."""

    thr_z = field(0, 7)
    time = field(8, 15)


class InterruptVectorConfiguration(Word):
    """09h: vector and whether it is left out of coalescing."""

    iv = field(0, 15)
    cd = field(16)


class WriteAtomicityNormal(Word):
    """0Ah: whether only the atomicity for a power failure counts."""

    dn = field(0)


class AsyncEventConfiguration(Word):
    """0Bh: which health warnings and which notices make an asynchronous event."""

    smart = field(0, 7)
    namespace_attributes = field(8)
    firmware_activation = field(9)
    telemetry = field(10)
    asymmetric_access = field(11)
    predictable_latency = field(12)
    lba_status = field(13)
    endurance_group = field(14)
    subsystem_shutdown = field(15)
    reachability_associations = field(17)
    reachability_groups = field(18)
    allocated_namespace_attributes = field(19)
    zone_descriptors = field(27)


class TimestampOrigin(IntEnum):
    """Origin of a timestamp."""

    CLEARED = 0
    SET_BY_HOST = 1


class Timestamp(Structure):
    """0Eh: milliseconds since the epoch, or since the last reset."""

    SIZE = 8
    timestamp = uint(0, 6)
    synch = bits(6, 1, 0, 0)
    origin = bits(6, 1, 1, 3)


class KeepAliveTimer(Word):
    """0Fh: milliseconds after which a host that says nothing is taken for dead; 0 is never."""

    kato = field(0, 31)


class HostControlledThermalManagement(Word):
    """10h: Kelvin from which on the device throttles a little (TMT1) and heavily (TMT2)."""

    tmt2 = field(0, 15)
    tmt1 = field(16, 31)


class HostBehavior(Structure):
    """16h: what the host is ready for."""

    SIZE = 512
    acre = u8(0)
    etdas = u8(1)
    lbafee = u8(2)
    copy_formats = u16(4)
    """CDFE: bit n enables copy descriptor format n (Base 2.1)."""


class IoCommandSetProfile(Word):
    """19h: index of the I/O command set combination."""

    iocsci = field(0, 8)


class SoftwareProgressMarker(Word):
    """80h: how often the software before the operating system has been loaded."""

    pbslc = field(0, 7)


class WriteProtectionState(IntEnum):
    """WPS of the feature Namespace Write Protection; other states need an RPMB."""

    NO_WRITE_PROTECT = 0
    WRITE_PROTECT = 1


class NamespaceWriteProtection(Word):
    """84h: the state of a namespace (section 8.12)."""

    wps = field(0, 2)


class ReservationNotificationMask(Word):
    """82h: which notifications make no log page of a namespace; bit n masks those of type n."""

    regpre = field(1)
    resrel = field(2)
    respre = field(3)


class ReservationPersistence(Word):
    """83h: the Persist Through Power Loss state of a namespace."""

    ptpl = field(0)


class HostIdentifier(Word):
    """81h: whether the identifier in the data structure has 128 bits, or 64."""

    exhid = field(0)


HOST_IDENTIFIER_SIZE = 8
EXTENDED_HOST_IDENTIFIER_SIZE = 16
"""Bytes."""

"""The bits with which a controller and a namespace say what they can do.

NVM Express Base Specification 2.0, section 5.17.2 (Identify Controller data structure); NVM Command
Set Specification 1.0, section 4.1.5 (Identify Namespace data structure).
"""

from enum import IntEnum, IntFlag


class CommandSet(IntEnum):
    """Command set identifiers (section 3.1.3, CSI)."""

    NVM = 0x00
    KEY_VALUE = 0x01
    ZONED = 0x02
    MEMORY = 0x03
    """Subsystem Local Memory (SLM)."""
    COMPUTE = 0x04
    """Computational Programs (CP)."""


class ControllerType(IntEnum):
    """CNTRLTYPE."""

    NOT_REPORTED = 0
    IO = 1
    DISCOVERY = 2
    ADMINISTRATIVE = 3


class Cmic(IntFlag):
    """Controller Multi-Path I/O and Namespace Sharing Capabilities, byte 76."""

    MULTIPLE_PORTS = 1 << 0
    MULTIPLE_CONTROLLERS = 1 << 1
    VIRTUAL_FUNCTION = 1 << 2
    ASYMMETRIC_ACCESS = 1 << 3


class Oaes(IntFlag):
    """Optional Asynchronous Events Supported, byte 92."""

    NAMESPACE_ATTRIBUTES = 1 << 8
    FIRMWARE_ACTIVATION = 1 << 9
    ASYMMETRIC_ACCESS = 1 << 11
    PREDICTABLE_LATENCY = 1 << 12
    LBA_STATUS = 1 << 13
    ENDURANCE_GROUP = 1 << 14
    SUBSYSTEM_SHUTDOWN = 1 << 15
    REACHABILITY = 1 << 17
    """Reachability Group Change and Reachability Association Change (Base 2.1)."""
    ZONE_DESCRIPTOR = 1 << 27
    DISCOVERY_LOG = 1 << 31


class Ctratt(IntFlag):
    """Controller Attributes, byte 96."""

    HOST_IDENTIFIER_128 = 1 << 0
    NON_OPERATIONAL_POWER_STATE = 1 << 1
    NVM_SETS = 1 << 2
    READ_RECOVERY_LEVELS = 1 << 3
    ENDURANCE_GROUPS = 1 << 4
    PREDICTABLE_LATENCY = 1 << 5
    TRAFFIC_BASED_KEEP_ALIVE = 1 << 6
    NAMESPACE_GRANULARITY = 1 << 7
    SQ_ASSOCIATIONS = 1 << 8
    UUID_LIST = 1 << 9
    EXTENDED_LBA_FORMATS = 1 << 15
    FLEXIBLE_DATA_PLACEMENT = 1 << 19


class Crcap(IntFlag):
    """Controller Reachability Capabilities, byte 134 (Base 2.1)."""

    REPORTING = 1 << 0
    GROUPS_FIXED = 1 << 1
    """RGIDC: a namespace's group does not change while it is attached."""


class Nvmsr(IntFlag):
    """NVM Subsystem Report, byte 253."""

    STORAGE_DEVICE = 1 << 0
    ENCLOSURE = 1 << 1


class Oacs(IntFlag):
    """Optional Admin Command Support, byte 256."""

    SECURITY = 1 << 0
    FORMAT_NVM = 1 << 1
    FIRMWARE = 1 << 2
    NAMESPACE_MANAGEMENT = 1 << 3
    DEVICE_SELF_TEST = 1 << 4
    DIRECTIVES = 1 << 5
    NVME_MI = 1 << 6
    VIRTUALIZATION_MANAGEMENT = 1 << 7
    DOORBELL_BUFFER_CONFIG = 1 << 8
    GET_LBA_STATUS = 1 << 9
    COMMAND_AND_FEATURE_LOCKDOWN = 1 << 10


class Frmw(IntFlag):
    """Firmware Updates, byte 260; bits 3:1 count the slots (`FRMW_SLOTS_SHIFT`)."""

    FIRST_SLOT_READ_ONLY = 1 << 0
    ACTIVATION_WITHOUT_RESET = 1 << 4
    OVERLAP_DETECTION = 1 << 5


FRMW_SLOTS_SHIFT = 1
FWUG_NO_RESTRICTION = 0xFF
"""Firmware Update Granularity: a download may have any alignment and size."""


class Lpa(IntFlag):
    """Log Page Attributes, byte 261."""

    SMART_PER_NAMESPACE = 1 << 0
    COMMANDS_SUPPORTED_AND_EFFECTS = 1 << 1
    EXTENDED_DATA = 1 << 2
    TELEMETRY = 1 << 3
    PERSISTENT_EVENT = 1 << 4
    SUPPORTED_LOG_PAGES = 1 << 5
    TELEMETRY_DATA_AREA_4 = 1 << 6


class Oncs(IntFlag):
    """Optional NVM Command Support, byte 520."""

    COMPARE = 1 << 0
    WRITE_UNCORRECTABLE = 1 << 1
    DATASET_MANAGEMENT = 1 << 2
    WRITE_ZEROES = 1 << 3
    SAVE_AND_SELECT = 1 << 4
    RESERVATIONS = 1 << 5
    TIMESTAMP = 1 << 6
    VERIFY = 1 << 7
    COPY = 1 << 8


class Fuses(IntFlag):
    """Fused Operation Support, byte 522."""

    COMPARE_AND_WRITE = 1 << 0


class Fna(IntFlag):
    """Format NVM Attributes, byte 524."""

    FORMAT_ALL_NAMESPACES = 1 << 0
    ERASE_ALL_NAMESPACES = 1 << 1
    CRYPTOGRAPHIC_ERASE = 1 << 2
    BROADCAST_NOT_SUPPORTED = 1 << 3


class Vwc(IntFlag):
    """Volatile Write Cache, byte 525; bits 2:1 say what Flush does with the broadcast NSID."""

    PRESENT = 1 << 0
    FLUSH_BROADCAST_NOT_SUPPORTED = 2 << 1
    FLUSH_BROADCAST_SUPPORTED = 3 << 1


class Sgls(IntFlag):
    """SGL Support, byte 536; bits 1:0 are one of the first two."""

    SUPPORTED = 1 << 0
    SUPPORTED_DWORD_ALIGNED = 2 << 0
    KEYED = 1 << 2
    BIT_BUCKET = 1 << 16
    BYTE_ALIGNED_METADATA = 1 << 17
    LARGER_THAN_DATA = 1 << 18
    METADATA_SEGMENT = 1 << 19
    OFFSET = 1 << 20
    TRANSPORT = 1 << 21


class Hctma(IntFlag):
    """Host Controlled Thermal Management Attributes, byte 322."""

    SUPPORTED = 1 << 0


KEEP_ALIVE_UNIT = 100
"""Milliseconds that KAS, byte 320, counts the granularity of the Keep Alive Timer in."""

THIS_CONTROLLER = 0xFFFF
"""CNTID of CNS 1Ch that means the controller which has the command."""


def entry_sizes(required: int, maximum: int) -> int:
    """SQES or CQES: required size in bits 3:0, maximum in 7:4, both powers of two."""
    return maximum << 4 | required


class Nsfeat(IntFlag):
    """Namespace Features, byte 24."""

    THIN_PROVISIONING = 1 << 0
    ATOMICITY = 1 << 1
    DEALLOCATED_BLOCK_ERROR = 1 << 2
    IDENTIFIERS_NOT_REUSED = 1 << 3
    OPTIMAL_PERFORMANCE = 1 << 4


class Dlfeat(IntFlag):
    """Deallocate Logical Block Features, byte 33; bits 2:0 say what a deallocated block reads."""

    READS_ZEROES = 1 << 0
    READS_ONES = 2 << 0
    WRITE_ZEROES_DEALLOCATES = 1 << 3
    GUARD_IS_CRC = 1 << 4


class Mc(IntFlag):
    """Metadata Capabilities, byte 27 of Identify Namespace."""

    EXTENDED = 1 << 0
    SEPARATE = 1 << 1


class Dpc(IntFlag):
    """End-to-end Data Protection Capabilities, byte 28 of Identify Namespace."""

    TYPE_1 = 1 << 0
    TYPE_2 = 1 << 1
    TYPE_3 = 1 << 2
    FIRST_BYTES = 1 << 3
    LAST_BYTES = 1 << 4


DPS_TYPE = 0x7
"""Bits of DPS: the type of protection information, 0 for none."""
DPS_FIRST = 1 << 3
"""Bit of DPS: protection information is the first bytes of metadata."""


class Pic(IntFlag):
    """Protection Information Capabilities, byte 8 of CNS 05h."""

    STORAGE_TAG_16 = 1 << 0
    STORAGE_TAG_16_UNMASKED = 1 << 1


class Sanicap(IntFlag):
    """Sanitize Capabilities, byte 328; bits 31:30 are one of the last two."""

    CRYPTO_ERASE = 1 << 0
    BLOCK_ERASE = 1 << 1
    OVERWRITE = 1 << 2
    NO_DEALLOCATE_INHIBITED = 1 << 29
    MEDIA_NOT_MODIFIED = 1 << 30
    MEDIA_MODIFIED = 2 << 30


class Dsto(IntFlag):
    """Device Self-test Options, byte 318."""

    ONE_IN_SUBSYSTEM = 1 << 0


NMIC_SHARED = 1 << 0
"""Bit of NMIC: two or more controllers may have the namespace attached."""


class Rescap(IntFlag):
    """Reservation Capabilities, byte 31 of Identify Namespace."""

    PERSIST_THROUGH_POWER_LOSS = 1 << 0
    WRITE_EXCLUSIVE = 1 << 1
    EXCLUSIVE_ACCESS = 1 << 2
    WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 1 << 3
    EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 1 << 4
    WRITE_EXCLUSIVE_ALL_REGISTRANTS = 1 << 5
    EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 1 << 6
    IGNORE_EXISTING_KEY = 1 << 7
    """Ignore Existing Key (IEKEY) is as revisions from 1.3 on define it."""


FPI_SUPPORTED = 1 << 7
"""Bit of FPI: bits 6:0 are the per cent of a format that are still to be done."""

NSTAT_READY = 1 << 0
"""Bit of NSTAT: the namespace is ready."""

NSFEAT_NO_WRITE_CACHE = 1 << 5
"""Bit of NSFEAT of CNS 08h (VWCNP): what is written is not in a volatile write cache (Base 2.1)."""

NWPC_WRITE_PROTECT = 1 << 0
"""Bit of NWPC: a host may write-protect a namespace, and end that."""

NSATTR_WRITE_PROTECTED = 1 << 0
"""Bit of NSATTR: the namespace takes no writes."""

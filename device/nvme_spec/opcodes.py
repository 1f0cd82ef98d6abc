"""Command opcodes and what they say about the data transfer.

NVM Express Base Specification 2.0, section 5 (Admin commands) and section 7 (I/O commands);
NVM Command Set Specification 1.0, section 3; Zoned Namespace Command Set 1.1, section 3.
"""

from enum import IntEnum


class AdminOpcode(IntEnum):
    """Admin commands (Base 2.0, section 5; 85h, 88h and 89h: Base 2.2)."""

    DELETE_IO_SUBMISSION_QUEUE = 0x00
    CREATE_IO_SUBMISSION_QUEUE = 0x01
    GET_LOG_PAGE = 0x02
    DELETE_IO_COMPLETION_QUEUE = 0x04
    CREATE_IO_COMPLETION_QUEUE = 0x05
    IDENTIFY = 0x06
    ABORT = 0x08
    SET_FEATURES = 0x09
    GET_FEATURES = 0x0A
    ASYNCHRONOUS_EVENT_REQUEST = 0x0C
    NAMESPACE_MANAGEMENT = 0x0D
    FIRMWARE_COMMIT = 0x10
    FIRMWARE_IMAGE_DOWNLOAD = 0x11
    DEVICE_SELF_TEST = 0x14
    NAMESPACE_ATTACHMENT = 0x15
    KEEP_ALIVE = 0x18
    DIRECTIVE_SEND = 0x19
    DIRECTIVE_RECEIVE = 0x1A
    VIRTUALIZATION_MANAGEMENT = 0x1C
    NVME_MI_SEND = 0x1D
    NVME_MI_RECEIVE = 0x1E
    CAPACITY_MANAGEMENT = 0x20
    LOCKDOWN = 0x24
    DOORBELL_BUFFER_CONFIG = 0x7C
    FABRICS = 0x7F
    FORMAT_NVM = 0x80
    SECURITY_SEND = 0x81
    SECURITY_RECEIVE = 0x82
    SANITIZE = 0x84
    LOAD_PROGRAM = 0x85
    GET_LBA_STATUS = 0x86
    PROGRAM_ACTIVATION_MANAGEMENT = 0x88
    MEMORY_RANGE_SET_MANAGEMENT = 0x89


class IoOpcode(IntEnum):
    """I/O commands common to all command sets, and those of the NVM and Zoned command sets."""

    FLUSH = 0x00
    WRITE = 0x01
    READ = 0x02
    WRITE_UNCORRECTABLE = 0x04
    COMPARE = 0x05
    WRITE_ZEROES = 0x08
    DATASET_MANAGEMENT = 0x09
    VERIFY = 0x0C
    RESERVATION_REGISTER = 0x0D
    RESERVATION_REPORT = 0x0E
    RESERVATION_ACQUIRE = 0x11
    IO_MANAGEMENT_RECEIVE = 0x12
    RESERVATION_RELEASE = 0x15
    COPY = 0x19
    IO_MANAGEMENT_SEND = 0x1D
    ZONE_MANAGEMENT_SEND = 0x79
    ZONE_MANAGEMENT_RECEIVE = 0x7A
    ZONE_APPEND = 0x7D


FIRST_VENDOR_ADMIN_OPCODE = 0xC0
FIRST_VENDOR_IO_OPCODE = 0x80


class DataDirection(IntEnum):
    """Bits 1:0 of an opcode (Base 2.0, figure of the opcode's fields in section 5)."""

    NONE = 0
    HOST_TO_CONTROLLER = 1
    CONTROLLER_TO_HOST = 2
    BIDIRECTIONAL = 3


_DIRECTIONS = tuple(DataDirection)


def data_direction(opcode: int) -> DataDirection:
    """Direction of an opcode's data transfer; also of vendor specific opcodes."""
    return _DIRECTIONS[opcode & 3]

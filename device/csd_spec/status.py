"""Status codes of the accelerator commands and the states of an accelerator.

The states are those of the Alkali CSD platform documentation, section 4.3.1; the completion status
codes are extensions, in the vendors' range (NVMe Base 2.0, section 3.3.3.2.1)."""

from enum import IntEnum


class VendorStatus(IntEnum):
    """Completion status, `SCT << 8 | SC`: status code type 7h, status codes from C0h."""

    SUBSYSTEM_DISABLED = 0x7C0
    INVALID_ACCELERATOR = 0x7C1
    INVALID_FIRMWARE = 0x7C2
    INVALID_BUFFERS = 0x7C3
    INVALID_ARGUMENT_LIST = 0x7C4
    FIRMWARE_REFUSED = 0x7C5


class StatusId(IntEnum):
    """Status of an accelerator; `STOPPED` is an extension."""

    IDLE = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    STOPPED = 4


_MEANINGS = {
    VendorStatus.SUBSYSTEM_DISABLED: "the accelerator subsystem is disabled",
    VendorStatus.INVALID_ACCELERATOR: "there is no such accelerator",
    VendorStatus.INVALID_FIRMWARE: "there is no such firmware",
    VendorStatus.INVALID_BUFFERS: "the buffers are not configured or invalid",
    VendorStatus.INVALID_ARGUMENT_LIST: "the argument list is invalid",
    VendorStatus.FIRMWARE_REFUSED: "the firmware was refused; the accelerator's log says why",
}


def describe(status: int) -> str | None:
    """Meaning of a vendor specific status; None for one that this command set does not have."""
    try:
        return _MEANINGS[VendorStatus(status)]
    except ValueError:
        return None

"""Firmware as it comes from the host: in one piece or several, verified when it is whole.

An object file says itself how long it is, so a piece that leaves it incomplete is kept until the
next one comes. Nothing that is installed changes before its replacement is whole and verified.

Alkali CSD platform documentation, section 4.3.2 (Send Firmware, Read Firmware).
"""

from csd_spec.descriptors import LogEntryType
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE
from csd_spec.status import VendorStatus
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.command import Answer, IfSound, Result
from potash_firmware.apu.config import Limits
from potash_firmware.apu.model import Accelerator, Subsystem
from potash_firmware.bpf.errors import ElfError
from potash_firmware.bpf.object_file import stated_size

PIECE_MINIMUM = 64 * 1024
"""A shorter piece that leaves the firmware incomplete is a broken file, not a part of one: every
host moves at least this much with one command."""


def installed(accelerator: Accelerator, identifier: int) -> bytes:
    """The image of a firmware. Raises NvmeError when there is none such."""
    try:
        return accelerator.firmware[identifier]
    except KeyError:
        which = (
            "active firmware" if identifier == KEEP_ACTIVE_FIRMWARE else f"firmware {identifier}"
        )
        detail = f"accelerator {accelerator.config.id} has no {which}"
        raise NvmeError(VendorStatus.INVALID_FIRMWARE, detail) from None


def receive(
    subsystem: Subsystem,
    accelerator: Accelerator,
    limits: Limits,
    identifier: int,
    offset: int,
    piece: bytes,
) -> Result:
    """Take in a piece of firmware at byte `offset`; install the firmware when it is whole and
    sound.

    Raises NvmeError, having kept what was installed.
    """
    if identifier >= limits.firmware_slots:
        detail = f"firmware IDs are 0 to {limits.firmware_slots - 1}, not {identifier}"
        raise NvmeError(VendorStatus.INVALID_FIRMWARE, detail)
    before = accelerator.staged.get(identifier, b"") if offset else b""
    if offset != len(before):
        detail = f"the piece begins at byte {offset}, but {len(before)} bytes have come"
        raise NvmeError(Status.INVALID_FIELD, detail)
    image = bytes(before) + piece
    accelerator.staged.pop(identifier, None)
    _require_room(subsystem, accelerator, limits, identifier, len(image))
    if len(piece) >= PIECE_MINIMUM and len(image) < _stated_size(image) <= limits.firmware_size:
        accelerator.staged[identifier] = bytearray(image)
        return Answer()

    def decided(reason: str | None) -> None:
        if reason is not None:
            _refuse(accelerator, f"firmware {identifier} was refused: {reason}")
        # Others may have been installed meanwhile.
        _require_room(subsystem, accelerator, limits, identifier, len(image))
        accelerator.firmware[identifier] = image

    return IfSound(image, decided)


def _stated_size(image: bytes) -> int:
    """How long an object file says that it is; 0 of anything else."""
    try:
        return stated_size(image)
    except ElfError:
        return 0


def _require_room(
    subsystem: Subsystem, accelerator: Accelerator, limits: Limits, identifier: int, size: int
) -> None:
    if size > limits.firmware_size:
        _refuse(accelerator, f"the firmware has more than {limits.firmware_size} bytes")
    others = sum(
        len(image)
        for item in subsystem.accelerators.values()
        for key, image in item.firmware.items()
        if (item, key) != (accelerator, identifier)
    )
    if others + size > limits.firmware_total:
        _refuse(accelerator, f"all firmware together has {limits.firmware_total} bytes at most")


def _refuse(accelerator: Accelerator, reason: str) -> None:
    accelerator.log.add(LogEntryType.ACCELERATOR_ERROR, reason)
    raise NvmeError(VendorStatus.FIRMWARE_REFUSED, reason)

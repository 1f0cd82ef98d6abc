"""Set Features of the host memory buffer.

Source: NVM Express Base Specification 2.0, section 5.27.1.11.
"""

from nvme_spec.commands import SetFeatures
from nvme_spec.host_memory import HostMemoryAttributes, HostMemoryBuffer, HostMemoryDescriptor
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import PAGE_SIZE, transfer_error
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features.table import refuse
from pyvfio_user.memory import AccessFault

MOST_DESCRIPTORS = PAGE_SIZE // HostMemoryDescriptor.RECORD.size
"""HMMAXD."""


def set_feature(controller: Controller, command: Command) -> Steps:
    """Enable the buffer, or disable it. Raises NvmeError."""
    assert controller.host_memory is not None
    fields = HostMemoryBuffer.decode(command.entry.cdws)
    features, fid = controller.features, SetFeatures.decode(command.entry.cdws).fid
    if fields.ehm:
        if features.get(fid):
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "the host memory buffer is enabled")
        _check(controller, fields)
    attributes = HostMemoryAttributes(hsize=fields.hsize, hmdla=fields.hmdla, hmdlec=fields.hmdlec)
    features.set(fid, int(fields.ehm), data=bytes(attributes) if fields.ehm else b"")
    yield from controller.scheduler.until(controller.host_memory.configure())
    return None


def _check(controller: Controller, fields: HostMemoryBuffer) -> None:
    """Raise NvmeError for memory that cannot be used."""
    size = HostMemoryDescriptor.RECORD.size
    if not 1 <= fields.hmdlec <= MOST_DESCRIPTORS:
        raise refuse(f"a list has 1 to {MOST_DESCRIPTORS} descriptors")
    if fields.hmdla % size:
        raise refuse(f"the address of the list is no multiple of {size}")
    try:
        pieces = controller.board.dma.pieces(fields.hmdla, fields.hmdlec * size, write=False)
        listed = b"".join(pieces)
    except AccessFault as fault:
        raise transfer_error(fault) from None
    pages = 0
    for at in range(0, len(listed), size):
        descriptor = HostMemoryDescriptor.decode(listed[at : at + size])
        if descriptor.badd % PAGE_SIZE or not descriptor.bsize:
            raise refuse("a descriptor is of no whole pages")
        pages += descriptor.bsize
    if pages != fields.hsize:
        raise refuse(f"the descriptors have {pages} pages, and the buffer {fields.hsize}")

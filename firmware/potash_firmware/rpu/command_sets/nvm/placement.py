"""I/O Management Receive and Send, of a drive with flexible data placement.

Source: NVM Command Set Specification 1.1.
"""

import struct

from nvme_spec.opcodes import IoOpcode
from nvme_spec.placement import (
    STATUS_OPERATION,
    UPDATE_OPERATION,
    ManagementReceive,
    ManagementSend,
    encode_status,
)
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NamespaceUse, Row, table


def management_receive(controller: Controller, command: Command) -> Result:
    """Give the status of the namespace's reclaim unit handles."""
    assert controller.placement is not None
    fields = ManagementReceive.decode(command.entry.cdws)
    if fields.mo != STATUS_OPERATION:
        raise NvmeError(Status.INVALID_FIELD, f"there is no management operation {fields.mo}")
    namespace = controller.namespaces.usable(command.entry.nsid)
    data = encode_status(controller.placement.status(namespace.nsid, namespace.block_size))
    controller.transfer.send(command, data[: fields.length].ljust(fields.length, b"\0"))
    return None


def management_send(controller: Controller, command: Command) -> Result:
    """Have reclaim unit handles refer to other reclaim units."""
    assert controller.placement is not None
    fields = ManagementSend.decode(command.entry.cdws)
    if fields.mo != UPDATE_OPERATION:
        raise NvmeError(Status.INVALID_FIELD, f"there is no management operation {fields.mo}")
    namespace = controller.namespaces.usable(command.entry.nsid)
    count = fields.mos + 1
    if count > len(controller.placement.status(namespace.nsid, namespace.block_size)):
        raise NvmeError(Status.INVALID_FIELD, "the namespace has fewer placement identifiers")
    data = bytes(controller.transfer.receive(command, 2 * count))
    due = controller.placement.update(namespace.nsid, struct.unpack(f"<{count}H", data))
    return controller.deadlines.keep(due, lambda: None)


PLACEMENT_IO = table(
    Row(IoOpcode.IO_MANAGEMENT_RECEIVE, management_receive, NamespaceUse.ONE),
    Row(IoOpcode.IO_MANAGEMENT_SEND, management_send, NamespaceUse.ONE),
)
"""I/O commands of namespaces with blocks there, as well."""

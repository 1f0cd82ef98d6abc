"""Directive Receive and Send, of a drive with flexible data placement.

Source: NVM Express Base Specification 2.1, section 5.1.6 and 5.1.7, 8.1.8 (directives).
"""

from nvme_spec.identify.capabilities import Oacs
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.placement import (
    DATA_PLACEMENT,
    IDENTIFY_DIRECTIVE,
    RETURN_PARAMETERS,
    DirectiveParameters,
    DirectiveReceive,
)
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NamespaceUse, Row, table

_DIRECTIVES = 1 << IDENTIFY_DIRECTIVE | 1 << DATA_PLACEMENT
"""Those that there are, which are always enabled."""


def directive_receive(controller: Controller, command: Command) -> Result:
    """Give which directives there are; that for data placement has nothing to give."""
    fields = DirectiveReceive.decode(command.entry.cdws)
    controller.namespaces.usable(command.entry.nsid)
    if (fields.dtype, fields.doper) != (IDENTIFY_DIRECTIVE, RETURN_PARAMETERS):
        raise NvmeError(Status.INVALID_FIELD, "the directive has no such operation")
    data = bytes(
        DirectiveParameters(supported=_DIRECTIVES, enabled=_DIRECTIVES, persistent=_DIRECTIVES)
    )
    controller.transfer.send(command, data[: fields.length].ljust(fields.length, b"\0"))
    return None


def directive_send(controller: Controller, command: Command) -> Result:
    """Refuse: no directive can be enabled or disabled, and that for data placement has no
    operations."""
    controller.namespaces.usable(command.entry.nsid)
    raise NvmeError(Status.INVALID_FIELD, "directives are as they are")


PLACEMENT_ADMIN = table(
    Row(
        AdminOpcode.DIRECTIVE_SEND,
        directive_send,
        NamespaceUse.ONE,
        capability=Oacs.DIRECTIVES,
    ),
    Row(
        AdminOpcode.DIRECTIVE_RECEIVE,
        directive_receive,
        NamespaceUse.ONE,
        capability=Oacs.DIRECTIVES,
    ),
)
"""Admin commands of a drive with data placement, as well."""

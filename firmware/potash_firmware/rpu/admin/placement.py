"""Flexible data placement: its commands, log pages and features.

The endurance group and its handles have the features' values.

Source: NVM Express Base Specification 2.1, section 5.1.6, 5.1.7 and 8.1.8 (directives), 5.1.12.1.9
and 5.1.12.1.28 to 5.1.12.1.31 (log pages), 5.1.25.1.20 and 5.1.25.1.21 (features); NVM Command Set
Specification 1.1 (I/O Management Receive and Send).
"""

import struct

from csd_spec.placement import PlacementLog
from nvme_spec.commands import GetLogPage, SetFeatures
from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import Oacs
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from nvme_spec.placement import (
    DATA_PLACEMENT,
    ENDURANCE_UNIT,
    EVENTS_IN_LOG,
    IDENTIFY_DIRECTIVE,
    RETURN_PARAMETERS,
    STATUS_OPERATION,
    UPDATE_OPERATION,
    DirectiveParameters,
    DirectiveReceive,
    EnduranceGroupLog,
    EventType,
    FdpEventsFields,
    FdpFields,
    HandleUse,
    ManagementReceive,
    ManagementSend,
    encode_configurations,
    encode_events,
    encode_status,
    encode_usage,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import MOST_NAMESPACES
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NamespaceUse, Row, table
from potash_firmware.rpu.placement import GROUP, Placement
from potash_firmware.rpu.reservations import Access

HOST_EVENTS = 1 << 0
"""Log specific parameter of page 23h: events of the host, else those of the controller."""


def _placement(controller: Controller, fields: GetLogPage) -> Placement:
    """Raises NvmeError for another endurance group."""
    if fields.lsi != GROUP:
        raise NvmeError(Status.INVALID_FIELD, f"there is no endurance group {fields.lsi}")
    assert controller.placement is not None
    return controller.placement


def _enabled(controller: Controller) -> Placement:
    """Raises NvmeError where the host has disabled data placement."""
    assert controller.placement is not None
    if not controller.placement.enabled:
        raise NvmeError(Status.FDP_DISABLED, "the endurance group places no data")
    return controller.placement


def endurance_group(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    placement, smart = _placement(controller, fields), controller.reports.smart_log()
    health = controller.health
    return bytes(
        EnduranceGroupLog(
            available_spare=smart.available_spare,
            available_spare_threshold=smart.available_spare_threshold,
            percentage_used=smart.percentage_used,
            data_units_read=-(-health.bytes_read // ENDURANCE_UNIT),
            data_units_written=-(-placement.written // ENDURANCE_UNIT),
            media_units_written=-(-placement.media_written // ENDURANCE_UNIT),
            host_read_commands=health.reads,
            host_write_commands=health.writes,
            media_errors=health.media_errors,
            error_log_entries=health.errors,
            tegcap=controller.namespaces.inventory.total_capacity,
            uegcap=controller.namespaces.inventory.unallocated,
        )
    )


def configurations(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    placement = _placement(controller, fields)
    return encode_configurations(
        placement.handles, placement.unit, MOST_NAMESPACES, placement.kind, placement.groups
    )


def usage(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    _placement(controller, fields)
    placement = _enabled(controller)
    uses = [HandleUse.UNUSED] * placement.handles
    for nsid, namespace in controller.namespaces.blocks.items():
        chosen = namespace.shape.chosen
        for handle in controller.namespaces.inventory.handles(nsid):
            uses[handle] = HandleUse.CONTROLLER_SPECIFIED if chosen else HandleUse.HOST_SPECIFIED
    return encode_usage(uses)


def statistics(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    _placement(controller, fields)
    return bytes(_enabled(controller).statistics)


def handles(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """The log page on placement handles, an extension."""
    assert controller.placement is not None
    counters = tuple(controller.placement.counters)
    return PlacementLog(count=len(counters), handles=counters).encode()


def events(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """The events of the host, or those of the controller."""
    _placement(controller, fields)
    placement, of_host = _enabled(controller), bool(fields.lsp & HOST_EVENTS)
    placement.note_moves()
    found = [event for event in placement.events if event.by_controller != of_host]
    return encode_events(found[-EVENTS_IN_LOG:])


_ENABLED = 1
"""FDPE, with configuration index 0."""


def get_feature(controller: Controller, command: Command) -> Result:
    """Data placement, or the events of a placement handle. Raises NvmeError."""
    if SetFeatures.decode(command.entry.cdws).fid == FeatureId.FLEXIBLE_DATA_PLACEMENT:
        _require_group(command)
        assert controller.placement is not None
        return _ENABLED if controller.placement.enabled else 0
    placement, handle, fields = _events_of(controller, command)
    noted = placement.noted[handle]
    listed = [bytes((kind, kind in noted)) for kind in EventType][: fields.noet]
    controller.transfer.send(command, b"".join(listed), 2 * fields.noet)
    return len(EventType)


def set_feature(controller: Controller, command: Command) -> Steps:
    """Enable data placement or events, or disable them. Raises NvmeError."""
    if SetFeatures.decode(command.entry.cdws).fid == FeatureId.FLEXIBLE_DATA_PLACEMENT:
        _require_group(command)
        assert controller.placement is not None
        value = FdpFields.decode(command.entry.cdws).value
        if value != controller.placement.enabled and controller.namespaces.blocks:
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "namespaces exist")
        if value not in (0, _ENABLED):
            raise NvmeError(Status.INVALID_FIELD, "the endurance group has configuration 0 alone")
        controller.placement.enable(bool(value))
        yield controller.media_work.submit(controller.persistence.record())
        return None
    placement, handle, fields = _events_of(controller, command)
    named = set(bytes(controller.transfer.receive(command, fields.noet))) if fields.noet else set()
    if unknown := named - set(EventType):
        raise NvmeError(Status.INVALID_FIELD, f"event {min(unknown):#x} is not supported")
    placement.note(handle, map(EventType, named), on=fields.enable)
    yield controller.media_work.submit(controller.persistence.record())
    return None


def _events_of(controller: Controller, command: Command) -> tuple[Placement, int, FdpEventsFields]:
    """The reclaim unit handle of the placement handle that a command names. Raises NvmeError."""
    fields = FdpEventsFields.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    placement = _enabled(controller)
    handle = placement.handle(namespace.nsid, fields.phndl)
    if handle is None:
        raise NvmeError(Status.INVALID_FIELD, f"there is no placement handle {fields.phndl}")
    return placement, handle, fields


def _require_group(command: Command) -> None:
    if FdpFields.decode(command.entry.cdws).endgid != GROUP:
        raise NvmeError(Status.INVALID_FIELD, "there is no such endurance group")


_DIRECTIVES = 1 << IDENTIFY_DIRECTIVE | 1 << DATA_PLACEMENT
"""The directives that there are; that for data placement is enabled with it."""


def directive_receive(controller: Controller, command: Command) -> Result:
    """Give which directives there are; that for data placement has nothing to give."""
    fields = DirectiveReceive.decode(command.entry.cdws)
    controller.namespaces.usable(command.entry.nsid)
    if (fields.dtype, fields.doper) != (IDENTIFY_DIRECTIVE, RETURN_PARAMETERS):
        raise NvmeError(Status.INVALID_FIELD, "the directive has no such operation")
    assert controller.placement is not None
    enabled = _DIRECTIVES if controller.placement.enabled else 1 << IDENTIFY_DIRECTIVE
    data = bytes(DirectiveParameters(supported=_DIRECTIVES, enabled=enabled, persistent=enabled))
    controller.transfer.send(command, data, fields.length)
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
        Access.OTHER,
        NamespaceUse.ONE,
        capability=Oacs.DIRECTIVES,
    ),
    Row(
        AdminOpcode.DIRECTIVE_RECEIVE,
        directive_receive,
        Access.OTHER,
        NamespaceUse.ONE,
        capability=Oacs.DIRECTIVES,
    ),
)
"""Admin commands of a drive with data placement, as well."""


def management_receive(controller: Controller, command: Command) -> Result:
    """Give the status of the namespace's reclaim unit handles."""
    fields = ManagementReceive.decode(command.entry.cdws)
    if fields.mo != STATUS_OPERATION:
        raise NvmeError(Status.INVALID_FIELD, f"there is no management operation {fields.mo}")
    namespace = controller.namespaces.usable(command.entry.nsid)
    data = encode_status(_enabled(controller).status(namespace.nsid, namespace.block_size))
    controller.transfer.send(command, data, fields.length)
    return None


def management_send(controller: Controller, command: Command) -> Steps:
    """Have reclaim unit handles refer to other reclaim units."""
    fields = ManagementSend.decode(command.entry.cdws)
    if fields.mo != UPDATE_OPERATION:
        raise NvmeError(Status.INVALID_FIELD, f"there is no management operation {fields.mo}")
    namespace = controller.namespaces.usable(command.entry.nsid)
    placement, count = _enabled(controller), fields.mos + 1
    if count > len(placement.status(namespace.nsid, namespace.block_size)):
        raise NvmeError(Status.INVALID_FIELD, "the namespace has fewer placement identifiers")
    data = bytes(controller.transfer.receive(command, 2 * count))
    due = placement.update(namespace.nsid, struct.unpack(f"<{count}H", data))
    yield from controller.scheduler.until(due)
    return None


PLACEMENT_IO = table(
    Row(IoOpcode.IO_MANAGEMENT_RECEIVE, management_receive, Access.OTHER, NamespaceUse.ONE),
    Row(IoOpcode.IO_MANAGEMENT_SEND, management_send, Access.OTHER, NamespaceUse.ONE),
)
"""I/O commands of namespaces with blocks there, as well."""

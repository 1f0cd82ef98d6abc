"""The log pages of the endurance group: its information, and data placement.

Source: NVM Express Base Specification 2.1, section 5.1.12.1.9 and 5.1.12.1.28 to 5.1.12.1.31.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvme_spec.commands import GetLogPage
from nvme_spec.placement import (
    ENDURANCE_UNIT,
    EnduranceGroupLog,
    HandleUse,
    encode_configurations,
    encode_events,
    encode_usage,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import MOST_NAMESPACES
from potash_firmware.rpu.placement import GROUP, Placement

if TYPE_CHECKING:
    from potash_firmware.rpu.command import Command
    from potash_firmware.rpu.controller import Controller

HOST_EVENTS = 1 << 0
"""Log specific parameter of page 23h: events of the host, else those of the controller."""


def _placement(controller: Controller, fields: GetLogPage) -> Placement:
    """Raises NvmeError for another endurance group."""
    if fields.lsi != GROUP:
        raise NvmeError(Status.INVALID_FIELD, f"there is no endurance group {fields.lsi}")
    assert controller.placement is not None
    return controller.placement


def endurance_group(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    placement, smart = _placement(controller, fields), controller.smart_log()
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
            error_log_entries=controller.errors.count,
            tegcap=controller.namespaces.total_capacity,
            uegcap=controller.namespaces.unallocated,
        )
    )


def configurations(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    placement = _placement(controller, fields)
    return encode_configurations(placement.handles, placement.unit, MOST_NAMESPACES)


def usage(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    placement = _placement(controller, fields)
    uses = [HandleUse.UNUSED] * placement.handles
    for nsid, one in controller.namespaces.blocks.items():
        chosen = one.settings.chosen
        for handle in controller.namespaces.handles(nsid):
            uses[handle] = HandleUse.CONTROLLER_SPECIFIED if chosen else HandleUse.HOST_SPECIFIED
    return encode_usage(uses)


def statistics(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    return bytes(_placement(controller, fields).statistics)


def events(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """The drive has no events of its own."""
    placement = _placement(controller, fields)
    return encode_events(tuple(placement.host_events) if fields.lsp & HOST_EVENTS else ())

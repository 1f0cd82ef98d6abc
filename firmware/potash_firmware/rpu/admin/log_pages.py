"""Get Log Page, and the table of log pages.

A whole page is generated from the current state, and the requested part of it is returned; a copy
is kept only of pages that the standard freezes between two reads. A row of `PAGES` has everything
that the device reports about a page: whether it is supported, which fields of the command apply,
and which bit of Identify Controller announces it.

Source: NVM Express Base Specification 2.0, section 5.16; Zoned Namespace Command Set Specification
1.1, section 4.1.4.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import csd_spec.opcodes
from csd_spec import notices
from csd_spec.timing import TimingLog
from csd_spec.traffic import TrafficLog
from nvme_spec import logs, persistent_events
from nvme_spec.commands import GetLogPage
from nvme_spec.identify.capabilities import CommandSet, Lpa
from nvme_spec.memory_commands import HostAddressable, MemoryAccessType, encode_host_addressable
from nvme_spec.ocp import UUID_INDEX, OcpLogPage
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from nvme_spec.zoned import encode_changed_zones
from potash_firmware.rpu.admin import placement
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets import compute
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features.table import Feature
from potash_firmware.rpu.logs.persistent_events import SIZE_LIMIT
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.telemetry_areas import collect
from potash_firmware.rpu.timing.report import timing_log

DWORD = 4

PERSISTENT_EVENT_LOG_UNITS = -(
    -(persistent_events.PersistentEventHeader.SIZE + SIZE_LIMIT) // persistent_events.SIZE_UNIT
)
"""PELS of Identify Controller."""

_ACTION_MASK = 3

NO_ATTRIBUTE = Lpa(0)

Make = Callable[[Controller, Command, GetLogPage], bytes | Steps | None]
"""Gives the whole page, steps where the data reaches the host by another way, None for none."""


def _nothing(controller: Controller, nsid: int) -> None:
    """Reading the page changes nothing but its event."""


class Scope(Enum):
    """The scope of a page (Base 2.1, figure 202), which decides what the command's namespace
    identifier may be (section 5.1.12.1)."""

    CONTROLLER = "controller"
    """The controller or the NVM subsystem: 0, all (FFFFFFFFh), or an active namespace. Base 1.4
    only advises to refuse the last (2.1 demands it), which tools send that address a namespace's
    device (smartctl, page 06h)."""
    NAMESPACE = "namespace"
    """An active namespace."""
    SPECIFIC = "LSI"
    """The object that the Log Specific Identifier names, an endurance group or an accelerator: any
    namespace identifier is allowed."""


@dataclass(frozen=True, slots=True)
class Page:
    """A log page.

    `attribute` is its bit in LPA of Identify Controller, where it has one. `after_reading` is
    called, with the command's namespace identifier, when the host has the data and did not ask to
    retain the page's event (RAE). `specific` is what the page of supported pages says about it.
    """

    scope: Scope
    make: Make
    attribute: Lpa = NO_ATTRIBUTE
    after_reading: Callable[[Controller, int], None] = _nothing
    specific: int = 0
    command_set: CommandSet = CommandSet.NVM
    """There is no such page while this is not enabled."""
    needs: Literal["", "ana", "ocp", "placement", "upcalls"] = ""
    """The part of the controller without which there is no such page, where it needs one."""

    def is_there(self, controller: Controller) -> bool:
        return self.command_set in controller.namespaces.enabled and not (
            self.needs and getattr(controller, self.needs) is None
        )


def get_log_page(
    controller: Controller, command: Command, pages: Mapping[int, Page] | None = None
) -> Steps:
    """Give a part of a log page; unless the host retains it, the page's event may come again.

    The pages are those of a drive with extensions, if given.
    """
    fields = GetLogPage.decode(command.entry.cdws)
    page = (pages or PAGES).get(fields.lid)
    if fields.uuid_index and (controller.ocp is None or fields.uuid_index != UUID_INDEX):
        raise NvmeError(Status.INVALID_FIELD, detail="no UUID has that index")
    # Tools may not select a UUID for a page that no other one has.
    if page is None or (fields.uuid_index and fields.lid >= logs.FIRST_VENDOR_PAGE):
        page = OCP_PAGES.get(fields.lid)
    if page is None or not page.is_there(controller):
        raise NvmeError(
            Status.INVALID_LOG_PAGE, detail=f"log page {fields.lid:#x} is not supported"
        )
    offset = _offset(fields)
    _check_namespace(controller, page.scope, command.entry.nsid)
    # Memory that is not there is refused before anything is made, or changes by being read.
    controller.transfer.views(command, fields.length, write=True)
    data = page.make(controller, command, fields)

    result = None
    if isinstance(data, Generator):
        result = yield from data
    elif data is not None:
        if offset > len(data):
            raise NvmeError(Status.INVALID_FIELD, detail=f"the log page has {len(data)} bytes")
        controller.transfer.send(command, data[offset:], fields.length)
    # The page has reached the host: its event is over, unless the host retains it.
    if not fields.rae:
        page.after_reading(controller, command.entry.nsid)
        controller.reports.events.log_was_read(fields.lid, command.entry.nsid)
    return result


def _check_namespace(controller: Controller, scope: Scope, nsid: int) -> None:
    """Raise NvmeError for a namespace identifier that a page of that scope cannot have."""
    whole = scope is Scope.CONTROLLER and nsid in (0, BROADCAST_NSID)
    if scope is not Scope.SPECIFIC and not whole:
        controller.namespaces.active(nsid)


def attributes() -> Lpa:
    """LPA of Identify Controller: offsets and long reads work with every page."""
    bits = Lpa.EXTENDED_DATA
    for page in PAGES.values():
        bits |= page.attribute
    return bits


def _offset(fields: GetLogPage) -> int:
    """The first byte that is asked for. Raises NvmeError."""
    if fields.offset_is_index:
        raise NvmeError(Status.INVALID_FIELD, detail="the page's offset counts bytes only")
    if fields.offset % DWORD:
        raise NvmeError(Status.INVALID_FIELD, detail="the offset is no multiple of a dword")
    return fields.offset


# The pages.


def supported(
    pages: Mapping[int, Page], controller: Controller, command: Command, fields: GetLogPage
) -> bytes:
    """The log page of supported pages, which are among `pages`."""
    return logs.encode_dword_log(
        {
            lid: logs.LogPageSupport.LSUPP | page.specific << logs.LOG_PAGE_SPECIFIC_SHIFT
            for lid, page in pages.items()
            if page.is_there(controller)
        }
    )


def _smart(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    controller.thermal.update()
    return bytes(controller.reports.smart_log())


def _firmware_slots(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    slots = controller.firmware
    revisions = {f"frs{slot}": revision for slot, revision in slots.revisions.items()}
    return bytes(
        logs.FirmwareSlotLog(active_slot=slots.active, next_slot=slots.next or 0, **revisions)
    )


def _effects(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    # The command set counts for nothing where the host has not enabled those by identifier. The
    # controller supports no I/O command of one that is not enabled, which tools ask for, too.
    csi = fields.csi if controller.namespaces.by_identifier else CommandSet.NVM
    return bytes(controller.support.effects(csi, controller.namespaces.enabled))


def _telemetry_host(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    _require_blocks(fields)
    if fields.lsp & logs.TELEMETRY_CREATE:
        controller.telemetry.create(collect(controller))
        header = controller.telemetry.header(logs.LogPage.TELEMETRY_HOST)
        controller.reports.persistent_events.add(persistent_events.TelemetryCreated(header=header))
    return controller.telemetry.encode(logs.LogPage.TELEMETRY_HOST)


def _telemetry_controller(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    _require_blocks(fields)
    return controller.telemetry.encode(logs.LogPage.TELEMETRY_CONTROLLER)


def _require_blocks(fields: GetLogPage) -> None:
    if fields.offset % logs.TELEMETRY_BLOCK_SIZE or fields.length % logs.TELEMETRY_BLOCK_SIZE:
        raise NvmeError(
            Status.INVALID_FIELD,
            detail=f"telemetry comes in blocks of {logs.TELEMETRY_BLOCK_SIZE} bytes",
        )


def _persistent_events(
    controller: Controller, command: Command, fields: GetLogPage
) -> bytes | None:
    context = controller.reports.context
    match persistent_events.PersistentEventAction(fields.lsp & _ACTION_MASK):
        case persistent_events.PersistentEventAction.READ:
            return context.context
        case persistent_events.PersistentEventAction.ESTABLISH_AND_READ:
            page = context.establish(_persistent_event_header(controller))
            if fields.offset > len(page):
                context.release()
            return page
        case persistent_events.PersistentEventAction.ESTABLISH_AND_READ_HEADER:
            return context.header(_persistent_event_header(controller))
        case persistent_events.PersistentEventAction.RELEASE:
            context.release()
            return None


def _persistent_event_header(controller: Controller) -> persistent_events.PersistentEventHeader:
    identity, pci = controller.settings.identity, controller.board.settings.identity
    health = controller.reports.smart_log()
    return persistent_events.PersistentEventHeader(
        lid=logs.LogPage.PERSISTENT_EVENT,
        power_on_hours=health.power_on_hours,
        power_cycles=health.power_cycles,
        vid=pci.vendor_id,
        ssvid=pci.subsystem_vendor_id,
        sn=identity.serial,
        mn=identity.model,
        subnqn=identity.nqn,
    )


def _lba_status(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    namespaces = controller.namespaces.attached_blocks
    bad = {nsid: ns.uncorrectable.ranges() for nsid, ns in namespaces.items()}
    return controller.reports.lba_status.read(controller.identifier, bad, fields.offset)


def _host_addressable(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """Attached or not, as the page has it."""
    return encode_host_addressable(
        [
            HostAddressable(nsid, MemoryAccessType.BAR, 0)
            for nsid, ns in controller.namespaces.allocated.items()
            if isinstance(ns, MemoryNamespace)
            and ns.bar
            and controller.namespaces.inventory.owner(ns) == controller.identifier
        ]
    )


def _changed_zones(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    zones = controller.namespaces.zoned_one(command.entry.nsid).zones
    changed = zones.changes.of(controller.identifier)
    return encode_changed_zones(zones.every[zone].first for zone in changed)


def _zones_were_read(controller: Controller, nsid: int) -> None:
    controller.namespaces.zoned_one(nsid).zones.changes.were_read(controller.identifier)


def _notices(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    assert controller.upcalls is not None
    return controller.upcalls.log.encode().ljust(notices.PAGE_SIZE, b"\0")


def _traffic(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    transfer, statistics = controller.transfer, controller.statistics
    statistics.uncounted += 1
    admin = sum(count for (qid, _, _), count in statistics.commands.items() if not qid)
    page = TrafficLog(
        commands=sum(statistics.commands.values()) - admin,
        admin_commands=admin - statistics.uncounted,
        to_host=max(0, transfer.to_host),
        from_host=transfer.from_host,
        moved=(statistics.moved + statistics.read_by_jobs()) % (1 << 64),
    )
    if controller.timing is not None:
        page = page._replace(
            completed=controller.timing.completion_count,
            completions=tuple(controller.timing.completions),
        )
    transfer.to_host -= fields.length  # which `send` adds
    return page.encode()


def _feature_effect(row: Feature) -> int:
    effects = logs.FeatureEffects
    scope = effects.NAMESPACE_SCOPE if row.namespace_specific else effects.CONTROLLER_SCOPE
    return effects.FSUPP | scope


def _compute_page(make: Make) -> Page:
    return Page(Scope.NAMESPACE, make, command_set=CommandSet.COMPUTE)


def _endurance_page(make: Make) -> Page:
    return Page(Scope.SPECIFIC, make, needs="placement")


def _asymmetric_access(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    assert controller.ana is not None
    return controller.ana.log(fields.lsp)


def _ocp_smart(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    assert controller.ocp is not None
    used = sum(namespace.capacity for namespace in controller.namespaces.blocks.values())
    transitions = 0 if controller.power is None else controller.power.transitions
    return bytes(controller.ocp.smart(used, transitions))


def _latency_monitor(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    assert controller.ocp is not None
    return controller.ocp.monitor.page()


OCP_PAGES: dict[int, Page] = {
    OcpLogPage.SMART_EXTENDED: Page(Scope.CONTROLLER, _ocp_smart, needs="ocp"),
    OcpLogPage.LATENCY_MONITOR: Page(Scope.CONTROLLER, _latency_monitor, needs="ocp"),
}
"""The vendor specific pages of a host that names the UUID of the Open Compute Project."""

PAGES: dict[int, Page] = {
    logs.LogPage.SUPPORTED_LOG_PAGES: Page(
        Scope.CONTROLLER, lambda *given: supported(PAGES, *given), Lpa.SUPPORTED_LOG_PAGES
    ),
    logs.LogPage.ERROR_INFORMATION: Page(
        Scope.CONTROLLER, lambda controller, *_: controller.reports.errors.encode()
    ),
    logs.LogPage.SMART: Page(Scope.CONTROLLER, _smart),
    logs.LogPage.FIRMWARE_SLOT: Page(Scope.CONTROLLER, _firmware_slots),
    logs.LogPage.CHANGED_NAMESPACE_LIST: Page(
        Scope.CONTROLLER,
        lambda controller, *_: controller.reports.changed_namespaces.encode(),
        after_reading=lambda controller, _: controller.reports.changed_namespaces.clear(),
    ),
    logs.LogPage.COMMANDS_SUPPORTED_AND_EFFECTS: Page(
        Scope.CONTROLLER, _effects, Lpa.COMMANDS_SUPPORTED_AND_EFFECTS
    ),
    logs.LogPage.DEVICE_SELF_TEST: Page(
        Scope.CONTROLLER, lambda controller, *_: controller.self_tests.encode()
    ),
    logs.LogPage.RESERVATION_NOTIFICATION: Page(
        Scope.CONTROLLER,
        lambda controller, *_: controller.reservations.log_page(),
        after_reading=lambda controller, _: controller.reservations.log_was_read(),
    ),
    logs.LogPage.SANITIZE_STATUS: Page(
        Scope.CONTROLLER, lambda controller, *_: controller.sanitizing.encode()
    ),
    logs.LogPage.TELEMETRY_HOST: Page(Scope.CONTROLLER, _telemetry_host, Lpa.TELEMETRY),
    logs.LogPage.TELEMETRY_CONTROLLER: Page(
        Scope.CONTROLLER,
        _telemetry_controller,
        Lpa.TELEMETRY,
        after_reading=lambda controller, _: controller.telemetry.release(),
    ),
    logs.LogPage.ASYMMETRIC_NAMESPACE_ACCESS: Page(
        Scope.CONTROLLER, _asymmetric_access, needs="ana"
    ),
    logs.LogPage.PERSISTENT_EVENT: Page(
        Scope.CONTROLLER,
        _persistent_events,
        Lpa.PERSISTENT_EVENT,
        specific=persistent_events.ESTABLISH_AND_READ_HEADER,
    ),
    logs.LogPage.LBA_STATUS: Page(Scope.CONTROLLER, _lba_status),
    logs.LogPage.ENDURANCE_GROUP: _endurance_page(placement.endurance_group),
    logs.LogPage.FDP_CONFIGURATIONS: _endurance_page(placement.configurations),
    logs.LogPage.RECLAIM_UNIT_HANDLE_USAGE: _endurance_page(placement.usage),
    logs.LogPage.FDP_STATISTICS: _endurance_page(placement.statistics),
    logs.LogPage.FDP_EVENTS: _endurance_page(placement.events),
    logs.LogPage.FEATURE_IDENTIFIERS_SUPPORTED_AND_EFFECTS: Page(
        Scope.CONTROLLER,
        lambda controller, *_: logs.encode_dword_log(
            {
                fid: _feature_effect(row)
                for fid, row in controller.features.rows.items()
                if not (row.placement and controller.placement is None)
            }
        ),
    ),
    logs.LogPage.REACHABILITY_GROUPS: Page(
        Scope.CONTROLLER,
        lambda controller, command, fields: controller.reachability.groups(fields.lsp),
        command_set=CommandSet.MEMORY,
    ),
    logs.LogPage.REACHABILITY_ASSOCIATIONS: Page(
        Scope.CONTROLLER,
        lambda controller, command, fields: controller.reachability.associations(fields.lsp),
        command_set=CommandSet.MEMORY,
    ),
    logs.LogPage.HOST_ADDRESSABLE_NAMESPACES: Page(
        Scope.CONTROLLER, _host_addressable, command_set=CommandSet.MEMORY
    ),
    logs.LogPage.PROGRAM_LIST: _compute_page(compute.program_list),
    logs.LogPage.DOWNLOADABLE_PROGRAM_TYPES: _compute_page(compute.program_types),
    logs.LogPage.MEMORY_RANGE_SETS: _compute_page(compute.range_set_list),
    logs.LogPage.CHANGED_ZONE_LIST: Page(
        Scope.NAMESPACE,
        _changed_zones,
        after_reading=_zones_were_read,
        command_set=CommandSet.ZONED,
    ),
    csd_spec.opcodes.TIMING_LOG_PAGE: Page(
        Scope.CONTROLLER,
        lambda controller, *_: (
            TimingLog() if controller.timing is None else timing_log(controller.timing)
        ).encode(),
    ),
    csd_spec.opcodes.LogPage.PLACEMENT_HANDLES: Page(
        Scope.CONTROLLER, placement.handles, needs="placement"
    ),
    csd_spec.opcodes.LogPage.NOTICES: Page(Scope.CONTROLLER, _notices, needs="upcalls"),
    csd_spec.opcodes.LogPage.TRAFFIC: Page(Scope.CONTROLLER, _traffic),
    csd_spec.opcodes.LOG_PAGE: Page(
        Scope.SPECIFIC,
        lambda controller, command, fields: controller.accelerators.forward(command, fields.length),
    ),
}
"""Every log page that the device has."""

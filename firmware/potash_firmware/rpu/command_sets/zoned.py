"""The commands of zoned namespaces: those on blocks, with a check of the zone, and those on zones.

Source: NVM Express Zoned Namespace Command Set Specification 1.1, section 3.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nvme_spec import zoned
from nvme_spec.logs import CommandByte
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Result, Steps, steps_of
from potash_firmware.rpu.command_sets.nvm import optional, read_write
from potash_firmware.rpu.command_sets.nvm.blocks import (
    Target,
    add_data,
    in_turn,
    require_writable,
    stream_of,
    target,
    write_error,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import Handler
from potash_firmware.rpu.namespaces.zoned import ZonedNamespace
from potash_firmware.rpu.namespaces.zones import Zone, Zones
from potash_firmware.rpu.scheduler import Later
from potash_firmware.rpu.transfer import check_size

if TYPE_CHECKING:  # it takes NumPy, as in the controller
    from potash_firmware.rpu.timing.modelled import ModelledTime

_CONTROLLER_ATTRIBUTES = (
    zoned.ZoneAttribute.FINISHED_BY_CONTROLLER
    | zoned.ZoneAttribute.FINISH_RECOMMENDED
    | zoned.ZoneAttribute.RESET_RECOMMENDED
)


def _zoned(controller: Controller, command: Command) -> ZonedNamespace:
    namespace = controller.namespaces.usable(command.entry.nsid)
    assert isinstance(namespace, ZonedNamespace)  # the table of commands is that of zoned ones
    return namespace


# Commands of the NVM command set.


def _reading(handler: Handler, *, moves_data: bool = True) -> Handler:
    """A command that reads blocks, refused where a zone is offline."""

    def run(controller: Controller, command: Command) -> Result:
        blocks = target(controller, command, moves_data=moves_data)
        blocks.namespace.require_readable(blocks.slba, blocks.blocks)
        return handler(controller, command)

    return run


def _writing(handler: Handler, *, moves_data: bool = True, timed: bool = True) -> Handler:
    """A command that writes blocks, where their zone takes them."""

    def run(controller: Controller, command: Command) -> Result:
        return _write(controller, command, handler, moves_data=moves_data, timed=timed)

    return run


def _charge(
    controller: Controller, timing: "ModelledTime", blocks: Target, committed: range | None
) -> int:
    """The time at which the modelled drive has executed a write. Zeroes are programmed, as the
    places of a zone are filled one after another."""
    nsid, fua = blocks.namespace.nsid, blocks.fua or blocks.namespace.write_through
    stream = stream_of(controller, nsid, blocks.placement)
    area = committed is not None
    end = timing.write(
        nsid, blocks.offset, blocks.length, fua=fua, stream=stream, hint=blocks.hint, area=area
    )
    return max(end, timing.commit(blocks.namespace, committed or range(0)))


def _write(
    controller: Controller, command: Command, handler: Handler, *, moves_data: bool, timed: bool
) -> Steps:
    """Claim the blocks, store the record of their zone, and then write them."""
    blocks = target(controller, command, moves_data=moves_data)
    namespace = _zoned(controller, command)
    yield from _no_reset(namespace, blocks.slba)
    require_writable(controller, namespace)
    if moves_data:  # memory that is not there is refused before the write pointer moves
        controller.transfer.views(command, blocks.length, write=False)
        add_data(controller, command, blocks)
    zones, zone = namespace.zones, namespace.zones.of(blocks.slba)
    committed = namespace.claim(blocks.slba, blocks.blocks)
    resets = zone.resets
    due: int | Later | None = None
    if timed and (timing := controller.timing) is not None:
        due = charged = _charge(controller, timing, blocks, committed)
        if moves_data:
            due = timing.transfers.cross(charged, blocks.length, inwards=True)
    yield from _store_claims(controller, namespace)

    def write_claimed() -> Result:
        if namespace.zones is not zones or zone.resets != resets:
            # Behind the write pointer now: as if the zone had been reset first.
            raise NvmeError(
                Status.ZONE_INVALID_WRITE,
                f"zone {zone.number} was reset before block {blocks.slba} was written",
                lba=blocks.slba,
            )
        return handler(controller, command)

    return (yield from controller.scheduler.not_before(due, steps_of(write_claimed)))


def zone_append(controller: Controller, command: Command) -> Steps:
    """Write at the write pointer of the zone; the first block that was written is the result."""
    blocks, limit = target(controller, command), controller.settings.append_limit
    if limit and blocks.length > limit:
        raise NvmeError(
            Status.INVALID_FIELD, f"{blocks.length} bytes are more than ZASL allows, {limit}"
        )
    zslba, namespace = blocks.slba, _zoned(controller, command)
    zone = namespace.zones.starting(zslba)
    yield from _no_reset(namespace, zslba)
    namespace.zones.require_writable(zone)
    if zone.area:
        raise NvmeError(
            Status.INVALID_ZONE_OPERATION_REQUEST,
            f"zone {zone.number} has a random write area, and takes no Zone Append",
            lba=zslba,
        )
    lba = zone.first + zone.pointer
    entry = command.entry._replace(cdw10=lba & 0xFFFF_FFFF, cdw11=lba >> 32)
    yield from steps_of(lambda: write(controller, replace(command, entry=entry)))
    return lba


def _no_reset(namespace: ZonedNamespace, lba: int) -> Steps:
    """Wait while the zone of a block is being reset. Raises NvmeError."""
    in_flight, first = namespace.in_flight, namespace.zones.of(lba).first * namespace.block_size
    yield from in_turn(in_flight, ((first, 1),), writes=True)
    return None


def _store_claims(controller: Controller, namespace: ZonedNamespace) -> Steps:
    """Have the records of zones that have changed be stored."""
    if namespace.zones.changes.new:  # by a recommendation for the state that the zone is in now
        controller.subsystem.reports.zones_changed()
    try:
        if not namespace.store_claims_at_once():
            yield controller.media_work.submit(namespace.store_claims)
    except MediaError as error:
        raise write_error(controller, namespace, error) from None
    return None


read = _reading(read_write.read)
compare = _reading(optional.compare)
verify = _reading(optional.verify, moves_data=False)
write = _writing(read_write.write)
write_zeroes = _writing(optional.write_zeroes, moves_data=False)
write_uncorrectable = _writing(optional.write_uncorrectable, moves_data=False, timed=False)


# Commands of zones.


def zone_management_send(controller: Controller, command: Command) -> Steps:
    """Open, close, finish, reset or offline a zone, or all of them; set an extension; or commit
    blocks of a random write area."""
    fields = zoned.ZoneManagementSend.decode(command.entry.cdws)
    namespace = _zoned(controller, command)
    zones = namespace.zones
    try:
        action = zoned.ZoneSendAction(fields.zsa)
    except ValueError:
        raise NvmeError(Status.INVALID_FIELD, f"there is no zone action {fields.zsa:#x}") from None
    if action is zoned.ZoneSendAction.SET_EXTENSION and fields.select_all:
        raise NvmeError(Status.INVALID_FIELD, "one zone gets an extension")
    with_area = fields.allocate_area and action in _ALLOCATING
    if fields.select_all and (with_area or action is zoned.ZoneSendAction.FLUSH_AREA):
        raise NvmeError(Status.INVALID_FIELD, "a random write area is that of one zone")
    require_writable(controller, namespace)
    if action is zoned.ZoneSendAction.FLUSH_AREA:
        return (yield from _flush_area(controller, namespace, fields.slba))
    if not fields.select_all:
        zones.starting(fields.slba)
        yield from _no_reset(namespace, fields.slba)
        require_writable(controller, namespace)
    selected = zones.selected(action, fields.slba, every=fields.select_all)
    if action is zoned.ZoneSendAction.RESET:
        return (yield from _reset(controller, namespace, selected)) if selected else None
    extension = None
    if action is zoned.ZoneSendAction.SET_EXTENSION:
        extension = bytes(controller.transfer.receive(command, zoned.EXTENSION_UNIT))
    if with_area:
        zones.require_area(zones.starting(fields.slba))
    written = [zones.written_ahead(zone) for zone in selected]
    zones.take(action, selected)
    if extension is not None:
        selected[0].extension = extension
        selected[0].attributes |= zoned.ZoneAttribute.EXTENSION_VALID
    if with_area:
        selected[0].area = True
    due = None
    if controller.timing is not None and action is zoned.ZoneSendAction.FINISH:
        for blocks in written:
            controller.timing.commit(namespace, blocks)
        ends = [controller.timing.finish(namespace.nsid, zone.number) for zone in selected]
        due = max(ends, default=None)
    stored = _store_claims(controller, namespace)
    return (yield from controller.scheduler.not_before(due, stored))


_ALLOCATING = (zoned.ZoneSendAction.OPEN, zoned.ZoneSendAction.SET_EXTENSION)
"""Actions that can give a zone a random write area."""


def _flush_area(controller: Controller, namespace: ZonedNamespace, lba: int) -> Steps:
    """Commit the blocks of a random write area up to one of them."""
    if lba >= namespace.blocks or not namespace.zones.areas.size:
        raise NvmeError(Status.INVALID_FIELD, f"no random write area has block {lba}")
    yield from _no_reset(namespace, lba)
    require_writable(controller, namespace)
    committed, timing = namespace.zones.flush_area(lba), controller.timing
    due = None if timing is None else timing.commit(namespace, committed)
    stored = _store_claims(controller, namespace)
    return (yield from controller.scheduler.not_before(due, stored))


def _reset(controller: Controller, namespace: ZonedNamespace, zones: list[Zone]) -> Steps:
    """Deallocate zones, which are empty when that is durable."""
    block_size, size = namespace.block_size, namespace.zones.size
    ranges = tuple((zone.first * block_size, size * block_size) for zone in zones)
    media, in_flight = namespace.media, namespace.in_flight

    def erase() -> None:
        for first, length in ranges:
            media.punch(first, length)
        namespace.store_claims()
        media.flush()

    def empty() -> Steps:
        yield from in_turn(in_flight, ranges, writes=True, alone=True)
        require_writable(controller, namespace)
        # Other commands find the zones empty when this has ended.
        namespace.zones.empty(zones)
        try:
            yield controller.media_work.on_blocks(in_flight, ranges, erase, writes=True, alone=True)
        except MediaError as error:
            failed = write_error(controller, namespace, error)
            namespace.zones.not_emptied(zones)
            with suppress(MediaError):
                namespace.store_claims_at_once()
            raise failed from None
        bad = namespace.uncorrectable.ranges()
        for zone in zones:
            namespace.uncorrectable.remove(zone.first, size)
        if namespace.uncorrectable.ranges() != bad:
            yield from controller.uncorrectable.save(controller.media_work, in_flight, ranges)
        return None

    due = None if controller.timing is None else controller.timing.trim(namespace.nsid, ranges)
    return (yield from controller.scheduler.not_before(due, empty()))


def zone_management_receive(controller: Controller, command: Command) -> Result:
    """Report zones from that of the starting LBA on."""
    fields = zoned.ZoneManagementReceive.decode(command.entry.cdws)
    namespace = _zoned(controller, command)
    zones = namespace.zones
    if fields.zra not in set(zoned.ZoneReceiveAction):
        raise NvmeError(Status.INVALID_FIELD, f"there is no zone report {fields.zra:#x}")
    if fields.slba >= namespace.blocks:
        raise NvmeError(
            Status.LBA_OUT_OF_RANGE,
            f"there is no block {fields.slba}",
            location=CommandByte.CDW10,
            lba=fields.slba,
        )
    check_size(fields.length)
    selects = _selects(zones, fields.options)
    extended = fields.zra == zoned.ZoneReceiveAction.EXTENDED_REPORT
    step = zoned.DESCRIPTOR_SIZE + (zoned.EXTENSION_UNIT if extended else 0)
    room = max(0, fields.length - zoned.REPORT_HEADER_SIZE) // step
    matching = 0
    listed: list[bytes] = []
    for zone in zones.every[fields.slba // zones.size :]:
        if not selects(zone):
            continue
        matching += 1
        if len(listed) < room:
            extension = zone.extension.ljust(zoned.EXTENSION_UNIT, b"\0") if extended else b""
            listed.append(zones.descriptor(zone) + extension)
        elif fields.partial:
            break
    report = zoned.encode_report(len(listed) if fields.partial else matching, listed)
    controller.transfer.send(command, report, fields.length)
    return None


def _selects(zones: Zones, options: int) -> Callable[[Zone], bool]:
    """True where reporting options select a zone. Raises NvmeError for reserved options."""
    if options == zoned.REPORT_ALL:
        return lambda zone: True
    if options == zoned.REPORT_ATTRIBUTES:
        return lambda zone: bool(zones.attributes(zone) & _CONTROLLER_ATTRIBUTES)
    state = zoned.REPORTED_STATES.get(options)
    if state is None:
        raise NvmeError(Status.INVALID_FIELD, f"reporting options {options:#x} are reserved")
    return lambda zone: zone.state is state

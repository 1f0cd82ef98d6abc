"""Get Log Page, and the table of the pages that there are.

A page is made whole, from what is the case now, and the part that was asked for is given; only
pages that the standard holds still between two reads keep a copy. All that the device says of a
page comes from its row in `PAGES`: whether it is there, what of a command it understands, and which
bit of Identify Controller announces it.

Source: NVM Express Base Specification 2.0, section 5.16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import csd_spec.opcodes
from nvme_spec.commands import GetLogPage
from nvme_spec.identify import Lpa
from nvme_spec.logs import FirmwareSlotLog, LogPage, LogPageSupport, encode_dword_log
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.accelerator import forward
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.controller import MAX_TRANSFER, Controller

DWORD = 4

NO_ATTRIBUTE = Lpa(0)

Make = Callable[[Controller, Command, GetLogPage], bytes | Pending]
"""Gives the whole page, or `Pending` where the data reaches the host by another way."""


def _nothing(controller: Controller) -> None:
    """Reading the page changes nothing but its event."""


@dataclass(frozen=True, slots=True)
class Page:
    """One log page.

    `attribute` is its bit in LPA of Identify Controller, where it has one. `entry_size` is that of
    the structures that an offset may count instead of bytes, 0 where it may not. `after_reading` is
    called when the host has the data and did not ask to retain the page's event (RAE). `any_nsid`
    is for a page that does not look at the namespace identifier.
    """

    make: Make
    attribute: Lpa = NO_ATTRIBUTE
    entry_size: int = 0
    after_reading: Callable[[Controller], None] = _nothing
    any_nsid: bool = False


def get_log_page(controller: Controller, command: Command) -> Result:
    """Give a part of a log page; unless told to retain it, the page's event may come again."""
    fields = GetLogPage.decode(command.entry.cdws)
    page = PAGES.get(fields.lid)
    if page is None:
        raise NvmeError(
            Status.INVALID_LOG_PAGE, detail=f"log page {fields.lid:#x} is not supported"
        )
    if fields.length > MAX_TRANSFER:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"{fields.length} bytes are more than MDTS allows"
        )
    if fields.uuid_index:
        raise NvmeError(Status.INVALID_FIELD, detail="there is no list of UUIDs to choose from")
    offset = _offset(page, fields)
    # Every page is the whole controller's, so the identifier is none or all (section 5.16.1).
    if not page.any_nsid and command.entry.nsid not in (0, BROADCAST_NSID):
        raise NvmeError(Status.INVALID_FIELD, detail="the log page is not kept by namespace")
    # Memory that is not there is refused before anything is made, or changes by being read.
    controller.views(command, fields.length, write=True)
    data = page.make(controller, command, fields)
    if isinstance(data, Pending):
        return _after_reading(controller, page, fields, data)
    if offset > len(data):
        raise NvmeError(Status.INVALID_FIELD, detail=f"the log page has {len(data)} bytes")
    part = data[offset : offset + fields.length]
    controller.send(command, part.ljust(fields.length, b"\0"))
    return _after_reading(controller, page, fields, None)


def attributes() -> Lpa:
    """LPA of Identify Controller: offsets and long reads work with every page."""
    bits = Lpa.EXTENDED_DATA
    for page in PAGES.values():
        bits |= page.attribute
    return bits


def _offset(page: Page, fields: GetLogPage) -> int:
    """The first byte that is asked for. Raises NvmeError."""
    if fields.offset_is_index:
        if not page.entry_size:
            raise NvmeError(Status.INVALID_FIELD, detail="the page's offset counts bytes only")
        return fields.offset * page.entry_size
    if fields.offset % DWORD:
        raise NvmeError(Status.INVALID_FIELD, detail="the offset is no multiple of a dword")
    return fields.offset


def _after_reading(
    controller: Controller, page: Page, fields: GetLogPage, result: Result
) -> Result:
    """Once the page has reached the host, its event is over, unless the host retains it."""
    if isinstance(result, Pending):
        resume = result.resume
        return Pending(
            result.token, lambda value: _after_reading(controller, page, fields, resume(value))
        )
    if not fields.rae:
        page.after_reading(controller)
        controller.events.log_was_read(fields.lid)
    return result


def _supported(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    return encode_dword_log(
        {
            lid: LogPageSupport.LSUPP | (LogPageSupport.IOS if page.entry_size else 0)
            for lid, page in PAGES.items()
        }
    )


def _errors(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    return controller.errors.encode()


def _smart(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    return controller.health.encode(controller.errors, controller.critical_warning)


def _firmware_slots(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    slots = controller.firmware
    revisions = {f"frs{slot}": revision for slot, revision in slots.revisions.items()}
    return bytes(FirmwareSlotLog(active_slot=slots.active, next_slot=slots.next or 0, **revisions))


def _effects(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    return bytes(controller.support.effects)


def _accelerator(controller: Controller, command: Command, fields: GetLogPage) -> Pending:
    return forward(controller, command, fields.length)


PAGES: dict[int, Page] = {
    LogPage.SUPPORTED_LOG_PAGES: Page(_supported, Lpa.SUPPORTED_LOG_PAGES),
    LogPage.ERROR_INFORMATION: Page(_errors),
    LogPage.SMART: Page(_smart),
    LogPage.FIRMWARE_SLOT: Page(_firmware_slots),
    LogPage.COMMANDS_SUPPORTED_AND_EFFECTS: Page(_effects, Lpa.COMMANDS_SUPPORTED_AND_EFFECTS),
    csd_spec.opcodes.LOG_PAGE: Page(_accelerator, any_nsid=True),
}
"""Every log page that the device has."""

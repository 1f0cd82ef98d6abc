"""Get Log Page.

Source: NVM Express Base Specification 2.0, section 5.16.
"""

from collections.abc import Callable

import csd_spec.opcodes
from nvme_spec.commands import GetLogPage
from nvme_spec.logs import FirmwareSlotLog, LogPage
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.accelerator import forward
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.controller import MAX_TRANSFER, Controller

DWORD = 4


def get_log_page(controller: Controller, command: Command) -> Result:
    """Give a part of a log page; unless told to retain it, the page's event may come again."""
    fields = GetLogPage.decode(command.entry.cdws)
    if fields.length > MAX_TRANSFER:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"{fields.length} bytes are more than MDTS allows"
        )
    if fields.offset % DWORD or fields.offset_is_index:
        raise NvmeError(Status.INVALID_FIELD, detail="the offset is no multiple of a dword")
    if fields.lid == csd_spec.opcodes.LOG_PAGE:
        return _after_reading(controller, fields, forward(controller, command, fields.length))
    make = _PAGES.get(fields.lid)
    if make is None:
        raise NvmeError(
            Status.INVALID_LOG_PAGE, detail=f"log page {fields.lid:#x} is not supported"
        )
    page = make(controller, command)
    if fields.offset > len(page):
        raise NvmeError(Status.INVALID_FIELD, detail=f"the log page has {len(page)} bytes")
    part = page[fields.offset : fields.offset + fields.length]
    controller.send(command, part.ljust(fields.length, b"\0"))
    return _after_reading(controller, fields, None)


def _after_reading(controller: Controller, fields: GetLogPage, result: Result) -> Result:
    """Once the page has reached the host, its event is over, unless the host retains it."""
    if isinstance(result, Pending):
        resume = result.resume
        return Pending(
            result.token, lambda value: _after_reading(controller, fields, resume(value))
        )
    if not fields.rae:
        controller.events.log_was_read(fields.lid)
    return result


def _errors(controller: Controller, command: Command) -> bytes:
    return controller.errors.encode()


def _smart(controller: Controller, command: Command) -> bytes:
    # The counters are the controller's; LPA offers none for a single namespace.
    if command.entry.nsid not in (0, BROADCAST_NSID):
        raise NvmeError(Status.INVALID_FIELD, detail="the health log is not kept by namespace")
    return controller.health.encode(controller.errors, controller.critical_warning)


def _firmware_slots(controller: Controller, command: Command) -> bytes:
    slots = controller.firmware
    revisions = {f"frs{slot}": revision for slot, revision in slots.revisions.items()}
    return bytes(FirmwareSlotLog(active_slot=slots.active, next_slot=slots.next or 0, **revisions))


def _effects(controller: Controller, command: Command) -> bytes:
    return bytes(controller.support.effects)


_PAGES: dict[int, Callable[[Controller, Command], bytes]] = {
    LogPage.ERROR_INFORMATION: _errors,
    LogPage.SMART: _smart,
    LogPage.FIRMWARE_SLOT: _firmware_slots,
    LogPage.COMMANDS_SUPPORTED_AND_EFFECTS: _effects,
}

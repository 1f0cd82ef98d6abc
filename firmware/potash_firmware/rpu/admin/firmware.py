"""Firmware Image Download and Firmware Commit.

Source: NVM Express Base Specification 2.0, section 5.12 and 5.13.
"""

import logging
from collections.abc import Callable

from nvme_spec.commands import CommitAction, FirmwareCommit, FirmwareImageDownload
from nvme_spec.logs import NoticeEvent
from nvme_spec.persistent_events import FirmwareCommitted
from nvme_spec.status import NvmeError, Status, split
from potash_device.media.errors import MediaError
from potash_device.media.flash import LAST_SLOT
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.operations.firmware_slots import BUILT_IN_SLOT

log = logging.getLogger(__name__)

DWORD = 4

_REPLACES = (
    CommitAction.REPLACE,
    CommitAction.REPLACE_AND_ACTIVATE_AT_RESET,
    CommitAction.REPLACE_AND_ACTIVATE_NOW,
)


def download(controller: Controller, command: Command) -> Result:
    fields = FirmwareImageDownload.decode(command.entry.cdws)
    views = controller.transfer.views(command, fields.length, write=False)
    controller.firmware.download.put(fields.offset * DWORD, views)
    return None


def commit(controller: Controller, command: Command) -> Steps:
    """Put the downloaded image into a slot, or make another slot's image the active one.

    However it ends, the persistent event log has it.
    """
    fields = FirmwareCommit.decode(command.entry.cdws)
    slots = controller.firmware
    before, slot = slots.revision, fields.slot or slots.choose_writable()

    def note(status: int) -> None:
        controller.persistent_events.add(
            FirmwareCommitted(
                old_revision=before,
                new_revision=slots.revisions.get(slot, ""),
                action=fields.action,
                slot=fields.slot,
                sct=split(status).sct,
                sc=split(status).sc,
            )
        )

    try:
        yield from _commit(controller, fields)
    except NvmeError as error:
        note(error.status)
        raise
    note(Status.SUCCESS)
    return None


def _commit(controller: Controller, fields: FirmwareCommit) -> Steps:
    slots = controller.firmware
    if fields.action not in (*_REPLACES, CommitAction.ACTIVATE_AT_RESET):
        raise NvmeError(Status.INVALID_FIELD, f"commit action {fields.action} is not there")
    if fields.slot > LAST_SLOT:
        raise NvmeError(Status.INVALID_FIRMWARE_SLOT, f"there are {LAST_SLOT} slots")
    if slots.busy:
        raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "another image is being written", dnr=False)
    if fields.action == CommitAction.ACTIVATE_AT_RESET:
        if fields.slot not in slots.revisions:
            raise NvmeError(Status.INVALID_FIRMWARE_IMAGE, f"slot {fields.slot} holds no image")
        yield from _stored(controller, lambda: slots.flash.activate(fields.slot))
        slots.next = fields.slot
    else:
        yield from _replace(controller, fields)
    return None


def _replace(controller: Controller, fields: FirmwareCommit) -> Steps:
    slots = controller.firmware
    slot = fields.slot or slots.choose_writable()
    if slot == BUILT_IN_SLOT:
        raise NvmeError(Status.INVALID_FIRMWARE_SLOT, "slot 1 cannot be written")
    image = slots.download.take()
    activate = fields.action != CommitAction.REPLACE

    def store() -> None:
        try:
            slots.flash.store(slot, image, activate=activate)
        finally:
            slots.busy = False  # whoever waits for it, or nobody after a reset

    slots.busy = True
    yield from _stored(controller, store)
    if fields.action == CommitAction.REPLACE_AND_ACTIVATE_AT_RESET:
        slots.next = slot
    elif fields.action == CommitAction.REPLACE_AND_ACTIVATE_NOW:
        controller.alerts.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
        slots.active, slots.next = slot, None
    return None


def _stored(controller: Controller, call: Callable[[], object]) -> Steps:
    """Have the flash written. Raises NvmeError."""
    try:
        yield controller.media_work.submit(call)
    except MediaError as error:
        controller.health.media_errors += 1
        log.error("the flash could not be written: %s", error)
        raise NvmeError(Status.INTERNAL_ERROR, str(error), dnr=False) from None
    return None

"""Firmware Image Download and Firmware Commit.

Source: NVM Express Base Specification 2.0, section 5.12 and 5.13.
"""

import logging
from concurrent.futures import Future
from typing import Any

from nvme_spec.commands import CommitAction, FirmwareCommit, FirmwareImageDownload
from nvme_spec.logs import NoticeEvent
from nvme_spec.persistent_events import FirmwareCommitted
from nvme_spec.status import NvmeError, Status, split
from potash_device.media.errors import MediaError
from potash_device.media.flash import LAST_SLOT, StoredImage
from potash_firmware.rpu.command import Command, Pending, Result, finished
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


def commit(controller: Controller, command: Command) -> Result:
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

    return finished(
        lambda: _commit(controller, fields),
        lambda: note(Status.SUCCESS),
        lambda error: note(error.status),
    )


def _commit(controller: Controller, fields: FirmwareCommit) -> Pending:
    slots = controller.firmware
    if fields.action not in (*_REPLACES, CommitAction.ACTIVATE_AT_RESET):
        raise NvmeError(Status.INVALID_FIELD, f"commit action {fields.action} is not there")
    if fields.slot > LAST_SLOT:
        raise NvmeError(Status.INVALID_FIRMWARE_SLOT, f"there are {LAST_SLOT} slots")
    if slots.busy:
        raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, "another image is being written", dnr=False)
    if fields.action == CommitAction.ACTIVATE_AT_RESET:
        return _activate(controller, fields.slot)
    return _replace(controller, fields)


def _replace(controller: Controller, fields: FirmwareCommit) -> Pending:
    slots = controller.firmware
    slot = fields.slot or slots.choose_writable()
    if slot == BUILT_IN_SLOT:
        raise NvmeError(Status.INVALID_FIRMWARE_SLOT, "slot 1 cannot be written")
    image = slots.download.take()
    activate = fields.action != CommitAction.REPLACE

    def finish(future: Future[StoredImage]) -> None:
        _require_stored(controller, future)
        if fields.action == CommitAction.REPLACE_AND_ACTIVATE_AT_RESET:
            slots.next = slot
        elif fields.action == CommitAction.REPLACE_AND_ACTIVATE_NOW:
            controller.alerts.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
            slots.active, slots.next = slot, None

    slots.busy = True
    future = controller.media_work.submit(lambda: slots.flash.store(slot, image, activate=activate))
    future.add_done_callback(lambda _: setattr(slots, "busy", False))
    return Pending(future, finish)


def _activate(controller: Controller, slot: int) -> Pending:
    slots = controller.firmware
    if slot not in slots.revisions:
        raise NvmeError(Status.INVALID_FIRMWARE_IMAGE, f"slot {slot} holds no image")

    def finish(future: Future[None]) -> None:
        _require_stored(controller, future)
        slots.next = slot

    return Pending(controller.media_work.submit(lambda: slots.flash.activate(slot)), finish)


def _require_stored(controller: Controller, future: Future[Any]) -> None:
    try:
        future.result()
    except MediaError as error:
        controller.health.media_errors += 1
        log.error("the flash could not be written: %s", error)
        raise NvmeError(Status.INTERNAL_ERROR, str(error), dnr=False) from None

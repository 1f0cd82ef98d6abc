"""Commands that begin an operation: of namespaces, of firmware, Device Self-test and Sanitize.

Format NVM, Namespace Management and Namespace Attachment begin when the one before has ended, so
two of them never see half of what the other does. Device Self-test and Sanitize run in the
background.

Source: NVM Express Base Specification 2.0, section 5.9 (Device Self-test), 5.12 (Firmware Commit),
5.13 (Firmware Image Download), 5.14 (Format NVM), 5.19 (Namespace Attachment), 5.20 (Namespace
Management) and 5.24 (Sanitize).
"""

import logging
from collections.abc import Callable

from nvme_spec.commands import (
    CommitAction,
    DeviceSelfTest,
    FirmwareCommit,
    FirmwareImageDownload,
    FormatNvm,
    NamespaceAttachment,
    NamespaceAttachmentOperation,
    NamespaceManagement,
    NamespaceManagementOperation,
    Sanitize,
    SecureErase,
    SelfTestCode,
)
from nvme_spec.identify.lists import IDENTIFY_SIZE, decode_controller_list
from nvme_spec.logs import NoticeEvent, SelfTestResult
from nvme_spec.persistent_events import FirmwareCommitted
from nvme_spec.status import NvmeError, Status, split
from potash_device.media.errors import MediaError
from potash_device.media.flash import LAST_SLOT
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import wanted_format
from potash_firmware.rpu.operations.firmware_slots import BUILT_IN_SLOT

log = logging.getLogger(__name__)

DWORD = 4

_REPLACES = (
    CommitAction.REPLACE,
    CommitAction.REPLACE_AND_ACTIVATE_AT_RESET,
    CommitAction.REPLACE_AND_ACTIVATE_NOW,
)


def format_nvm(controller: Controller, command: Command) -> Steps:
    """Give one namespace, or all that are attached, an LBA format and empty blocks."""
    fields = FormatNvm.decode(command.entry.cdws)
    if fields.ses not in (SecureErase.NONE, SecureErase.USER_DATA):
        raise NvmeError(Status.INVALID_FIELD, detail=f"secure erase {fields.ses} is not there")
    block_size, metadata = wanted_format(
        fields.lbaf,
        extended=bool(fields.mset),
        protection=fields.pi,
        first=bool(fields.pil),
        enabled=controller.features.extended_formats,
    )
    due: int | None = None

    def operation() -> Steps:
        nonlocal due
        nsids = yield from controller.formatting.format(
            command.entry.nsid,
            block_size,
            metadata,
            erases=fields.ses != SecureErase.NONE,
            dword10=command.entry.cdw10,
        )
        if controller.timing is not None:
            due = controller.timing.erase(nsids)
        return None

    yield from controller.operations.command(operation())
    yield from controller.scheduler.until(due)
    return None


def namespace_management(controller: Controller, command: Command) -> Result:
    """Create a namespace, whose identifier is in dword 0, or delete one or all."""
    fields = NamespaceManagement.decode(command.entry.cdws)
    management = controller.management
    if fields.sel == NamespaceManagementOperation.CREATE:
        if fields.csi not in controller.namespaces.enabled:
            raise NvmeError(
                Status.IO_COMMAND_SET_NOT_SUPPORTED, detail=f"there is no command set {fields.csi}"
            )
        structure = bytes(controller.transfer.receive(command, IDENTIFY_SIZE))
        return controller.operations.command(management.create(fields.csi, structure))
    if fields.sel == NamespaceManagementOperation.DELETE:
        return controller.operations.command(management.delete(command.entry.nsid))
    raise NvmeError(Status.INVALID_FIELD, detail=f"SEL {fields.sel} is reserved")


def namespace_attachment(controller: Controller, command: Command) -> Result:
    """Let the controllers of a list use a namespace, or no longer."""
    fields = NamespaceAttachment.decode(command.entry.cdws)
    try:
        attach = NamespaceAttachmentOperation(fields.sel) == NamespaceAttachmentOperation.ATTACH
    except ValueError:
        raise NvmeError(Status.INVALID_FIELD, detail=f"SEL {fields.sel} is reserved") from None
    try:
        identifiers = decode_controller_list(
            bytes(controller.transfer.receive(command, IDENTIFY_SIZE))
        )
    except ValueError as error:
        raise NvmeError(Status.CONTROLLER_LIST_INVALID, detail=str(error)) from None
    count = len(controller.subsystem.controllers)
    if not identifiers or max(identifiers) >= count:
        raise NvmeError(
            Status.CONTROLLER_LIST_INVALID, detail=f"the controllers are 0 to {count - 1}"
        )
    return controller.operations.command(
        controller.management.attach(command.entry.nsid, identifiers, attach=attach)
    )


def device_self_test(controller: Controller, command: Command) -> Result:
    """Start a test, which goes on after the command, or end the one at hand."""
    fields = DeviceSelfTest.decode(command.entry.cdws)
    tests = controller.self_tests
    if fields.stc == SelfTestCode.ABORT:
        tests.abort(SelfTestResult.ABORTED_BY_COMMAND)
    elif fields.stc in (SelfTestCode.SHORT, SelfTestCode.EXTENDED):
        tests.begin(controller.namespaces, SelfTestCode(fields.stc), command.entry.nsid)
    else:
        raise NvmeError(Status.INVALID_FIELD, f"self-test {fields.stc:#x} is not there")

    def remember() -> Steps:
        yield tests.save()
        return None

    return controller.operations.command(remember(), exclusive=False)


def sanitize(controller: Controller, command: Command) -> Result:
    """Start an operation, which goes on after the command, or leave the failure mode."""
    fields = Sanitize.decode(command.entry.cdws)
    steps = controller.sanitizing.command(fields, command.entry.cdw10, controller.identifier)
    return controller.operations.command(steps)


def firmware_download(controller: Controller, command: Command) -> Result:
    fields = FirmwareImageDownload.decode(command.entry.cdws)
    views = controller.transfer.views(command, fields.length, write=False)
    controller.download.put(fields.offset * DWORD, views)
    return None


def firmware_commit(controller: Controller, command: Command) -> Steps:
    """Put the downloaded image into a slot, or make another slot's image the active one.

    However it ends, the persistent event log has it.
    """
    fields = FirmwareCommit.decode(command.entry.cdws)
    slots = controller.firmware
    before, slot = slots.revision, fields.slot or slots.choose_writable()

    def note(status: int) -> None:
        controller.reports.persistent_events.add(
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

        def activate() -> None:
            slots.flash.activate(fields.slot)
            slots.next = fields.slot

        yield from _store(controller, activate)
    else:
        yield from _replace(controller, fields)
    return None


def _replace(controller: Controller, fields: FirmwareCommit) -> Steps:
    slots = controller.firmware
    slot = fields.slot or slots.choose_writable()
    if slot == BUILT_IN_SLOT:
        raise NvmeError(Status.INVALID_FIRMWARE_SLOT, "slot 1 cannot be written")
    image = controller.download.take()
    activate = fields.action != CommitAction.REPLACE

    def store() -> None:
        slots.flash.store(slot, image, activate=activate)
        if fields.action == CommitAction.REPLACE_AND_ACTIVATE_AT_RESET:
            slots.next = slot
        elif fields.action == CommitAction.REPLACE_AND_ACTIVATE_NOW:
            slots.active, slots.next = slot, None

    yield from _store(controller, store)
    if fields.action == CommitAction.REPLACE_AND_ACTIVATE_NOW:
        controller.subsystem.reports.notice(NoticeEvent.FIRMWARE_ACTIVATION_STARTING)
    return None


def _store(controller: Controller, call: Callable[[], object]) -> Steps:
    """Have the flash written. Raises NvmeError.

    Until that is over, whoever waits for it, no other image is written and no sanitize operation
    begins.
    """
    slots = controller.firmware

    def write() -> None:
        try:
            call()
        finally:
            slots.busy = False

    slots.busy = True
    try:
        yield controller.media_work.submit(write)
    except MediaError as error:
        controller.health.media_errors += 1
        log.error("the flash could not be written: %s", error)
        raise NvmeError(Status.INTERNAL_ERROR, str(error), dnr=False) from None
    return None

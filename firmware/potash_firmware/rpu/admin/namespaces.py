"""Format NVM, Namespace Management and Namespace Attachment.

Each is a task that begins when the one before has ended, so two of them never see half of what the
other does. What is decided is durable in the drive's list before anything of it is done, and before
the host is told; a device that ends in the middle is, when it starts again, as before the command
or as after it.

Source: NVM Express Base Specification 2.0, section 5.14 (Format NVM), 5.19 (Namespace Attachment),
5.20 (Namespace Management) and 8.12; NVM Command Set Specification 1.0, section 4.1.6.
"""

import errno
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

from nvme_spec.commands import (
    FormatNvm,
    NamespaceAttachment,
    NamespaceAttachmentOperation,
    NamespaceManagement,
    NamespaceManagementOperation,
    SecureErase,
)
from nvme_spec.identify import (
    IDENTIFY_SIZE,
    NMIC_SHARED,
    CommandSet,
    IdentifyNamespace,
    decode_controller_list,
)
from nvme_spec.logs import NO_PARAMETER_ERROR_LOCATION, SelfTestResult
from nvme_spec.persistent_events import FormatCompleted, FormatStarted, NamespaceChanged
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.media import BLOCK_SIZES, MediaError, NamespaceShape
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.inventory import CONTROLLER_ID
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.uncorrectable import UncorrectableBlocks
from potash_firmware.rpu.settings import NamespaceSettings

ERASED_PIECE = 1 << 30
"""Bytes that a format erases in one go."""


def format_nvm(controller: Controller, command: Command) -> Result:
    """Give one namespace, or all that are attached, a block size and empty blocks."""
    fields = FormatNvm.decode(command.entry.cdws)
    if fields.ses not in (SecureErase.NONE, SecureErase.USER_DATA):
        raise NvmeError(Status.INVALID_FIELD, detail=f"secure erase {fields.ses} is not there")
    block_size = _block_size(fields.lbaf)
    if fields.mset or fields.pi or fields.pil:
        raise NvmeError(Status.INVALID_FORMAT, detail="no format has metadata or protection")
    erases = fields.ses != SecureErase.NONE
    return controller.tasks.command(_noted_format(controller, command, block_size, erases))


def namespace_management(controller: Controller, command: Command) -> Result:
    """Create a namespace, whose identifier is in dword 0, or delete one or all."""
    fields = NamespaceManagement.decode(command.entry.cdws)
    if fields.sel == NamespaceManagementOperation.CREATE:
        if fields.csi != CommandSet.NVM:
            raise NvmeError(
                Status.IO_COMMAND_SET_NOT_SUPPORTED, detail=f"there is no command set {fields.csi}"
            )
        wanted = IdentifyNamespace(bytes(controller.transfer.receive(command, IDENTIFY_SIZE)))
        return controller.tasks.command(_create(controller, wanted))
    if fields.sel == NamespaceManagementOperation.DELETE:
        return controller.tasks.command(_delete(controller, command.entry.nsid))
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
    if identifiers != [CONTROLLER_ID]:
        raise NvmeError(Status.CONTROLLER_LIST_INVALID, detail="there is one controller, 0")
    return controller.tasks.command(_attach(controller, command.entry.nsid, attach=attach))


# Format NVM.


def _noted_format(controller: Controller, command: Command, block_size: int, erases: bool) -> Steps:
    """The persistent event log has how it began and how it ended."""
    nsid, events = command.entry.nsid, controller.persistent_events
    events.add(FormatStarted(nsid=nsid, cdw10=command.entry.cdw10))
    try:
        result = yield from _format(controller, nsid, block_size, erases)
    except (NvmeError, MediaError) as error:
        status = error.status if isinstance(error, NvmeError) else Status.INTERNAL_ERROR
        events.add(FormatCompleted(nsid=nsid, format_status=1, status=status << 1))
        raise
    events.add(FormatCompleted(nsid=nsid))
    return result


def _format(controller: Controller, nsid: int, block_size: int, erases: bool) -> Steps:
    controller.sanitizing.require_none()
    if nsid == BROADCAST_NSID:
        namespaces = list(controller.namespaces.attached.values())
        if not namespaces:
            raise NvmeError(Status.INVALID_FIELD, detail="no namespace is attached")
    else:
        namespaces = [controller.namespaces.active(nsid)]
    _require_writable(namespaces)
    if any(namespace.media.size < block_size for namespace in namespaces):
        raise NvmeError(Status.INVALID_FORMAT, detail="the namespace is smaller than a block")
    nsids = [namespace.nsid for namespace in namespaces]
    controller.self_tests.abort(SelfTestResult.ABORTED_BY_FORMAT, nsids)
    before = [namespace.in_flight.closed for namespace in namespaces]
    for namespace in namespaces:
        namespace.in_flight.closed = Status.FORMAT_IN_PROGRESS
    yield from controller.tasks.quiet([one.in_flight for one in namespaces])
    if erases:  # what jobs have read of the blocks is user data too
        yield controller.apu.erase()
    # Those that a failure leaves alone are as they were.
    left = dict(zip(nsids, before, strict=True))
    try:
        for namespace in namespaces:
            yield from _format_one(controller, namespace, block_size)
            del left[namespace.nsid]
    finally:
        for one, closed in left.items():
            namespace = controller.namespaces.allocated[one]
            namespace.in_flight.closed = (
                Status.NAMESPACE_NOT_READY if namespace.unformatted else closed
            )
    return None


def _format_one(controller: Controller, namespace: Namespace, block_size: int) -> Steps:
    drive, media, nsid = controller.board.drive, namespace.media, namespace.nsid
    settings = replace(namespace.settings, block_size=block_size)
    formatted = _shape(settings, media.size, namespace.formats + 1)
    yield partial(drive.reshape, nsid, formatted._replace(erase=True))
    # From here on it has the new format, whatever happens; what it holds is erased before anybody
    # may read it, at the next start if not now.
    changed = block_size != namespace.block_size
    namespace.settings, namespace.formats = settings, formatted.formats
    namespace.unformatted = 100
    controller.namespaces.version += changed
    namespace.uncorrectable = UncorrectableBlocks()
    if changed:  # What was said of blocks of another size is said of none.
        controller.features.forget_namespace(nsid)
        controller.persistence.save_features()
    controller.namespace_changed(nsid)
    try:
        for at in range(0, media.size, ERASED_PIECE):
            yield partial(media.punch, at, min(ERASED_PIECE, media.size - at))
            namespace.unformatted = 100 - 99 * at // media.size
        yield media.flush
        yield from controller.uncorrectable.saving()
    except MediaError as error:
        raise controller.failures.writing(nsid, media, error, namespace.lba_of(error)) from None
    yield partial(drive.reshape, nsid, formatted)
    namespace.unformatted = 0
    namespace.in_flight.closed = None
    controller.namespace_changed(nsid)
    return None


# Namespace Management and Attachment.


def _create(controller: Controller, wanted: IdentifyNamespace) -> Steps:
    controller.sanitizing.require_none()
    drive = controller.board.drive
    _require_changeable(controller)
    settings, size = _wanted(wanted)
    if size > controller.namespaces.unallocated:
        raise NvmeError(
            Status.NAMESPACE_INSUFFICIENT_CAPACITY,
            detail=f"{size} bytes are wanted, {controller.namespaces.unallocated} are free",
        )
    free = (
        nsid for nsid in range(1, drive.most + 1) if nsid not in controller.namespaces.allocated
    )
    nsid = next(free, None)
    if nsid is None:
        raise NvmeError(
            Status.NAMESPACE_IDENTIFIER_UNAVAILABLE, detail=f"there are {drive.most} namespaces"
        )
    settings = replace(settings, nsid=nsid, uuid=str(uuid4()))
    # What may still be stored of another one of that identifier must not become this one's.
    yield from _forget(controller, nsid)
    try:
        media = yield partial(drive.create, nsid, _shape(settings, size))
    except MediaError as error:
        if error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            raise NvmeError(
                Status.NAMESPACE_INSUFFICIENT_CAPACITY, dnr=False, detail=str(error.strerror)
            ) from None
        raise
    controller.board.media[nsid] = media
    blocks = controller.namespaces.add(settings, media).blocks
    controller.faults.arrange()
    controller.persistent_events.add(
        NamespaceChanged(
            cdw10=NamespaceManagementOperation.CREATE,
            nsid=nsid,
            nsze=blocks,
            ncap=blocks,
            flbas=BLOCK_SIZES.index(settings.block_size),
            nmic=NMIC_SHARED if settings.shared else 0,
        )
    )
    return nsid


def _wanted(wanted: IdentifyNamespace) -> tuple[NamespaceSettings, int]:
    """The namespace that a host describes, and its bytes. Raises NvmeError."""
    # What is wrong is in the data, and not in the command.
    location = NO_PARAMETER_ERROR_LOCATION
    block_size = _block_size(wanted.format_index_upper << 4 | wanted.format_index, location)
    if wanted.metadata_extended or wanted.dps:
        raise NvmeError(
            Status.INVALID_FORMAT, detail="no format has metadata or protection", location=location
        )
    if not wanted.nsze or wanted.ncap > wanted.nsze:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"{wanted.ncap} blocks of {wanted.nsze} can be used"
        )
    if wanted.ncap < wanted.nsze:
        raise NvmeError(
            Status.THIN_PROVISIONING_NOT_SUPPORTED, detail="every block has its capacity"
        )
    if wanted.nmic & ~NMIC_SHARED or wanted.anagrpid or wanted.nvmsetid or wanted.endgid:
        raise NvmeError(
            Status.INVALID_FIELD, detail="there are no groups and sets for a namespace to be in"
        )
    settings = NamespaceSettings(
        block_size=block_size, attached=False, shared=bool(wanted.nmic & NMIC_SHARED)
    )
    return settings, wanted.nsze * block_size


def _delete(controller: Controller, nsid: int) -> Steps:
    controller.sanitizing.require_none()
    if nsid == BROADCAST_NSID:
        namespaces = list(controller.namespaces.allocated.values())
    else:
        namespaces = [_allocated(controller, nsid)]
    _require_changeable(controller)
    _require_writable(namespaces)
    nsids = [namespace.nsid for namespace in namespaces]
    controller.self_tests.abort(SelfTestResult.ABORTED_BY_NAMESPACE_REMOVAL, nsids)
    attached = _detach_now(controller, nsids)
    try:
        yield from controller.tasks.quiet([one.in_flight for one in namespaces])
        yield partial(controller.board.drive.delete, nsids)
    except MediaError:
        controller.namespaces.attached.update(attached)
        raise
    controller.namespaces.remove(nsids)
    for one in nsids:
        del controller.board.media[one]
    with suppress(MediaError):  # what is stored of no namespace harms none
        yield from _forget(controller, *nsids)
    for one in attached:
        controller.namespace_changed(one)
    controller.persistent_events.add(
        NamespaceChanged(cdw10=NamespaceManagementOperation.DELETE, nsid=nsid)
    )
    return None


def _attach(controller: Controller, nsid: int, *, attach: bool) -> Steps:
    controller.sanitizing.require_none()
    namespace = _allocated(controller, nsid)
    if attach == (nsid in controller.namespaces.attached):
        status = Status.NAMESPACE_ALREADY_ATTACHED if attach else Status.NAMESPACE_NOT_ATTACHED
        raise NvmeError(status, detail=f"namespace {nsid}")
    _require_changeable(controller)
    settings = replace(namespace.settings, attached=attach)
    before = {} if attach else _detach_now(controller, [nsid])
    try:
        yield from controller.tasks.quiet([namespace.in_flight])
        shape = _shape(settings, namespace.media.size, namespace.formats)
        yield partial(controller.board.drive.reshape, nsid, shape)
    except MediaError:
        controller.namespaces.attached.update(before)
        raise
    namespace.settings = settings
    if attach:
        controller.namespaces.attached[nsid] = namespace
    controller.namespace_changed(nsid)
    return None


def _forget(controller: Controller, *nsids: int) -> Steps:
    """Keep nothing of namespaces that are not there."""
    for nsid in nsids:
        controller.features.forget_namespace(nsid)
    controller.persistence.save_features()
    yield from controller.uncorrectable.saving()
    return None


def _detach_now(controller: Controller, nsids: Iterable[int]) -> dict[int, Namespace]:
    """Begin no command any more on these namespaces; those of them that were attached."""
    attached = {nsid: controller.namespaces.attached.pop(nsid, None) for nsid in nsids}
    return {nsid: namespace for nsid, namespace in attached.items() if namespace is not None}


# What all of them ask.


def _block_size(index: int, location: int | None = None) -> int:
    """Bytes of a block in the format of that number. Raises NvmeError."""
    if index >= len(BLOCK_SIZES):
        raise NvmeError(
            Status.INVALID_FORMAT, detail=f"there is no LBA format {index}", location=location
        )
    return BLOCK_SIZES[index]


def _shape(settings: NamespaceSettings, size: int, formats: int = 0) -> NamespaceShape:
    """What the drive is to remember of a namespace."""
    return NamespaceShape(
        size=size,
        block_size=settings.block_size,
        attached=settings.attached,
        shared=settings.shared,
        uuid=settings.uuid,
        formats=formats,
    )


def _allocated(controller: Controller, nsid: int) -> Namespace:
    """A namespace that there is, attached or not. Raises NvmeError."""
    if nsid == BROADCAST_NSID:
        raise NvmeError(Status.INVALID_FIELD, detail="the command is about one namespace")
    namespace = controller.namespaces.allocated.get(nsid)
    if namespace is None:
        raise controller.namespaces.absent(nsid)
    return namespace


def _require_changeable(controller: Controller) -> None:
    if controller.board.drive.read_only:
        raise NvmeError(Status.OPERATION_DENIED, detail="the drive was opened for reading alone")


def _require_writable(namespaces: Iterable[Namespace]) -> None:
    for namespace in namespaces:
        if not namespace.media.writable:
            raise NvmeError(
                Status.NAMESPACE_WRITE_PROTECTED,
                detail=f"namespace {namespace.nsid} takes no writes",
            )

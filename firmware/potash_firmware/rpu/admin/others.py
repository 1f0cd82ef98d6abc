"""Asynchronous Event Request, Abort, Keep Alive, the commands for faults, and Get LBA Status.

Get LBA Status gives the blocks that cannot be read. Tracked are those that a host has made
uncorrectable. A scan reads the media as well, and ends when the host's buffer is full.

Sources: NVM Express Base Specification 2.0, section 5.1 (Abort), 5.2 and 5.18 (Keep Alive); NVM
Command Set Specification 1.0, section 4.2.1.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

from csd_spec import faults
from csd_spec.descriptors import DescriptorError
from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.commands import NOT_ABORTED, Abort
from nvme_spec.logs import CommandByte
from nvme_spec.ranges import (
    LBA_STATUS_DESCRIPTOR_SIZE,
    LBA_STATUS_HEADER_SIZE,
    GetLbaStatus,
    LbaStatusAction,
    LbaStatusCompletion,
    encode_lba_status,
)
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import STEP, Part, carry_out, pieces, read_error
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.uncorrectable import UncorrectableBlocks
from potash_firmware.rpu.scheduler import Wait, never
from potash_firmware.rpu.transfer import check_size


def asynchronous_event_request(controller: Controller, command: Command) -> Steps:
    """Wait for an event; dword 0 says which."""
    controller.alerts.health()
    request = controller.reports.events.request()
    try:
        event: int = yield Wait(request)
        return event
    finally:
        controller.reports.events.withdraw(request)


def abort(controller: Controller, command: Command) -> Steps:
    """End a command that waits; dword 0 says whether that was done.

    A command's handler says whether it can be cancelled: event requests, what waits for other work,
    writes that the media have not begun, and what only reads. A program that runs is stopped, which
    is waited for. What else the media or the APU have begun ends by itself soon.
    """
    fields = Abort.decode(command.entry.cdws)
    aborted = controller.outstanding.abort((fields.sqid, fields.cid))
    if isinstance(aborted, Future):  # an execution
        yield Wait({aborted}, never)
        aborted = aborted.result().outcome is Outcome.CANCELLED
    return 0 if aborted else NOT_ABORTED


def keep_alive(controller: Controller, command: Command) -> Result:
    """The host lives, and its timer begins anew."""
    controller.keep_alive.restart()
    return None


def fault_send(controller: Controller, command: Command) -> Result:
    """Arm a fault, which dword 0 gives a number, or clear some."""
    fields = faults.FaultSend.decode(command.entry.cdws)
    if fields.operation == faults.FaultOperation.CLEAR:
        controller.faults.clear(fields.identifier)
        return None
    if fields.operation != faults.FaultOperation.ADD:
        raise NvmeError(Status.INVALID_FIELD, f"operation {fields.operation} is not there")
    length = command.entry.cdw10 * DWORD_SIZE
    if length != faults.FAULT_SIZE:
        raise NvmeError(Status.INVALID_FIELD, f"a fault has {faults.FAULT_SIZE} bytes")
    try:
        fault = faults.Fault.decode(bytes(controller.transfer.receive(command, length)))
    except DescriptorError as error:
        raise NvmeError(Status.INVALID_FIELD, str(error)) from None
    return controller.faults.add(fault)


def fault_receive(controller: Controller, command: Command) -> Result:
    """Give the list of faults, as much of it as is asked for."""
    length = faults.FaultReceive.decode(command.entry.cdws).dwords * DWORD_SIZE
    if length:
        page = faults.encode_faults(controller.faults.listed())
        controller.transfer.send(command, page, length)
    return None


def get_lba_status(controller: Controller, command: Command) -> Steps:
    """Give the ranges of blocks that cannot be read, of those that the host asks for."""
    fields = GetLbaStatus.decode(command.entry.cdws)
    namespace = controller.namespaces.usable(command.entry.nsid)
    if fields.atype not in (LbaStatusAction.SCAN, LbaStatusAction.TRACKED_ONLY):
        raise NvmeError(Status.INVALID_FIELD, f"action {fields.atype:#x} is not supported")
    check_size(fields.length)
    slba = fields.slba
    namespace.byte_range(slba, max(fields.rl, 1), location=CommandByte.CDW10)
    count = fields.rl or namespace.blocks - slba
    room = max(0, fields.length - LBA_STATUS_HEADER_SIZE) // LBA_STATUS_DESCRIPTOR_SIZE
    bad = UncorrectableBlocks()
    for first, blocks in namespace.uncorrectable.ranges(slba, count):
        bad.add(first, blocks)

    def parts() -> Iterator[Part]:
        for first, length in pieces(
            slba * namespace.block_size, count * namespace.block_size, STEP
        ):
            if len(bad) > room:
                return
            yield Part(first, length, partial(_scan, namespace, first, length, bad))

    if fields.atype == LbaStatusAction.SCAN:
        yield from carry_out(controller, command, namespace, parts(), read_error, writes=False)
    found = bad.ranges()
    reason = LbaStatusCompletion.MORE if len(found) > room else LbaStatusCompletion.COMPLETE
    page = encode_lba_status(found[:room], reason)
    controller.transfer.send(command, page, fields.length)
    return None


def _scan(namespace: Namespace, first: int, length: int, bad: UncorrectableBlocks) -> None:
    """Add the blocks of a range that the media cannot give; waits."""
    media: Media = namespace.media
    end = first + length
    while first < end:
        try:
            media.verify(first, end - first)
        except MediaError as error:
            lba = namespace.lba_of(error)
            bad.add(lba, 1)
            first = (lba + 1) * namespace.block_size
        else:
            return

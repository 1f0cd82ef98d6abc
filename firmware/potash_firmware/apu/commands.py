"""The accelerator command set: one table, opcode to handler.

A handler returns the data for the host, returns `Later`, or raises NvmeError; it never replies
itself, so that no command goes unanswered. It checks everything before it changes anything.

Alkali CSD platform documentation, chapter 4 (NVMe commands and extensions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from csd_spec import fields
from csd_spec.descriptors import (
    Accelerator as AcceleratorDescriptor,
)
from csd_spec.descriptors import (
    Capability,
    CapabilityId,
    DescriptorError,
    IdentifyData,
    LogEntryType,
    decode_arguments,
)
from csd_spec.opcodes import (
    DWORD_SIZE,
    KEEP_ACTIVE_FIRMWARE,
    LOG_PAGE,
    AdminOpcode,
    GlobalOperation,
    IoOpcode,
    Operation,
)
from csd_spec.status import VendorStatus
from nvme_spec import opcodes as nvme
from nvme_spec.commands import GetLogPage
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu import firmware, ranges
from potash_firmware.apu.config import Config
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.lifecycle import OutOfSequence
from potash_firmware.apu.model import Accelerator, ByteRange, Subsystem
from potash_firmware.mailbox.messages import Request
from potash_firmware.mailbox.shared import SharedBuffers


@dataclass(frozen=True, slots=True)
class Context:
    """What the handlers work on."""

    config: Config
    subsystem: Subsystem
    jobs: Jobs
    buffers: SharedBuffers

    def accelerator(self, identifier: int) -> Accelerator:
        """Raises NvmeError when there is none such."""
        try:
            return self.subsystem.accelerators[identifier]
        except KeyError:
            detail = f"there is no accelerator {identifier}"
            raise NvmeError(VendorStatus.INVALID_ACCELERATOR, detail=detail) from None

    def data(self, request: Request) -> memoryview:
        """What the host sent with a command."""
        if not request.length:
            return memoryview(b"")
        return self.buffers.slot(request.slot)[: request.length]


@dataclass(frozen=True, slots=True)
class Answer:
    """The command succeeds: `data` for the host, `result` for completion dword 0."""

    data: bytes | memoryview = b""
    result: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """The command succeeds as soon as none of these accelerators is busy; `then` comes first."""

    until: tuple[Accelerator, ...]
    then: Callable[[], None] = lambda: None


Result = Answer | Later
Handler = Callable[[Context, Request], Result]


@dataclass(frozen=True, slots=True)
class Row:
    """One command. `always`: also while the subsystem is disabled. `changes`: what is to be kept
    over a restart of the APU."""

    opcode: int
    handler: Handler
    always: bool = False
    changes: bool = True


def dispatch(context: Context, request: Request) -> tuple[Row, Result]:
    """Carry out a command. Raises NvmeError."""
    table = ADMIN if request.admin else IO
    row = table.get(request.opcode)
    if row is None:
        raise NvmeError(Status.INVALID_OPCODE, detail=f"there is no command {request.opcode:#x}")
    if not row.always and not context.subsystem.enabled:
        detail = "the accelerator subsystem is disabled"
        raise NvmeError(VendorStatus.SUBSYSTEM_DISABLED, detail=detail)
    try:
        return row, row.handler(context, request)
    except OutOfSequence as error:
        raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, detail=str(error)) from None


# Admin commands


def global_control(context: Context, request: Request) -> Result:
    subsystem = context.subsystem
    operation = fields.GlobalControl.decode(request.cdws).operation
    if operation == GlobalOperation.ENABLE:
        subsystem.enabled = True
        return Answer()
    if operation != GlobalOperation.DISABLE:
        raise NvmeError(Status.INVALID_FIELD, detail=f"there is no global operation {operation}")
    subsystem.enabled = False
    accelerators = tuple(subsystem.accelerators.values())
    for accelerator in accelerators:
        context.jobs.stop(accelerator)
    return Later(accelerators)


def identify(context: Context, request: Request) -> Result:
    accelerators = (
        AcceleratorDescriptor(
            item.id,
            (
                Capability(CapabilityId.FIRMWARE),
                Capability(CapabilityId.INPUT_BUFFER, item.input_size),
                Capability(CapabilityId.OUTPUT_BUFFER, item.output_size),
            ),
        )
        for item in context.config.accelerators
    )
    return Answer(IdentifyData(tuple(accelerators)).encode())


def get_status(context: Context, request: Request) -> Result:
    command = fields.GetStatus.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    return Answer(
        accelerator.status_snapshot.read(
            lambda: accelerator.status().encode(), retain=command.retain
        )
    )


def get_log_page(context: Context, request: Request) -> Result:
    command = GetLogPage.decode(request.cdws)
    if command.lid != LOG_PAGE:
        raise NvmeError(Status.INVALID_LOG_PAGE, detail=f"there is no log page {command.lid:#x}")
    accelerator = context.accelerator(command.lsi)
    page = accelerator.log_snapshot.read(
        lambda: accelerator.log.page().encode(), retain=command.rae
    )
    if command.offset > len(page):
        detail = f"the log page has {len(page)} bytes, none at {command.offset}"
        raise NvmeError(Status.INVALID_FIELD, detail=detail)
    return Answer(page[command.offset : command.offset + request.length])


# I/O commands: data


def send_data(context: Context, request: Request) -> Result:
    command = fields.DataTransfer.decode(request.cdws)
    accelerator = _at_rest(context, command.accelerator)
    start, end = _extent(command.offset, request, accelerator.config.input_size)
    arena = context.buffers.arena(command.accelerator)
    at = accelerator.config.plan.input_offset
    arena[at + start : at + end] = context.data(request)
    # The first piece begins an input anew; the ones behind it make it longer.
    length = max(accelerator.buffers.input_length or 0, end) if start else end
    accelerator.buffers = replace(accelerator.buffers, input_length=length, input_ranges=())
    return Answer()


def read_data(context: Context, request: Request) -> Result:
    command = fields.DataTransfer.decode(request.cdws)
    accelerator = _at_rest(context, command.accelerator)
    start, end = _extent(command.offset, request, accelerator.config.output_size)
    at = accelerator.config.plan.output_offset
    return Answer(context.buffers.arena(command.accelerator)[at + start : at + end])


def _at_rest(context: Context, identifier: int) -> Accelerator:
    """An accelerator whose buffers no job has. Raises NvmeError."""
    accelerator = context.accelerator(identifier)
    if accelerator.busy:
        detail = f"a job has the buffers of accelerator {identifier}"
        raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, detail=detail)
    return accelerator


def _extent(offset: int, request: Request, size: int) -> tuple[int, int]:
    """First byte and end of a transfer within a buffer of `size` bytes. Raises NvmeError."""
    start = offset * DWORD_SIZE
    end = start + request.length
    if end > size:
        detail = f"the transfer ends at byte {end} of a buffer of {size}"
        raise NvmeError(Status.INVALID_FIELD, detail=detail)
    return start, end


# I/O commands: firmware


def send_firmware(context: Context, request: Request) -> Result:
    command = fields.FirmwareTransfer.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    firmware.receive(
        context.subsystem,
        accelerator,
        context.config.limits,
        command.firmware,
        command.offset * DWORD_SIZE,
        bytes(context.data(request)),
    )
    return Answer()


def read_firmware(context: Context, request: Request) -> Result:
    command = fields.FirmwareTransfer.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    image = firmware.installed(accelerator, command.firmware)
    start = command.offset * DWORD_SIZE
    return Answer(image[start : start + request.length], len(image))


# I/O commands: local storage


def local_input(context: Context, request: Request) -> Result:
    return _set_input(context, request, append=False)


def append_local_input(context: Context, request: Request) -> Result:
    return _set_input(context, request, append=True)


def local_output(context: Context, request: Request) -> Result:
    return _set_output(context, request, append=False)


def append_local_output(context: Context, request: Request) -> Result:
    return _set_output(context, request, append=True)


def _set_input(context: Context, request: Request, *, append: bool) -> Result:
    accelerator, item = _local_range(context, request)
    if ranges.overhang(item, _namespaces(context)):
        detail = "the range ends past the end of the namespace"
        raise NvmeError(Status.LBA_OUT_OF_RANGE, detail=detail)
    chosen = (*accelerator.buffers.input_ranges, item) if append else (item,)
    _require_room(
        context,
        accelerator,
        chosen,
        accelerator.config.input_size,
        LogEntryType.INVALID_INPUT_BUFFER,
    )
    accelerator.buffers = replace(accelerator.buffers, input_length=None, input_ranges=chosen)
    return Answer()


def _set_output(context: Context, request: Request, *, append: bool) -> Result:
    accelerator, item = _local_range(context, request)
    over = ranges.overhang(item, _namespaces(context))
    item = item._replace(length=item.length - over)
    chosen = (*accelerator.buffers.output_ranges, item) if append else (item,)
    kind = LogEntryType.INVALID_OUTPUT_BUFFER
    _require_room(context, accelerator, chosen, accelerator.config.output_size, kind)
    if over:
        accelerator.log.add(
            kind, f"the output range ends {over} bytes past its namespace and was cut there"
        )
    accelerator.buffers = replace(accelerator.buffers, output_ranges=chosen)
    return Answer()


def _local_range(context: Context, request: Request) -> tuple[Accelerator, ByteRange]:
    command = fields.LocalStorage.decode(request.cdws)
    accelerator = _at_rest(context, command.accelerator)
    item = ranges.resolve(command, request.nsid, _namespaces(context), context.config.range_blocks)
    return accelerator, item


def _namespaces(context: Context) -> ranges.Namespaces:
    return {item.nsid: item for item in context.config.namespaces}


def _require_room(
    context: Context,
    accelerator: Accelerator,
    chosen: tuple[ByteRange, ...],
    size: int,
    kind: LogEntryType,
) -> None:
    """Refuse, and say in the log, ranges that the buffer of `size` bytes cannot hold."""
    total = sum(item.length for item in chosen)
    limit = context.config.limits.ranges
    if total > size:
        detail = f"ranges of {total} bytes do not fit in the buffer of {size}"
    elif len(chosen) > limit:
        detail = f"there can be {limit} ranges, not {len(chosen)}"
    else:
        return
    accelerator.log.add(kind, detail)
    raise NvmeError(VendorStatus.INVALID_BUFFERS, detail=detail)


# I/O commands: control


def control(context: Context, request: Request) -> Result:
    command = fields.Control.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    operation = OPERATIONS.get(command.operation)
    if operation is None:
        detail = f"there is no operation {command.operation}"
        raise NvmeError(Status.INVALID_FIELD, detail=detail)
    return operation(context, request, accelerator, command)


def _reset(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    context.jobs.reset(accelerator)
    return Later((accelerator,), accelerator.blank)


def _start(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    if accelerator.busy:
        detail = f"accelerator {command.accelerator} runs a job already"
        raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, detail=detail)
    chosen = command.firmware
    if chosen == KEEP_ACTIVE_FIRMWARE and accelerator.active is not None:
        chosen = accelerator.active
    image = _selected(accelerator, chosen)
    arguments = bytes(context.data(request))
    try:
        decode_arguments(arguments)
    except DescriptorError as error:
        raise NvmeError(VendorStatus.INVALID_ARGUMENT_LIST, detail=str(error)) from None
    if accelerator.buffers.input_length is None and not accelerator.buffers.input_ranges:
        detail = "no input has been sent, and no local storage chosen as input"
        accelerator.log.add(LogEntryType.INVALID_INPUT_BUFFER, detail)
        raise NvmeError(VendorStatus.INVALID_BUFFERS, detail=detail)
    accelerator.active = chosen
    context.jobs.start(accelerator, image, arguments)
    return Answer()


def _stop(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    context.jobs.stop(accelerator)
    return Later((accelerator,))


def _select_firmware(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    _at_rest(context, command.accelerator)
    _selected(accelerator, command.firmware)
    accelerator.active = command.firmware
    return Answer()


def _selected(accelerator: Accelerator, identifier: int) -> bytes:
    """The image of a firmware that a job is to run; the log says when there is none."""
    try:
        return firmware.installed(accelerator, identifier)
    except NvmeError as error:
        accelerator.log.add(LogEntryType.INVALID_FIRMWARE, error.detail)
        raise


Operate = Callable[[Context, Request, Accelerator, fields.Control], Result]

OPERATIONS: dict[int, Operate] = {
    Operation.RESET: _reset,
    Operation.START: _start,
    Operation.STOP: _stop,
    Operation.SELECT_FIRMWARE: _select_firmware,
}
"""The operations of Basic Accelerator Control."""


def _table(*rows: Row) -> dict[int, Row]:
    return {row.opcode: row for row in rows}


ADMIN = _table(
    Row(nvme.AdminOpcode.GET_LOG_PAGE, get_log_page, always=True, changes=False),
    Row(AdminOpcode.GLOBAL_CONTROL, global_control, always=True),
    Row(AdminOpcode.IDENTIFY, identify, always=True, changes=False),
    Row(AdminOpcode.GET_STATUS, get_status, always=True, changes=False),
)

IO = _table(
    Row(IoOpcode.SEND_DATA, send_data),
    Row(IoOpcode.READ_DATA, read_data, changes=False),
    Row(IoOpcode.SEND_FIRMWARE, send_firmware),
    Row(IoOpcode.READ_FIRMWARE, read_firmware, changes=False),
    Row(IoOpcode.LOCAL_INPUT, local_input),
    Row(IoOpcode.LOCAL_OUTPUT, local_output),
    Row(IoOpcode.APPEND_LOCAL_INPUT, append_local_input),
    Row(IoOpcode.APPEND_LOCAL_OUTPUT, append_local_output),
    Row(IoOpcode.CONTROL, control),
)

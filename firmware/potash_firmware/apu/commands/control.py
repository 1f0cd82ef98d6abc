"""Basic Accelerator Control: one command, and a table of its operations.

Alkali CSD platform documentation, section 4.3.2.
"""

from collections.abc import Callable, Iterable, Iterator

from csd_spec import fields
from csd_spec.descriptors import DescriptorError, LogEntryType, decode_arguments
from csd_spec.opcodes import KEEP_ACTIVE_FIRMWARE, Operation
from csd_spec.status import VendorStatus
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu import firmware, ranges
from potash_firmware.apu.command import Answer, Context, Later, Result
from potash_firmware.apu.model import Accelerator, ByteRange, Grant
from potash_firmware.mailbox.messages import Request


def control(context: Context, request: Request) -> Result:
    command = fields.Control.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    operation = OPERATIONS.get(command.operation)
    if operation is None:
        detail = f"there is no operation {command.operation}"
        raise NvmeError(Status.INVALID_FIELD, detail)
    return operation(context, request, accelerator, command)


def _reset(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    context.jobs.reset(accelerator)

    def blank() -> None:
        accelerator.blank()
        context.buffers.clear_arena(accelerator.config.id)

    return Later((accelerator,), blank)


def _start(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    context.accelerator_at_rest(command.accelerator)
    chosen = command.firmware
    if chosen == KEEP_ACTIVE_FIRMWARE and accelerator.active is not None:
        chosen = accelerator.active
    try:
        image = _selected(accelerator, chosen)
    except NvmeError:
        if context.config.platform_status:
            context.jobs.not_loaded(accelerator)
        raise
    arguments = bytes(context.data(request))
    try:
        decode_arguments(arguments)
    except DescriptorError as error:
        accelerator.log.add(LogEntryType.ACCELERATOR_ERROR, str(error))
        raise NvmeError(VendorStatus.INVALID_ARGUMENT_LIST, str(error)) from None
    _require_buffers(context, accelerator)
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
    context.accelerator_at_rest(command.accelerator)
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


def _require_buffers(context: Context, accelerator: Accelerator) -> None:
    """Refuse, and say in the log, buffers that a job cannot have."""
    for kind, reason in _problems(context, accelerator):
        accelerator.log.add(kind, reason)
        raise NvmeError(VendorStatus.INVALID_BUFFERS, reason)


def _problems(context: Context, accelerator: Accelerator) -> Iterator[tuple[LogEntryType, str]]:
    """What is wrong with the buffers' configuration, as the log is to call it."""
    buffers = accelerator.buffers
    if buffers.input_length is None and not buffers.input_ranges:
        reason = "no input has been sent, and no local storage chosen as input"
        yield LogEntryType.INVALID_INPUT_BUFFER, reason
    namespaces = {item.nsid: item for item in context.config.namespaces}
    chosen: dict[LogEntryType, Iterable[ByteRange | Grant]] = {
        LogEntryType.INVALID_INPUT_BUFFER: buffers.input_ranges,
        LogEntryType.INVALID_OUTPUT_BUFFER: buffers.output_ranges,
        LogEntryType.ACCELERATOR_ERROR: buffers.granted,
    }
    for kind, items in chosen.items():
        for item in items:
            if missing := ranges.missing(item, namespaces):
                yield kind, missing


Operate = Callable[[Context, Request, Accelerator, fields.Control], Result]

OPERATIONS: dict[int, Operate] = {
    Operation.RESET: _reset,
    Operation.START: _start,
    Operation.STOP: _stop,
    Operation.SELECT_FIRMWARE: _select_firmware,
}
"""The operations of Basic Accelerator Control."""

"""I/O commands that move data: the buffers and the firmware.

Alkali CSD platform documentation, section 4.3.2.
"""

from dataclasses import replace

from csd_spec import fields
from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu import firmware
from potash_firmware.apu.command import Answer, Context, Result
from potash_firmware.mailbox.messages import Request


def send_data(context: Context, request: Request) -> Result:
    command = fields.DataTransfer.decode(request.cdws)
    accelerator = context.accelerator_at_rest(command.accelerator)
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
    accelerator = context.accelerator_at_rest(command.accelerator)
    start, end = _extent(command.offset, request, accelerator.config.output_size)
    at = accelerator.config.plan.output_offset
    return Answer(context.buffers.arena(command.accelerator)[at + start : at + end])


def send_firmware(context: Context, request: Request) -> Result:
    command = fields.FirmwareTransfer.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    return firmware.receive(
        context.subsystem,
        accelerator,
        context.config.limits,
        command.firmware,
        command.offset * DWORD_SIZE,
        bytes(context.data(request)),
    )


def read_firmware(context: Context, request: Request) -> Result:
    command = fields.FirmwareTransfer.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    image = firmware.installed(accelerator, command.firmware)
    start = command.offset * DWORD_SIZE
    return Answer(image[start : start + request.length], len(image))


def _extent(offset: int, request: Request, size: int) -> tuple[int, int]:
    """First byte and end of a transfer within a buffer of `size` bytes. Raises NvmeError."""
    start = offset * DWORD_SIZE
    end = start + request.length
    if end > size:
        detail = f"the transfer ends at byte {end} of a buffer of {size}"
        raise NvmeError(Status.INVALID_FIELD, detail)
    return start, end

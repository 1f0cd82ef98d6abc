"""I/O commands that let a job use local storage: as input, as output, or as its program likes.

Alkali CSD platform documentation, section 4.3.2.
"""

from dataclasses import replace

from csd_spec import fields
from csd_spec.descriptors import LogEntryType
from csd_spec.status import VendorStatus
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu import ranges
from potash_firmware.apu.command import Answer, Context, Result
from potash_firmware.apu.model import Accelerator, ByteRange, Grant
from potash_firmware.mailbox.messages import Request


def local_input(context: Context, request: Request) -> Result:
    return _set_input(context, request, append=False)


def append_local_input(context: Context, request: Request) -> Result:
    return _set_input(context, request, append=True)


def local_output(context: Context, request: Request) -> Result:
    return _set_output(context, request, append=False)


def append_local_output(context: Context, request: Request) -> Result:
    return _set_output(context, request, append=True)


def grant_local_storage(context: Context, request: Request) -> Result:
    """Let programs reach a range by themselves, until the accelerator is reset."""
    command = fields.LocalStorage.decode(request.cdws)
    accelerator, item = _local_range(context, request)
    _require_end(item, _namespaces(context))
    block = _namespaces(context)[item.nsid].block_size
    grant = Grant(item.nsid, item.first // block, item.length // block, command.writable)
    granted = (grant,) if command.replace else (*accelerator.buffers.granted, grant)
    limit = context.config.limits.ranges
    if len(granted) > limit:
        detail = f"there can be {limit} grants, not {len(granted)}"
        accelerator.log.add(LogEntryType.ACCELERATOR_ERROR, detail)
        raise NvmeError(VendorStatus.INVALID_BUFFERS, detail)
    accelerator.buffers = replace(accelerator.buffers, granted=granted)
    return Answer()


def _set_input(context: Context, request: Request, *, append: bool) -> Result:
    accelerator, item = _local_range(context, request)
    _require_end(item, _namespaces(context))
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
    accelerator = context.accelerator_at_rest(command.accelerator)
    item = ranges.resolve(command, request.nsid, _namespaces(context), context.config.range_blocks)
    return accelerator, item


def _require_end(item: ByteRange, namespaces: ranges.Namespaces) -> None:
    """Raise NvmeError for a range that its namespace ends before."""
    if ranges.overhang(item, namespaces):
        detail = "the range ends past the end of the namespace"
        raise NvmeError(Status.LBA_OUT_OF_RANGE, detail)


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
    raise NvmeError(VendorStatus.INVALID_BUFFERS, detail)

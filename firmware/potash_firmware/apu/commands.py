"""The accelerator command set: the handlers, and a table of them for each of the two sets.

A handler returns an `Answer`, `Later` or `IfSound`, or raises NvmeError; it never replies itself,
so that no command stays unanswered. It checks everything before it changes anything.

Alkali CSD platform documentation, sections 4.2.1 (Get Log Page), 4.3.1 (Admin commands) and 4.3.2
(I/O commands).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from csd_spec import descriptors, fields, opcodes
from csd_spec.chains import ChainError, JobStep, decode_jobs
from csd_spec.descriptors import DescriptorError, LogEntryType, decode_arguments
from csd_spec.status import VendorStatus
from nvme_spec import opcodes as nvme
from nvme_spec.commands import GetLogPage
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu import blocks, queries
from potash_firmware.apu.config import Config
from potash_firmware.apu.job import Step
from potash_firmware.apu.jobs import JobRunner, Jobs
from potash_firmware.apu.lifecycle import PLATFORM_STATUS, STATUS
from potash_firmware.apu.model import Accelerator, ByteRange, Grant, Log, Snapshot, Subsystem
from potash_firmware.bpf.object_file import stated_size
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import Request
from potash_firmware.mailbox.shared import SharedBuffers

LogOf = tuple[Log, Snapshot]


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments of all handlers."""

    config: Config
    subsystem: Subsystem
    jobs: Jobs
    buffers: SharedBuffers
    engine_log: Callable[[int], LogOf | None] = lambda nsid: None
    """The log of a compute namespace's programs; None if there is no such namespace."""

    @property
    def namespaces(self) -> blocks.Namespaces:
        return {item.nsid: item for item in self.config.namespaces}

    def accelerator(self, identifier: int) -> Accelerator:
        """Raises NvmeError if there is none."""
        try:
            return self.subsystem.accelerators[identifier]
        except KeyError:
            detail = f"there is no accelerator {identifier}"
            raise NvmeError(VendorStatus.INVALID_ACCELERATOR, detail) from None

    def idle_accelerator(self, identifier: int) -> Accelerator:
        """The accelerator, whose buffers no job uses. Raises NvmeError."""
        accelerator = self.accelerator(identifier)
        if accelerator.busy:
            detail = f"accelerator {identifier} runs a job"
            raise NvmeError(Status.COMMAND_SEQUENCE_ERROR, detail, dnr=False)
        return accelerator

    def runner(self, accelerator: Accelerator) -> JobRunner:
        return self.jobs.runners[accelerator.config.id]

    def data(self, request: Request) -> memoryview:
        """The data that the host has sent with a command."""
        if not request.length:
            return memoryview(b"")
        return self.buffers.slot(request.slot)[: request.length]


@dataclass(frozen=True, slots=True)
class Answer:
    """The command succeeds: `data` for a host that reads, `result` for completion dword 0."""

    data: bytes | memoryview | None = None
    result: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """The command succeeds when these accelerators are idle; `then` is called first."""

    until: tuple[JobRunner, ...]
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class IfSound:
    """The command succeeds if `image` is a program that can run: `decided` is called with None
    then, else with the reason, and raises NvmeError for the answer."""

    image: bytes
    decided: Callable[[str | None], None]


Result = Answer | Later | IfSound
Handler = Callable[[Context, Request], Result]


def global_control(context: Context, request: Request) -> Result:
    subsystem = context.subsystem
    operation = fields.GlobalControl.decode(request.cdws).operation
    if operation == opcodes.GlobalOperation.ENABLE:
        subsystem.enabled = True
        return Answer()
    if operation != opcodes.GlobalOperation.DISABLE:
        raise NvmeError(Status.INVALID_FIELD, f"there is no global operation {operation}")
    subsystem.enabled = False
    runners = tuple(context.jobs.runners[key] for key in subsystem.accelerators)
    for runner in runners:
        runner.stop()
    return Later(runners)


def identify(context: Context, request: Request) -> Result:
    accelerators = (
        descriptors.Accelerator(
            item.id,
            (
                descriptors.Capability(descriptors.CapabilityId.FIRMWARE),
                descriptors.Capability(descriptors.CapabilityId.INPUT_BUFFER, item.input_size),
                descriptors.Capability(descriptors.CapabilityId.OUTPUT_BUFFER, item.output_size),
            ),
        )
        for item in (each.config for each in context.subsystem.accelerators.values())
    )
    return Answer(descriptors.IdentifyData(tuple(accelerators)).encode())


def get_status(context: Context, request: Request) -> Result:
    command = fields.GetStatus.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    meanings = PLATFORM_STATUS if context.config.platform_status else STATUS
    return Answer(
        accelerator.status_snapshot.read(
            lambda: accelerator.status(meanings).encode(), retain=command.retain
        )
    )


def get_log_page(context: Context, request: Request) -> Result:
    command = GetLogPage.decode(request.cdws)
    if command.lid != opcodes.LOG_PAGE:
        raise NvmeError(Status.INVALID_LOG_PAGE, f"there is no log page {command.lid:#x}")
    engine = context.engine_log(request.nsid)
    if engine is None:
        accelerator = context.accelerator(command.lsi)
        engine = accelerator.log, accelerator.log_snapshot
    log, snapshot = engine
    page = snapshot.read(lambda: log.page().encode(), retain=command.rae)
    if command.offset > len(page):
        detail = f"the log page has {len(page)} bytes, none at {command.offset}"
        raise NvmeError(Status.INVALID_FIELD, detail)
    return Answer(page[command.offset : command.offset + request.length])


PIECE_MINIMUM = 64 * 1024
"""A shorter piece that leaves the firmware incomplete is a broken file, not a part of one: every
host moves at least this much with one command."""


def find_firmware(accelerator: Accelerator, identifier: int) -> bytes:
    """The image of a firmware. Raises NvmeError if there is none."""
    try:
        return accelerator.firmware[identifier]
    except KeyError:
        is_active = identifier == opcodes.KEEP_ACTIVE_FIRMWARE
        which = "active firmware" if is_active else f"firmware {identifier}"
        detail = f"accelerator {accelerator.config.id} has no {which}"
        raise NvmeError(VendorStatus.INVALID_FIRMWARE, detail) from None


def send_firmware(context: Context, request: Request) -> Result:
    """Receive a piece of firmware; install the firmware when it is complete and sound. Raises
    NvmeError, having kept what was installed."""
    command = fields.FirmwareTransfer.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    limits, identifier = context.config.limits, command.firmware
    offset, piece = command.offset * opcodes.DWORD_SIZE, bytes(context.data(request))
    if identifier >= limits.firmware_slots:
        detail = f"firmware IDs are 0 to {limits.firmware_slots - 1}, not {identifier}"
        raise NvmeError(VendorStatus.INVALID_FIRMWARE, detail)
    before = accelerator.staged.get(identifier, b"") if offset else b""
    if offset != len(before):
        detail = f"the piece begins at byte {offset}, but {len(before)} bytes have come"
        raise NvmeError(Status.INVALID_FIELD, detail)
    image = bytes(before) + piece
    accelerator.staged.pop(identifier, None)
    _require_room(context, accelerator, identifier, len(image))
    if len(piece) >= PIECE_MINIMUM and len(image) < stated_size(image) <= limits.firmware_size:
        accelerator.staged[identifier] = bytearray(image)
        return Answer()

    def decided(reason: str | None) -> None:
        if reason is not None:
            refused = f"firmware {identifier} was refused: {reason}"
            _refuse(accelerator, VendorStatus.FIRMWARE_REFUSED, refused)
        # Others may have been installed meanwhile.
        _require_room(context, accelerator, identifier, len(image))
        accelerator.firmware[identifier] = image

    return IfSound(image, decided)


def _require_room(context: Context, accelerator: Accelerator, identifier: int, size: int) -> None:
    limits = context.config.limits
    if size > limits.firmware_size:
        refused = f"the firmware has more than {limits.firmware_size} bytes"
        _refuse(accelerator, VendorStatus.FIRMWARE_REFUSED, refused)
    others = sum(
        len(image)
        for item in context.subsystem.accelerators.values()
        for key, image in item.firmware.items()
        if (item, key) != (accelerator, identifier)
    )
    if others + size > limits.firmware_total:
        refused = f"all firmware together has {limits.firmware_total} bytes at most"
        _refuse(accelerator, VendorStatus.FIRMWARE_REFUSED, refused)


def _refuse(
    accelerator: Accelerator,
    status: VendorStatus,
    reason: str,
    kind: LogEntryType = LogEntryType.ACCELERATOR_ERROR,
) -> NoReturn:
    """Refuse a command, with an entry in the accelerator's log. Raises NvmeError."""
    accelerator.log.add(kind, reason)
    raise NvmeError(status, reason)


def send_data(context: Context, request: Request) -> Result:
    command = fields.DataTransfer.decode(request.cdws)
    accelerator = context.idle_accelerator(command.accelerator)
    start, end = _extent(command.offset, request, accelerator.config.input_size)
    arena = context.buffers.arena(command.accelerator)
    at = accelerator.config.plan.input_offset
    arena[at + start : at + end] = context.data(request)
    # The first piece begins a new input, which later pieces extend.
    length = max(accelerator.buffers.input_length or 0, end) if start else end
    accelerator.buffers = replace(accelerator.buffers, input_length=length, input_ranges=())
    return Answer()


def read_data(context: Context, request: Request) -> Result:
    command = fields.DataTransfer.decode(request.cdws)
    accelerator = context.idle_accelerator(command.accelerator)
    start, end = _extent(command.offset, request, accelerator.config.output_size)
    at = accelerator.config.plan.output_offset
    return Answer(context.buffers.arena(command.accelerator)[at + start : at + end])


def read_firmware(context: Context, request: Request) -> Result:
    command = fields.FirmwareTransfer.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    image = find_firmware(accelerator, command.firmware)
    start = command.offset * opcodes.DWORD_SIZE
    return Answer(image[start : start + request.length], len(image))


def _extent(offset: int, request: Request, size: int) -> tuple[int, int]:
    """First byte and end of a transfer within a buffer of `size` bytes. Raises NvmeError."""
    start = offset * opcodes.DWORD_SIZE
    end = start + request.length
    if end > size:
        detail = f"the transfer ends at byte {end} of a buffer of {size}"
        raise NvmeError(Status.INVALID_FIELD, detail)
    return start, end


def control(context: Context, request: Request) -> Result:
    command = fields.Control.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    operation = OPERATIONS.get(command.operation)
    if operation is None:
        raise NvmeError(Status.INVALID_FIELD, f"there is no operation {command.operation}")
    return operation(context, request, accelerator, command)


def _reset(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    runner = context.runner(accelerator)
    runner.reset()

    def blank() -> None:
        accelerator.blank()
        context.buffers.clear_arena(accelerator.config.id)

    return Later((runner,), blank)


def _start(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    """Start a job, or a chain, of which each step is checked before."""
    context.idle_accelerator(command.accelerator)
    data = bytes(context.data(request))
    steps = [JobStep(command.firmware, data)]
    if command.operation == opcodes.Operation.START_CHAIN:
        try:
            steps = decode_jobs(data)
        except ChainError as error:
            raise NvmeError(Status.INVALID_FIELD, str(error)) from None
    checked = [_checked(context, accelerator, step) for step in steps]
    is_query = isinstance(checked[0].program, DeviceProgram)
    _require_buffers(context, accelerator, is_query=is_query)
    context.runner(accelerator).start(*checked)
    return Answer()


def _checked(context: Context, accelerator: Accelerator, step: JobStep) -> Step:
    """A step with its program. Raises NvmeError, with an entry in the accelerator's log."""
    chosen = step.firmware
    if chosen == opcodes.KEEP_ACTIVE_FIRMWARE and accelerator.active is not None:
        chosen = accelerator.active
    try:
        program = _find_selected(accelerator, chosen)
    except NvmeError:
        if context.config.platform_status:
            context.runner(accelerator).not_loaded()
        raise
    try:
        decode_arguments(step.arguments)
    except DescriptorError as error:
        _refuse(accelerator, VendorStatus.INVALID_ARGUMENT_LIST, str(error))
    return Step(chosen, program, step.arguments)


def _stop(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    runner = context.runner(accelerator)
    runner.stop()
    return Later((runner,))


def _select_firmware(
    context: Context, request: Request, accelerator: Accelerator, command: fields.Control
) -> Result:
    context.idle_accelerator(command.accelerator)
    _find_selected(accelerator, command.firmware)
    accelerator.active = command.firmware
    return Answer()


def _find_selected(accelerator: Accelerator, identifier: int) -> bytes | DeviceProgram:
    """The program that a job is to run; if there is none, the log gets an entry."""
    if identifier == opcodes.QUERY_FIRMWARE:
        if reason := queries.refusal():
            none = LogEntryType.INVALID_FIRMWARE
            _refuse(accelerator, VendorStatus.INVALID_FIRMWARE, reason, none)
        return DeviceProgram.QUERY
    try:
        return find_firmware(accelerator, identifier)
    except NvmeError as error:
        accelerator.log.add(LogEntryType.INVALID_FIRMWARE, error.detail)
        raise


def _require_buffers(context: Context, accelerator: Accelerator, *, is_query: bool) -> None:
    """Refuse buffers that a job cannot have. A query needs no input if blocks are granted."""
    buffers = accelerator.buffers
    needs_input = not (is_query and buffers.granted)
    if needs_input and buffers.input_length is None and not buffers.input_ranges:
        reason = "no input has been sent, and no local storage chosen as input"
        kind = LogEntryType.INVALID_INPUT_BUFFER
        _refuse(accelerator, VendorStatus.INVALID_BUFFERS, reason, kind)
    chosen: dict[LogEntryType, Iterable[ByteRange | Grant]] = {
        LogEntryType.INVALID_INPUT_BUFFER: buffers.input_ranges,
        LogEntryType.INVALID_OUTPUT_BUFFER: buffers.output_ranges,
        LogEntryType.ACCELERATOR_ERROR: buffers.granted,
    }
    for kind, items in chosen.items():
        for item in items:
            if missing := blocks.missing(item, context.namespaces):
                _refuse(accelerator, VendorStatus.INVALID_BUFFERS, missing, kind)


Operate = Callable[[Context, Request, Accelerator, fields.Control], Result]

OPERATIONS: dict[int, Operate] = {
    opcodes.Operation.RESET: _reset,
    opcodes.Operation.START: _start,
    opcodes.Operation.STOP: _stop,
    opcodes.Operation.SELECT_FIRMWARE: _select_firmware,
    opcodes.Operation.START_CHAIN: _start,
}
"""The operations of Basic Accelerator Control."""


def grant_local_storage(context: Context, request: Request) -> Result:
    """Let programs access a range themselves, until the accelerator is reset."""
    command = fields.LocalStorage.decode(request.cdws)
    accelerator, item = _local_range(context, request)
    block = context.namespaces[item.nsid].block_size
    grant = Grant(item.nsid, item.first // block, item.length // block, command.writable)
    granted = (grant,) if command.replace else (*accelerator.buffers.granted, grant)
    limit = context.config.limits.grants
    if len(granted) > limit:
        reason = f"there can be {limit} grants, not {len(granted)}"
        _refuse(accelerator, VendorStatus.INVALID_BUFFERS, reason)
    accelerator.buffers = replace(accelerator.buffers, granted=granted)
    return Answer()


def _set_input(context: Context, request: Request, *, append: bool) -> Result:
    accelerator, item = _local_range(context, request)
    chosen = (*accelerator.buffers.input_ranges, item) if append else (item,)
    kind = LogEntryType.INVALID_INPUT_BUFFER
    _require_fit(context, accelerator, chosen, accelerator.config.input_size, kind)
    accelerator.buffers = replace(accelerator.buffers, input_length=None, input_ranges=chosen)
    return Answer()


def _set_output(context: Context, request: Request, *, append: bool) -> Result:
    accelerator, item = _local_range(context, request, whole=False)
    over = blocks.overhang(item, context.namespaces)
    item = item._replace(length=item.length - over)
    chosen = (*accelerator.buffers.output_ranges, item) if append else (item,)
    kind = LogEntryType.INVALID_OUTPUT_BUFFER
    _require_fit(context, accelerator, chosen, accelerator.config.output_size, kind)
    if over:
        accelerator.log.add(
            kind, f"the output range ends {over} bytes past its namespace and was cut there"
        )
    accelerator.buffers = replace(accelerator.buffers, output_ranges=chosen)
    return Answer()


def _local_range(
    context: Context, request: Request, *, whole: bool = True
) -> tuple[Accelerator, ByteRange]:
    """The accelerator and the range that a command names. Raises NvmeError, also for a range that
    ends past the end of its namespace if it has to be `whole`."""
    command, namespaces = fields.LocalStorage.decode(request.cdws), context.namespaces
    accelerator = context.idle_accelerator(command.accelerator)
    item = blocks.resolve(command, request.nsid, namespaces, context.config.range_blocks)
    if whole and blocks.overhang(item, namespaces):
        raise NvmeError(Status.LBA_OUT_OF_RANGE, "the range ends past the end of the namespace")
    return accelerator, item


def _require_fit(
    context: Context,
    accelerator: Accelerator,
    chosen: tuple[ByteRange, ...],
    size: int,
    kind: LogEntryType,
) -> None:
    """Refuse ranges that exceed the buffer of `size` bytes."""
    total = sum(item.length for item in chosen)
    limit = context.config.limits.ranges
    if total > size:
        reason = f"ranges of {total} bytes do not fit in the buffer of {size}"
    elif len(chosen) > limit:
        reason = f"there can be {limit} ranges, not {len(chosen)}"
    else:
        return
    _refuse(accelerator, VendorStatus.INVALID_BUFFERS, reason, kind)


ADMIN: dict[int, Handler] = {
    nvme.AdminOpcode.GET_LOG_PAGE: get_log_page,
    opcodes.AdminOpcode.GLOBAL_CONTROL: global_control,
    opcodes.AdminOpcode.IDENTIFY: identify,
    opcodes.AdminOpcode.GET_STATUS: get_status,
}

IO: dict[int, Handler] = {
    opcodes.IoOpcode.SEND_DATA: send_data,
    opcodes.IoOpcode.READ_DATA: read_data,
    opcodes.IoOpcode.SEND_FIRMWARE: send_firmware,
    opcodes.IoOpcode.READ_FIRMWARE: read_firmware,
    opcodes.IoOpcode.LOCAL_INPUT: partial(_set_input, append=False),
    opcodes.IoOpcode.LOCAL_OUTPUT: partial(_set_output, append=False),
    opcodes.IoOpcode.APPEND_LOCAL_INPUT: partial(_set_input, append=True),
    opcodes.IoOpcode.APPEND_LOCAL_OUTPUT: partial(_set_output, append=True),
    opcodes.IoOpcode.GRANT_LOCAL_STORAGE: grant_local_storage,
    opcodes.IoOpcode.CONTROL: control,
}
"""I/O commands, for which the subsystem must be enabled."""


def dispatch(context: Context, request: Request) -> Result:
    """Carry out a command. Raises NvmeError."""
    handler = (ADMIN if request.admin else IO).get(request.opcode)
    if handler is None:
        raise NvmeError(Status.INVALID_OPCODE, f"there is no command {request.opcode:#x}")
    if not request.admin and not context.subsystem.enabled:
        raise NvmeError(VendorStatus.SUBSYSTEM_DISABLED, "the accelerator subsystem is disabled")
    return handler(context, request)

"""The platform's sequence, from a program and its input to the output, as one call.

Alkali CSD platform documentation, section 4.4 (the order of a host application's commands).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from csd_spec.descriptors import AcceleratorStatus, LogEntry
from csd_spec.status import StatusId
from potash.sdk.errors import (
    CommandFailed,
    DeviceGone,
    DeviceNotFound,
    InvalidRequest,
    JobFailed,
    JobTimeout,
    PotashError,
)
from potash.sdk.log import is_fault, of_last_job, printed
from potash.sdk.places import (
    BlockSink,
    BlockSource,
    BufferSink,
    BufferSource,
    Content,
    LocalStorage,
    Sink,
    Source,
    Told,
    content_of,
)
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import Buffer

if TYPE_CHECKING:
    from potash.sdk.accelerator import Accelerator
    from potash.sdk.device import Device

__all__ = [
    "INPUT_LENGTH",
    "Argument",
    "JobResult",
    "LocalStorage",
    "choose",
    "run",
    "run_job",
]

NUMBER_SIZE = 4
"""Bytes of a number among a program's arguments."""


class _Stands(Enum):
    """What stands for a value that is known only when the job starts."""

    INPUT_LENGTH = "length"


INPUT_LENGTH: Final = _Stands.INPUT_LENGTH
"""An argument that tells the program the input's own length in bytes, without any padding."""

Argument = Buffer | int | _Stands
"""One argument: its bytes, a number of 32 bits, or INPUT_LENGTH (such a number, too)."""


class JobResult(NamedTuple):
    """What a job made, its status, and what the accelerator's log says of it.

    `output` is empty where the output stays in its place, as it does in a file on the drive.
    """

    output: bytes
    status: AcceleratorStatus
    log: tuple[LogEntry, ...]

    @property
    def printed(self) -> list[str]:
        """What the program has printed."""
        return printed(self.log)


def _unheard(step: str) -> None:
    pass


def run_job(
    device: Device,
    program: Content,
    data: Content,
    *,
    arguments: Iterable[Argument] = (),
    local: LocalStorage | None = None,
    accelerator_id: int | None = None,
    firmware_id: int = 0,
    timeout: float | None = None,
    report: Callable[[str], None] = _unheard,
    progress: Progress = silent,
) -> JobResult:
    """Run `program` (an ELF file) on `data`, through the accelerator's buffers or local storage.

    The accelerator is the device's first, unless another one is named. The rest is as in `run`.
    """
    accelerator = choose(device, accelerator_id)
    source: Source = BufferSource(data)
    sink: Sink = BufferSink()
    if local is not None:
        source = blocks = BlockSource(device, data, local)
        sink = BlockSink(device, blocks, local)
    return run(
        accelerator,
        program,
        source,
        sink,
        arguments=arguments,
        firmware_id=firmware_id,
        timeout=timeout,
        told=Told(report, progress),
    )


def run(
    accelerator: Accelerator,
    program: Content,
    source: Source,
    sink: Sink,
    *,
    arguments: Iterable[Argument] = (),
    firmware_id: int = 0,
    timeout: float | None = None,
    told: Told | None = None,
) -> JobResult:
    """Run `program` on `source`, with `sink` for its output.

    The program sees the input padded with zeroes to a dword, on local storage to a page. Raises
    PotashError, before anything is written to the drive where it can be known by then:
    CommandFailed, JobFailed, and JobTimeout after `timeout` seconds, when the job has been stopped.
    An interrupt stops the job as well.
    """
    told = told or Told(_unheard, silent)
    started = still_written = False
    try:
        image = content_of(program)
        _describe(accelerator, told)
        source.prepare(accelerator)
        sink.prepare(accelerator, source.size)
        values = [_encoded(one, source.size) for one in arguments]
        accelerator.enable()
        told.report("enable the accelerator subsystem")
        if accelerator.status().status == StatusId.RUNNING:
            raise PotashError(
                f"accelerator {accelerator.id} is busy with another job; wait or stop it"
            )
        accelerator.reset()
        if not image:
            raise InvalidRequest("the program is an empty file; build it first")
        accelerator.send_firmware(image, firmware_id, progress=told.progress)
        told.report(f"send {len(image)} bytes of firmware as {firmware_id}")
        source.give(accelerator, told)
        sink.offer(accelerator, told)
        accelerator.select(firmware_id)
        told.report(f"select firmware {firmware_id}")
        try:
            accelerator.start(arguments=values)
            started = True
            told.report("start")
            status = accelerator.wait(timeout, progress=told.progress)
        except BaseException as error:
            if not started and isinstance(error, CommandFailed):
                raise  # there is no job, or it is another host's
            still_written = True  # until the opposite is known, whatever comes between
            still_written = not _ended(accelerator, error)
            if isinstance(error, JobTimeout):
                raise JobTimeout(f"the job was stopped after {timeout:g} s") from error
            raise
        log = accelerator.log()
        entries = of_last_job(log.entries)
        if is_fault(entries):
            raise accelerator.failure(status, log)
        told.report(f"done: {status.produced} bytes of output, return value {status.return_value}")
        source.confirm()
        output = sink.collect(accelerator, status.produced, told)
        return JobResult(output, status, entries)
    finally:
        source.close()
        sink.close(still_written=still_written)


def choose(device: Device, accelerator_id: int | None = None) -> Accelerator:
    """The accelerator with an ID, or a device's first. Raises DeviceNotFound."""
    for accelerator in device.accelerators():
        if accelerator_id in (None, accelerator.id):
            return accelerator
    which = "no accelerator" if accelerator_id is None else f"no accelerator {accelerator_id}"
    raise DeviceNotFound(f"the device has {which}")


def _describe(accelerator: Accelerator, told: Told) -> None:
    told.report(
        f"identify: accelerator {accelerator.id} with {accelerator.input_size} bytes of input"
        f" and {accelerator.output_size} of output"
    )


def _encoded(argument: Argument, input_size: int) -> Buffer:
    """An argument's bytes. Raises InvalidRequest for a number that has more than 32 bits."""
    if isinstance(argument, _Stands):
        argument = input_size
    if not isinstance(argument, int):
        return argument
    try:
        return argument.to_bytes(NUMBER_SIZE, "little", signed=argument < 0)
    except OverflowError:
        raise InvalidRequest(f"the argument {argument} has more than 32 bits") from None


def _ended(accelerator: Accelerator, error: BaseException) -> bool:
    """End a job whose caller waits no more; whether it is certain to have ended."""
    if isinstance(error, (JobFailed, DeviceGone)):
        return True
    try:
        accelerator.stop()
    except DeviceGone:
        return True
    except PotashError:
        return False
    return True

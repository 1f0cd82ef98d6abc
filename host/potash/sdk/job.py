"""The platform's sequence, from a program and its input to the output, as one call.

Alkali CSD platform documentation, section 4.4 (the order of a host application's commands).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from csd_spec.descriptors import AcceleratorStatus, LogEntry
from csd_spec.opcodes import PAGE_SIZE
from csd_spec.status import StatusId, VendorStatus
from potash.sdk.accelerator import Accelerator
from potash.sdk.device import Device
from potash.sdk.errors import (
    CommandFailed,
    DeviceNotFound,
    InvalidRequest,
    JobTimeout,
    PotashError,
)
from potash.sdk.log import of_last_job, printed
from potash.sdk.transport import Buffer


class LocalStorage(NamedTuple):
    """Where on the drive a job finds its input and leaves its output, in blocks of the drive.

    Without `output_lba` the output follows the input. `output_size` is the room for the output in
    bytes: a program that does not set its output's length writes all of it. Without one it is as
    large as the input.
    """

    input_lba: int
    output_lba: int | None = None
    output_size: int | None = None


class JobResult(NamedTuple):
    """What a job made, its status, and what the accelerator's log says of it."""

    output: bytes
    status: AcceleratorStatus
    log: tuple[LogEntry, ...]

    @property
    def printed(self) -> list[str]:
        """What the program has printed."""
        return printed(self.log)


def _silent(step: str) -> None:
    pass


def run_job(
    device: Device,
    program: Buffer,
    data: Buffer,
    *,
    arguments: Iterable[Buffer] = (),
    local: LocalStorage | None = None,
    accelerator_id: int | None = None,
    firmware_id: int = 0,
    timeout: float | None = None,
    report: Callable[[str], None] = _silent,
) -> JobResult:
    """Run `program` (an ELF file) on `data`, through the accelerator's buffers or local storage.

    The program sees the input padded with zeroes to a dword, on local storage to a page. `report`
    is given one line for each step. Raises PotashError, before anything is written to the drive
    where it can be known by then: CommandFailed, JobFailed, and JobTimeout after `timeout` seconds,
    when the job has been stopped.
    """
    accelerator = _choose(device, accelerator_id)
    report(
        f"identify: accelerator {accelerator.id} with {accelerator.input_size} bytes of input"
        f" and {accelerator.output_size} of output"
    )
    _require_fit(accelerator, data)
    pages = _Pages.plan(device, accelerator, data, local) if local is not None else None
    accelerator.enable()
    report("enable the accelerator subsystem")
    if accelerator.status().status == StatusId.RUNNING:
        raise PotashError(f"accelerator {accelerator.id} is busy with another job; wait or stop it")
    accelerator.reset()
    _send_firmware(accelerator, program, firmware_id)
    report(f"send {len(program)} bytes of firmware as {firmware_id}")
    if pages is None:
        accelerator.write_input(data)
        report(f"send {len(data)} bytes of input")
    else:
        pages.store_input(device, data)
        report(f"write {len(data)} bytes of input to block {pages.input_lba}")
        accelerator.use_local_input(pages.input_page, pages.input_pages, device.nsid)
        report(f"local storage as input: {pages.input_pages} pages from {pages.input_page}")
        accelerator.use_local_output(pages.output_page, pages.output_pages, device.nsid)
        report(f"local storage as output: {pages.output_pages} pages from {pages.output_page}")
    accelerator.select(firmware_id)
    report(f"select firmware {firmware_id}")
    accelerator.start(arguments=arguments)
    report("start")
    status = _wait(accelerator, timeout)
    report(f"done: {status.produced} bytes of output, return value {status.return_value}")
    if pages is None:
        output = accelerator.read_output(status.produced)
    else:
        output = pages.load_output(device, status.produced)
    report(f"read {len(output)} bytes of output")
    return JobResult(output, status, of_last_job(accelerator.log().entries))


def _require_fit(accelerator: Accelerator, data: Buffer) -> None:
    if not data:
        raise InvalidRequest("the input is empty; a job needs at least one byte")
    if len(data) > accelerator.input_size:
        raise InvalidRequest(
            f"the input has {len(data)} bytes, but the accelerator takes {accelerator.input_size}"
        )


def _send_firmware(accelerator: Accelerator, program: Buffer, firmware_id: int) -> None:
    """Send the program; where it is refused, say what the accelerator's log says."""
    if not program:
        raise InvalidRequest("the program is an empty file; build it first")
    try:
        accelerator.send_firmware(program, firmware_id)
    except CommandFailed as error:
        entries = accelerator.log().entries
        if error.status != VendorStatus.FIRMWARE_REFUSED or not entries:
            raise
        raise PotashError(entries[-1].text) from error


def _wait(accelerator: Accelerator, timeout: float | None) -> AcceleratorStatus:
    """Wait for the job; one that takes longer than it may is stopped."""
    try:
        return accelerator.wait(timeout)
    except JobTimeout as error:
        accelerator.stop()
        raise JobTimeout(f"the job was stopped after {timeout:g} s") from error


class _Pages(NamedTuple):
    """A job's ranges of local storage in pages."""

    input_lba: int
    input_page: int
    input_pages: int
    output_page: int
    output_pages: int

    @classmethod
    def plan(
        cls, device: Device, accelerator: Accelerator, data: Buffer, local: LocalStorage
    ) -> _Pages:
        """Raises InvalidRequest for blocks that are not where pages are, or not on the drive."""
        start = _page_of(device, local.input_lba)
        count = _pages(len(data))
        output = start + count
        if local.output_lba is not None:
            output = _page_of(device, local.output_lba)
        size = len(data) if local.output_size is None else local.output_size
        room = min(_pages(size), accelerator.output_size // PAGE_SIZE)
        if max(start + count, output + room) * PAGE_SIZE > device.capacity:
            raise InvalidRequest(
                f"input and output do not fit on the drive of"
                f" {device.capacity // device.block_size} blocks of {device.block_size} bytes from"
                f" block {local.input_lba} on; choose a lower block"
            )
        if output < start + count and start < output + room:
            raise InvalidRequest("input and output would overlap; choose another block")
        return cls(local.input_lba, start, count, output, room)

    def store_input(self, device: Device, data: Buffer) -> None:
        """Write the input; its last page ends with zeroes."""
        device.write(self.input_lba, bytes(data).ljust(self.input_pages * PAGE_SIZE, b"\0"))

    def load_output(self, device: Device, length: int) -> bytes:
        """The first `length` bytes of the output."""
        blocks = -(-length // device.block_size)
        return device.read(self.output_page * PAGE_SIZE // device.block_size, blocks)[:length]


def _pages(size: int) -> int:
    return -(-size // PAGE_SIZE)


def _page_of(device: Device, lba: int) -> int:
    if lba < 0:
        raise InvalidRequest(f"{lba} is no block")
    page, rest = divmod(lba * device.block_size, PAGE_SIZE)
    if rest:
        raise InvalidRequest(
            f"block {lba} does not start on a page of {PAGE_SIZE} bytes; choose a multiple of"
            f" {PAGE_SIZE // device.block_size}"
        )
    return page


def _choose(device: Device, accelerator_id: int | None) -> Accelerator:
    for accelerator in device.accelerators():
        if accelerator_id in (None, accelerator.id):
            return accelerator
    which = "no accelerator" if accelerator_id is None else f"no accelerator {accelerator_id}"
    raise DeviceNotFound(f"the device has {which}")

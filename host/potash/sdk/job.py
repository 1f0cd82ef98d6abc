"""The platform's sequence, from a program and its input to the output, as one call.

Alkali CSD platform documentation, section 4.4 (the order of a host application's commands).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from csd_spec.descriptors import AcceleratorStatus
from csd_spec.opcodes import PAGE_SIZE
from csd_spec.status import StatusId
from potash.sdk.accelerator import Accelerator
from potash.sdk.device import Device
from potash.sdk.errors import DeviceNotFound, PotashError
from potash.sdk.transport import Buffer

MAX_OUTPUT_PAGES = 4096
"""Pages that the output may take, as the platform's host application has it."""


class LocalStorage(NamedTuple):
    """Where on the drive a job finds its input and leaves its output, in blocks.

    Without `output_lba` the output follows the input.
    """

    input_lba: int
    output_lba: int | None = None


class JobResult(NamedTuple):
    """What a job made, and its status."""

    output: bytes
    status: AcceleratorStatus


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

    `report` is given one line for each step. Raises PotashError: JobFailed, JobTimeout after
    `timeout` seconds, CommandFailed, and for an input that fits nowhere.
    """
    pages = _Pages.plan(device, data, local) if local is not None else None
    if local is not None:
        report(f"write {len(data)} bytes of input to block {local.input_lba}")
        device.write(local.input_lba, bytes(data) + bytes(-len(data) % device.block_size))
    accelerator = _choose(device, accelerator_id)
    report(
        f"identify: accelerator {accelerator.id} with {accelerator.input_size} bytes of input"
        f" and {accelerator.output_size} of output"
    )
    if len(data) > accelerator.input_size:
        raise PotashError(
            f"the input has {len(data)} bytes, but the accelerator takes {accelerator.input_size}"
        )
    accelerator.enable()
    report("enable the accelerator subsystem")
    if accelerator.status().status == StatusId.RUNNING:
        raise PotashError(f"accelerator {accelerator.id} is busy with another job; wait or stop it")
    accelerator.reset()
    accelerator.send_firmware(program, firmware_id)
    report(f"send {len(program)} bytes of firmware as {firmware_id}")
    if pages is None:
        accelerator.write_input(data)
        report(f"send {len(data)} bytes of input")
    else:
        count = min(pages.output_pages, accelerator.output_size // PAGE_SIZE)
        accelerator.use_local_input(pages.input_page, pages.input_pages, device.nsid)
        report(f"local storage as input: {pages.input_pages} pages from {pages.input_page}")
        accelerator.use_local_output(pages.output_page, count, device.nsid)
        report(f"local storage as output: {count} pages from {pages.output_page}")
    accelerator.select(firmware_id)
    report(f"select firmware {firmware_id}")
    accelerator.start(arguments=arguments)
    report("start")
    status = accelerator.wait(timeout)
    report(f"done: {status.produced} bytes of output, return value {status.return_value}")
    if pages is None:
        output = accelerator.read_output(status.produced)
    else:
        output = _read_bytes(device, pages.output_page * PAGE_SIZE, status.produced)
    report(f"read {len(output)} bytes of output")
    return JobResult(output, status)


class _Pages(NamedTuple):
    """A job's ranges of local storage in pages."""

    input_page: int
    input_pages: int
    output_page: int
    output_pages: int

    @classmethod
    def plan(cls, device: Device, data: Buffer, local: LocalStorage) -> _Pages:
        """Raises PotashError for blocks that are not where pages are, or not on the drive."""
        if not data:
            raise PotashError("an empty input cannot be stored on the drive; leave --lba out")
        start = _page_of(device, local.input_lba)
        count = -(-len(data) // PAGE_SIZE)
        output = start + count
        if local.output_lba is not None:
            output = _page_of(device, local.output_lba)
        left = device.capacity // PAGE_SIZE - output
        if start + count > device.capacity // PAGE_SIZE or left <= 0:
            raise PotashError(
                f"input and output do not fit on the drive of {device.capacity} bytes from block"
                f" {local.input_lba} on; choose a lower block"
            )
        if output < start + count and start < output + 1:
            raise PotashError("the output would begin inside the input; choose another block")
        return cls(start, count, output, min(left, MAX_OUTPUT_PAGES))


def _page_of(device: Device, lba: int) -> int:
    page, rest = divmod(lba * device.block_size, PAGE_SIZE)
    if rest:
        raise PotashError(
            f"block {lba} does not start on a page of {PAGE_SIZE} bytes; choose a multiple of"
            f" {PAGE_SIZE // device.block_size}"
        )
    return page


def _read_bytes(device: Device, offset: int, length: int) -> bytes:
    """`length` bytes of the drive from byte `offset`, which is where a block starts."""
    blocks = -(-length // device.block_size)
    return device.read(offset // device.block_size, blocks)[:length]


def _choose(device: Device, accelerator_id: int | None) -> Accelerator:
    for accelerator in device.accelerators():
        if accelerator_id in (None, accelerator.id):
            return accelerator
    which = "no accelerator" if accelerator_id is None else f"no accelerator {accelerator_id}"
    raise DeviceNotFound(f"the device has {which}")

"""Where a job's input comes from and where its output goes: buffers, blocks, or files on the drive.

A job takes a `Source` and a `Sink`. Both look at everything first (`prepare`), change things only
when the program has been taken (`give`, `offer`), and leave nothing open (`close`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from csd_spec.fields import COUNT_MASK
from csd_spec.opcodes import PAGE_SIZE
from potash.sdk.errors import InvalidRequest
from potash.sdk.progress import Progress
from potash.sdk.transport import Buffer

if TYPE_CHECKING:
    from potash.sdk.accelerator import Accelerator
    from potash.sdk.device import Device

Content = Buffer | str | os.PathLike[str]
"""Bytes, or the path of a file that has them."""


class Told(NamedTuple):
    """Who wants to know of a job's steps: a line for each, and how far the long ones are."""

    report: Callable[[str], None]
    progress: Progress


@runtime_checkable
class Source(Protocol):
    """A job's input."""

    @property
    def size(self) -> int:
        """Bytes of it, once it is prepared."""

    def prepare(self, accelerator: Accelerator) -> None:
        """Find out whether it can be an input. Raises PotashError or OSError; changes nothing."""

    def give(self, accelerator: Accelerator, told: Told) -> None:
        """Make it the accelerator's input."""

    def confirm(self) -> None:
        """The job has ended. Raises PotashError where it has not read what it should have."""

    def close(self) -> None:
        """Release what `prepare` opened; a second call does nothing."""


@runtime_checkable
class Sink(Protocol):
    """A place for a job's output."""

    def prepare(self, accelerator: Accelerator, input_size: int) -> None:
        """Find out whether it can be a place for output. Raises PotashError; changes nothing."""

    def offer(self, accelerator: Accelerator, told: Told) -> None:
        """Make it the place for the accelerator's output."""

    def collect(self, accelerator: Accelerator, produced: int, told: Told) -> bytes:
        """What the job made, where it is not to stay in its place."""

    def close(self, *, still_written: bool = False) -> None:
        """Release everything, and what was made for output that was not collected.

        That stays, though, if a job may still write to it (`still_written`).
        """


class Range(NamedTuple):
    """A run of pages of 4096 bytes on a namespace."""

    page: int
    pages: int


class BufferSource:
    """Bytes, or the contents of a file, which go to the input buffer."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._data: Buffer = b""

    @property
    def size(self) -> int:
        return len(self._data)

    def prepare(self, accelerator: Accelerator) -> None:
        self._data = content_of(self._content)
        require_fit(accelerator, self.size)

    def give(self, accelerator: Accelerator, told: Told) -> None:
        accelerator.write_input(self._data, progress=told.progress)
        told.report(f"send {self.size} bytes of input")

    def confirm(self) -> None:
        pass

    def close(self) -> None:
        self._data = b""


class BufferSink:
    """The output buffer, which is read when the job has ended."""

    def prepare(self, accelerator: Accelerator, input_size: int) -> None:
        pass

    def offer(self, accelerator: Accelerator, told: Told) -> None:
        pass

    def collect(self, accelerator: Accelerator, produced: int, told: Told) -> bytes:
        output = accelerator.read_output(produced, progress=told.progress)
        told.report(f"read {len(output)} bytes of output")
        return output

    def close(self, *, still_written: bool = False) -> None:
        pass


class LocalStorage(NamedTuple):
    """Where on the drive a job finds its input and leaves its output, in blocks of the drive.

    Without `output_lba` the output follows the input. `output_size` is the room for the output in
    bytes: a program that does not set its output's length writes all of it. Without one it is as
    large as the input.
    """

    input_lba: int
    output_lba: int | None = None
    output_size: int | None = None


class BlockSource:
    """Bytes that are written to blocks of the drive, and read there by the job."""

    def __init__(self, device: Device, content: Content, local: LocalStorage) -> None:
        self._device = device
        self._content = content
        self._lba = local.input_lba
        self._data: Buffer = b""
        self.range = Range(0, 0)

    @property
    def size(self) -> int:
        return len(self._data)

    def prepare(self, accelerator: Accelerator) -> None:
        self._data = content_of(self._content)
        require_fit(accelerator, self.size)
        self.range = Range(_page_of(self._device, self._lba), pages_of(self.size))

    def give(self, accelerator: Accelerator, told: Told) -> None:
        """Write the input; its last page ends with zeroes."""
        padded = bytes(self._data).ljust(self.range.pages * PAGE_SIZE, b"\0")
        self._device.write(self._lba, padded, progress=told.progress)
        told.report(f"write {self.size} bytes of input to block {self._lba}")
        use_input(accelerator, [self.range], self._device.nsid, told)

    def confirm(self) -> None:
        pass

    def close(self) -> None:
        self._data = b""


class BlockSink:
    """Blocks of the drive that the job writes, behind the input unless it is said where."""

    def __init__(self, device: Device, source: BlockSource, local: LocalStorage) -> None:
        self._device = device
        self._source = source
        self._local = local
        self.range = Range(0, 0)

    def prepare(self, accelerator: Accelerator, input_size: int) -> None:
        """Raises InvalidRequest for blocks that are not where pages are, or not on the drive."""
        device, local = self._device, self._local
        start, count = self._source.range
        output = start + count
        if local.output_lba is not None:
            output = _page_of(device, local.output_lba)
        room = room_for(accelerator, local.output_size, input_size)
        if max(start + count, output + room) * PAGE_SIZE > device.capacity:
            raise InvalidRequest(
                f"input and output do not fit on the drive of"
                f" {device.capacity // device.block_size} blocks of {device.block_size} bytes from"
                f" block {local.input_lba} on; choose a lower block"
            )
        if output < start + count and start < output + room:
            raise InvalidRequest("input and output would overlap; choose another block")
        self.range = Range(output, room)

    def offer(self, accelerator: Accelerator, told: Told) -> None:
        use_output(accelerator, [self.range], self._device.nsid, told)

    def collect(self, accelerator: Accelerator, produced: int, told: Told) -> bytes:
        device = self._device
        blocks = -(-produced // device.block_size)
        lba = self.range.page * PAGE_SIZE // device.block_size
        output = device.read(lba, blocks, progress=told.progress)[:produced]
        told.report(f"read {len(output)} bytes of output")
        return output

    def close(self, *, still_written: bool = False) -> None:
        pass


def use_input(
    accelerator: Accelerator, ranges: Sequence[Range], nsid: int | None, told: Told
) -> None:
    """Let the next job read these ranges, one behind the other."""
    for index, (page, pages) in enumerate(_in_commands(ranges)):
        use = accelerator.append_local_input if index else accelerator.use_local_input
        use(page, pages, nsid)
        told.report(f"local storage as input: {pages} pages from {page}")


def use_output(
    accelerator: Accelerator, ranges: Sequence[Range], nsid: int | None, told: Told
) -> None:
    """Let the next job write these ranges, one behind the other."""
    for index, (page, pages) in enumerate(_in_commands(ranges)):
        use = accelerator.append_local_output if index else accelerator.use_local_output
        use(page, pages, nsid)
        told.report(f"local storage as output: {pages} pages from {page}")


def _in_commands(ranges: Iterable[Range]) -> Iterable[Range]:
    """The ranges in parts that one command can name."""
    for page, pages in ranges:
        for start in range(0, pages, COUNT_MASK):
            yield Range(page + start, min(COUNT_MASK, pages - start))


def content_of(content: Content) -> Buffer:
    """The bytes themselves. Raises OSError."""
    if isinstance(content, (str, os.PathLike)):
        return Path(content).read_bytes()
    return memoryview(content).cast("B")


def require_fit(accelerator: Accelerator, size: int) -> None:
    """Raises InvalidRequest for an input that no job of the accelerator can be given."""
    if not size:
        raise InvalidRequest("the input is empty; a job needs at least one byte")
    if size > accelerator.input_size:
        raise InvalidRequest(
            f"the input has {size} bytes, but the accelerator takes {accelerator.input_size}"
        )


def room_for(accelerator: Accelerator, size: int | None, input_size: int) -> int:
    """Pages for an output of `size` bytes, or else as large as the input."""
    wanted = input_size if size is None else size
    return min(pages_of(wanted), accelerator.output_size // PAGE_SIZE)


def pages_of(size: int) -> int:
    """How many pages hold `size` bytes."""
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

"""I/O targets of a job: sources of its input and sinks for its output.

A job takes a `Source` and a `Sink`. Both check everything first (`prepare`), change things only
after the device has accepted the program (`attach`), and leave nothing open (`close`). They are
buffers or blocks here, and files on the drive in `potash.sdk.files`.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from csd_spec.fields import COUNT_MASK
from csd_spec.opcodes import PAGE_SIZE
from potash.sdk.accelerator_commands import AcceleratorCommands
from potash.sdk.commands import pieces_of
from potash.sdk.errors import InvalidRequest
from potash.sdk.namespace import Namespace
from potash.sdk.progress import Progress
from potash.sdk.transport import Buffer

Content = Buffer | str | os.PathLike[str]
"""Bytes, or the path of a file that has them."""


class Reporter(NamedTuple):
    """Gets a job's steps: a line for each, and how far the long ones are."""

    report: Callable[[str], None]
    progress: Progress


@runtime_checkable
class Source(Protocol):
    """A job's input."""

    @property
    def size(self) -> int:
        """Bytes of it, after `prepare`."""

    def prepare(self, accelerator: AcceleratorCommands) -> None:
        """Check whether it can be an input. Raises PotashError or OSError; changes nothing."""

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        """Make it the accelerator's input."""

    def confirm(self) -> None:
        """Check it after the job. Raises PotashError if the job may have read something else."""
        return

    def close(self) -> None:
        """Release what `prepare` opened; a second call does nothing."""
        return


class Sink:
    """A target for a job's output: the accelerator's output buffer, which is read after the job."""

    def prepare(self, accelerator: AcceleratorCommands, input_size: int) -> None:
        """Check whether it can take an output. Raises PotashError; changes nothing."""

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        """Make it the target of the accelerator's output."""

    def collect(self, accelerator: AcceleratorCommands, produced: int, reporter: Reporter) -> bytes:
        """The job's output; nothing if it stays on the drive."""
        output = accelerator.read_output(produced, progress=reporter.progress)
        reporter.report(f"read {len(output)} bytes of output")
        return output

    def close(self, *, still_written: bool = False) -> None:
        """Release everything, and remove output that was not collected.

        It is kept if a job may still write to it (`still_written`).
        """


class Range(NamedTuple):
    """A run of pages of 4096 bytes on a namespace."""

    page: int
    pages: int


class BufferSource(Source):
    """Bytes, or the contents of a file, which go to the input buffer."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._data: Buffer = b""

    @property
    def size(self) -> int:
        return len(self._data)

    def prepare(self, accelerator: AcceleratorCommands) -> None:
        self._data = content_of(self._content)
        require_fit(accelerator, self.size)

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        accelerator.write_input(self._data, progress=reporter.progress)
        reporter.report(f"send {self.size} bytes of input")

    def close(self) -> None:
        self._data = b""


class PagesSource(Source):
    """Pages that are on the drive already, and of them the first `size` bytes."""

    def __init__(self, pages: Sequence[Range], size: int, nsid: int) -> None:
        self._pages = pages
        self._size = size
        self._nsid = nsid

    @property
    def size(self) -> int:
        return self._size

    def prepare(self, accelerator: AcceleratorCommands) -> None:
        require_fit(accelerator, self._size)

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        use_input(accelerator, self._pages, self._nsid, reporter)


class LocalStorage(NamedTuple):
    """Places of a job's input and output on the drive, in blocks of the drive.

    Without `output_lba` the output follows the input. `output_size` is the room for the output in
    bytes: a program that does not set its output's length writes all of it. The default is the size
    of the input.
    """

    input_lba: int
    output_lba: int | None = None
    output_size: int | None = None


class BlockSource(BufferSource):
    """Bytes that are written to blocks of the drive, and read there by the job."""

    def __init__(self, namespace: Namespace, content: Content, local: LocalStorage) -> None:
        super().__init__(content)
        self._namespace = namespace
        self._lba = local.input_lba
        self.range = Range(0, 0)

    def prepare(self, accelerator: AcceleratorCommands) -> None:
        super().prepare(accelerator)
        self.range = Range(_page_of(self._namespace, self._lba), pages_of(self.size))

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        """Write the input; its last page ends with zeroes."""
        padded = bytes(self._data).ljust(self.range.pages * PAGE_SIZE, b"\0")
        self._namespace.write(self._lba, padded, progress=reporter.progress)
        reporter.report(f"write {self.size} bytes of input to block {self._lba}")
        use_input(accelerator, [self.range], self._namespace.nsid, reporter)


class BlockSink(Sink):
    """Blocks of the drive that the job writes, by default those after the input."""

    def __init__(self, namespace: Namespace, source: BlockSource, local: LocalStorage) -> None:
        self._namespace = namespace
        self._source = source
        self._local = local
        self.range = Range(0, 0)

    def prepare(self, accelerator: AcceleratorCommands, input_size: int) -> None:
        """Raises InvalidRequest for blocks that do not begin a page, or are not on the drive."""
        namespace, local = self._namespace, self._local
        start, count = self._source.range
        output = start + count
        if local.output_lba is not None:
            output = _page_of(namespace, local.output_lba)
        room = room_for(accelerator, local.output_size, input_size)
        capacity, size = namespace.capacity, namespace.block_size
        if max(start + count, output + room) * PAGE_SIZE > capacity:
            raise InvalidRequest(
                f"input and output do not fit on the drive of {capacity // size} blocks of {size}"
                f" bytes from block {local.input_lba} on; choose a lower block"
            )
        if output < start + count and start < output + room:
            raise InvalidRequest("input and output would overlap; choose another block")
        self.range = Range(output, room)

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        use_output(accelerator, [self.range], self._namespace.nsid, reporter)

    def collect(self, accelerator: AcceleratorCommands, produced: int, reporter: Reporter) -> bytes:
        size = self._namespace.block_size
        lba, blocks = self.range.page * PAGE_SIZE // size, -(-produced // size)
        output = self._namespace.read(lba, blocks, progress=reporter.progress)[:produced]
        reporter.report(f"read {len(output)} bytes of output")
        return output


def use_input(
    accelerator: AcceleratorCommands, ranges: Sequence[Range], nsid: int | None, reporter: Reporter
) -> None:
    """Use these ranges, in this order, as the next job's input."""
    for index, (page, pages) in enumerate(_in_commands(ranges)):
        accelerator.use_local_input(page, pages, nsid, append=index > 0)
        reporter.report(f"local storage as input: page {page}, count {pages}")


def use_output(
    accelerator: AcceleratorCommands, ranges: Sequence[Range], nsid: int | None, reporter: Reporter
) -> None:
    """Use these ranges, in this order, as the next job's output."""
    for index, (page, pages) in enumerate(_in_commands(ranges)):
        accelerator.use_local_output(page, pages, nsid, append=index > 0)
        reporter.report(f"local storage as output: page {page}, count {pages}")


def _in_commands(ranges: Sequence[Range]) -> list[Range]:
    return [
        Range(page + start, count)
        for page, pages in ranges
        for start, count in pieces_of(pages, COUNT_MASK)
    ]


def content_of(content: Content) -> Buffer:
    """The bytes themselves. Raises OSError."""
    if isinstance(content, (str, os.PathLike)):
        return Path(content).read_bytes()
    return memoryview(content).cast("B")


def require_fit(accelerator: AcceleratorCommands, size: int) -> None:
    """Raises InvalidRequest for an input that no job of the accelerator can have."""
    if not size:
        raise InvalidRequest("the input is empty; a job needs at least one byte")
    if size > accelerator.input_size:
        raise InvalidRequest(
            f"the input has {size} bytes, but the accelerator takes {accelerator.input_size}"
        )


def room_for(accelerator: AcceleratorCommands, size: int | None, input_size: int) -> int:
    """Pages for an output of `size` bytes, or else as large as the input."""
    wanted = input_size if size is None else size
    return min(pages_of(wanted), accelerator.output_size // PAGE_SIZE)


def pages_of(size: int) -> int:
    """Number of pages that hold `size` bytes."""
    return -(-size // PAGE_SIZE)


def _page_of(namespace: Namespace, lba: int) -> int:
    if lba < 0:
        raise InvalidRequest(f"{lba} is not a block")
    page, rest = divmod(lba * namespace.block_size, PAGE_SIZE)
    if rest:
        raise InvalidRequest(
            f"block {lba} does not start on a page of {PAGE_SIZE} bytes; choose a multiple of"
            f" {PAGE_SIZE // namespace.block_size}"
        )
    return page

"""Read, Write, Compare, Verify and Write Zeroes of blocks that have metadata.

Blocks and metadata are always moved through private buffers, where protection information is made
and checked. The host's metadata is behind each of its blocks or in a buffer of its own; it has none
where all of it is protection information that the controller makes and takes away.

Source: NVM Command Set Specification 1.0, sections 3.2, 5.2 and 5.2.2.
"""

from collections.abc import Callable, Iterator
from functools import partial

from nvme_spec.commands import PRACT
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    STEP,
    Part,
    Target,
    carry_out,
    commit,
    healed,
    heals,
    pieces,
    read_error,
    require_allocated,
    require_correctable,
    require_writable,
    write_error,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.protection.deferred import check, insert
from potash_firmware.rpu.protection.wanted import CHECKS
from potash_firmware.rpu.scheduler import Wait
from potash_firmware.rpu.transfer import Transfer


class Buffers:
    """Private buffers for the blocks of a command and their metadata."""

    def __init__(self, blocks: Target) -> None:
        assert blocks.wanted is not None
        self.blocks, self.wanted = blocks, blocks.wanted
        self.namespace = blocks.namespace
        self.data = memoryview(bytearray(blocks.length))
        self.metadata = memoryview(bytearray(blocks.blocks * self.wanted.metadata.size))

    @property
    def _interleaved(self) -> bool:
        return self.wanted.metadata.extended and not self.wanted.stripped

    def require_host(self, transfer: Transfer, command: Command, *, write: bool) -> None:
        """Raise NvmeError for guest memory that the command cannot use."""
        self._views(transfer, command, write=write)

    def _views(
        self, transfer: Transfer, command: Command, *, write: bool
    ) -> tuple[list[memoryview], list[memoryview]]:
        """Guest memory of the blocks, and that of separate metadata."""
        length = len(self.data) + (len(self.metadata) if self._interleaved else 0)
        data = transfer.views(command, length, write=write)
        if self._interleaved or self.wanted.stripped:
            return data, []
        return data, transfer.metadata_views(command, len(self.metadata), write=write)

    def _places(self) -> Iterator[tuple[memoryview, memoryview, slice, slice]]:
        """Each block and its metadata, and where they are where the host has them together."""
        size, kept = self.namespace.block_size, self.wanted.metadata.size
        for number in range(self.blocks.blocks):
            at = number * (size + kept)
            yield (
                self.data[number * size : (number + 1) * size],
                self.metadata[number * kept : (number + 1) * kept],
                slice(at, at + size),
                slice(at + size, at + size + kept),
            )

    def receive(self, transfer: Transfer, command: Command) -> None:
        """Fill the buffers from the host, with metadata of zeroes where it has none."""
        data, metadata = self._views(transfer, command, write=False)
        if not self._interleaved:
            transfer.gather(command, data, self.data)
            if metadata:
                transfer.gather(command, metadata, self.metadata)
            return
        both = memoryview(bytearray(len(self.data) + len(self.metadata)))
        transfer.gather(command, data, both)
        for block, kept, of_block, of_metadata in self._places():
            block[:], kept[:] = both[of_block], both[of_metadata]

    def send(self, transfer: Transfer, command: Command) -> None:
        """Give the host what is in the buffers."""
        data, metadata = self._views(transfer, command, write=True)
        if not self._interleaved:
            transfer.scatter(command, data, self.data)
            if metadata:
                transfer.scatter(command, metadata, self.metadata)
            return
        both = memoryview(bytearray(len(self.data) + len(self.metadata)))
        for block, kept, of_block, of_metadata in self._places():
            both[of_block], both[of_metadata] = block, kept
        transfer.scatter(command, data, both)

    def check(self) -> None:
        """Raise NvmeError for protection information that is not what the command wants."""
        check(self.wanted, self.data, self.metadata, self.blocks.slba, self.blocks.blocks)

    def protect(self) -> None:
        """Make or check the protection information of what the host has sent. Raises NvmeError."""
        if self.wanted.action:
            insert(self.wanted, self.data, self.metadata, self.blocks.blocks)
        else:
            self.check()

    def fetch(self, *, dulbe: bool) -> None:
        """Fill the buffers from the media; waits. Raises MediaError."""
        if self.blocks.fua:
            commit(self.namespace.media)
        if dulbe:
            require_allocated(self.namespace.media, self.blocks.offset, self.blocks.length)
        self.namespace.pairs.read(self.blocks.slba, self.data, self.metadata)

    def store(self, *, durable: bool) -> None:
        """Write what is in the buffers; waits. Raises MediaError."""
        self.namespace.pairs.write(self.blocks.slba, self.data, self.metadata)
        if durable:
            self.namespace.media.flush()

    def unlike(self, stored: "Buffers") -> int | None:
        """The first byte of the first block that differs but for its protection information."""
        kept = self.wanted.metadata
        end = kept.protection_at + kept.protection_size
        for number, (mine, other) in enumerate(zip(self._places(), stored._places(), strict=True)):
            block, metadata = mine[:2]
            if (
                block != other[0]
                or metadata[: kept.protection_at] != other[1][: kept.protection_at]
                or metadata[end:] != other[1][end:]
            ):
                return self.blocks.offset + number * self.namespace.block_size
        return None


def read(controller: Controller, command: Command, blocks: Target) -> Steps:
    """Media to guest memory."""
    namespace = blocks.namespace
    buffers = Buffers(blocks)
    buffers.require_host(controller.transfer, command, write=True)
    require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe = namespace.dulbe
    try:
        if (
            blocks.fua
            or dulbe
            or not namespace.pairs.read_at_once(blocks.slba, buffers.data, buffers.metadata)
        ):
            work = controller.media_work.on_blocks(
                namespace.in_flight, blocks.ranges, lambda: buffers.fetch(dulbe=dulbe), writes=False
            )
            yield Wait(work)
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    checked(controller, namespace, buffers.check)
    buffers.send(controller.transfer, command)
    controller.health.count_read(blocks.length)
    return None


def write(controller: Controller, command: Command, blocks: Target) -> Steps:
    """Guest memory to media; durable before it completes if the host wants it so."""
    namespace = blocks.namespace
    buffers = Buffers(blocks)
    buffers.require_host(controller.transfer, command, write=False)
    heal = heals(controller, namespace, blocks.slba, blocks.blocks)
    durable = heal or blocks.fua or namespace.write_through
    if controller.placement is not None:
        controller.placement.write(namespace.nsid, blocks.placement, blocks.length)
    require_writable(controller, namespace)
    buffers.receive(controller.transfer, command)
    buffers.protect()
    try:
        if not durable and namespace.pairs.never_waits:
            buffers.store(durable=False)
        else:
            work = controller.media_work.on_blocks(
                namespace.in_flight,
                blocks.ranges,
                lambda: buffers.store(durable=durable),
                writes=True,
            )
            yield Wait(work, work.cancel)
    except MediaError as error:
        raise write_error(controller, namespace, error) from None
    controller.health.count_write(blocks.length)
    if heal:
        yield from healed(controller, namespace, blocks.slba, blocks.blocks)
    return None


def compare(
    controller: Controller,
    command: Command,
    blocks: Target,
    differs: Callable[[Namespace, int], NvmeError],
) -> Steps:
    """Succeed if blocks and metadata, but for protection information, are what the host has."""
    namespace = blocks.namespace
    expected = expected_of(controller, command, blocks)
    require_correctable(namespace, blocks.slba, blocks.blocks)
    stored, dulbe = Buffers(blocks), namespace.dulbe
    try:
        yield controller.media_work.on_blocks(
            namespace.in_flight, blocks.ranges, lambda: stored.fetch(dulbe=dulbe), writes=False
        )
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    checked(controller, namespace, stored.check)
    controller.health.count_read(blocks.length)
    at = expected.unlike(stored)
    if at is not None:
        raise differs(namespace, at)
    return None


def expected_of(controller: Controller, command: Command, blocks: Target) -> Buffers:
    """The host's data that is to be compared, after the checks that the command requests. Raises
    NvmeError."""
    expected = Buffers(blocks)
    if expected.wanted.action:
        raise NvmeError(
            Status.INVALID_PROTECTION_INFORMATION, "a comparison makes no protection information"
        )
    expected.receive(controller.transfer, command)
    expected.check()
    return expected


def verify(controller: Controller, command: Command, blocks: Target) -> Steps:
    """Succeed if the blocks could be read, and are what their protection information says."""
    namespace, wanted = blocks.namespace, blocks.wanted
    assert wanted is not None
    if wanted.action:
        raise NvmeError(Status.INVALID_FIELD, "Verify moves no protection information")
    require_correctable(namespace, blocks.slba, blocks.blocks)
    dulbe, wrong = namespace.dulbe, list[NvmeError]()
    size = namespace.block_size

    def verify_part(first: int, length: int) -> None:
        part = Target(namespace, first // size, length // size, wanted=wanted)
        buffers = Buffers(part)
        buffers.fetch(dulbe=dulbe)
        done = part.slba - blocks.slba
        try:
            check(wanted, buffers.data, buffers.metadata, part.slba, part.blocks, done)
        except NvmeError as error:
            wrong.append(error)

    def parts() -> Iterator[Part]:
        if blocks.fua:
            yield Part(blocks.offset, blocks.length, lambda: commit(namespace.media))
        for first, length in pieces(blocks.offset, blocks.length, STEP):
            yield Part(first, length, partial(verify_part, first, length))
            if wrong:
                raise controller.failures.unprotected(namespace.nsid, wrong[0])

    yield from carry_out(controller, command, namespace, parts(), read_error, writes=False)
    controller.health.count_read(blocks.length)
    return None


def write_zeroes(controller: Controller, command: Command, blocks: Target) -> Steps:
    """Zeroes to blocks and metadata, with protection information that fits if that is asked for,
    and else with such that is not checked."""
    namespace, wanted = blocks.namespace, blocks.wanted
    assert wanted is not None
    if wanted.prinfo & CHECKS or wanted.checks_storage_tag:
        raise NvmeError(Status.INVALID_PROTECTION_INFORMATION, "Write Zeroes checks nothing")
    require_writable(controller, namespace)
    heal = heals(controller, namespace, blocks.slba, blocks.blocks)
    durable = heal or blocks.fua or namespace.write_through
    size = namespace.block_size

    def clear(first: int, length: int) -> None:
        part = Target(namespace, first // size, length // size, wanted=wanted)
        buffers = Buffers(part)
        if wanted.prinfo & PRACT:
            insert(wanted, buffers.data, buffers.metadata, part.blocks, part.slba - blocks.slba)
        else:
            buffers.metadata[:] = wanted.metadata.unwritten * part.blocks
        buffers.store(durable=False)

    def parts() -> Iterator[Part]:
        for first, length in pieces(blocks.offset, blocks.length, STEP):
            yield Part(first, length, partial(clear, first, length))
        if durable:
            yield Part(blocks.offset, blocks.length, namespace.media.flush)

    yield from carry_out(controller, command, namespace, parts(), write_error, writes=True)
    if heal:
        yield from healed(controller, namespace, blocks.slba, blocks.blocks)
    return None


def checked(controller: Controller, namespace: Namespace, check: Callable[[], None]) -> None:
    """Check what was read of the media, of which a wrong one is a media error. Raises NvmeError."""
    try:
        check()
    except NvmeError as error:
        raise controller.failures.unprotected(namespace.nsid, error) from None

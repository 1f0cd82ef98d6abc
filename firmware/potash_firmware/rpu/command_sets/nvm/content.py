"""The content of blocks: their bytes, and their metadata where they have some.

Commands on blocks treat both kinds alike. Without metadata, data are moved between guest memory and
media without a copy where nothing can block, and through a private buffer otherwise. Blocks with
metadata are always moved through private buffers, where protection information is made and checked.
The host's metadata is behind each of its blocks or in a buffer of its own; it has none where all of
it is protection information that the controller makes and takes away.

Source: NVM Command Set Specification 1.0, sections 3.2, 5.2 and 5.2.2.
"""

from collections.abc import Iterator
from typing import TypeAlias

from nvme_spec.commands import PRACT
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.command_sets.nvm.blocks import Target, commit, require_allocated
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.transfer import Transfer


class Plain:
    """The bytes of a command's blocks, which have no metadata."""

    metadata = b""

    def __init__(self, blocks: Target) -> None:
        self.blocks = blocks
        self.pieces: list[memoryview] = []
        """The private buffer in pieces, if one is needed."""
        self._views: list[memoryview] = []
        """Guest memory, which is used before the command waits."""

    def require_host(self, transfer: Transfer, command: Command, *, write: bool) -> None:
        """Resolve the command's guest memory. Raises NvmeError for what it cannot use."""
        self._views = transfer.views(command, self.blocks.length, write=write)

    def read_at_once(self, transfer: Transfer, command: Command) -> bool:
        """Move the blocks to the host if that need not wait. Raises MediaError and NvmeError."""
        blocks = self.blocks
        move = blocks.namespace.media.read_at_once
        return transfer.at_once(command, move, self._views, blocks.offset, to_host=True)

    def write_at_once(self, transfer: Transfer, command: Command) -> bool:
        """Move the host's data to the blocks if that need not wait. Raises MediaError."""
        blocks = self.blocks
        move = blocks.namespace.media.write_at_once
        return transfer.at_once(command, move, self._views, blocks.offset, to_host=False)

    def receive(self, transfer: Transfer, command: Command) -> None:
        """Fill the buffer from the host. Raises NvmeError."""
        if not self._views:
            self.require_host(transfer, command, write=False)
        buffer = transfer.buffer(self.blocks.length)
        transfer.gather(command, self._views, buffer)
        self.pieces = [buffer]

    def send(self, transfer: Transfer, command: Command) -> None:
        """Give the host what is in the buffer, if it does not have the blocks. Raises NvmeError."""
        if self.pieces:
            transfer.send(command, self.pieces[0])

    def check(self) -> None:
        """Accept the content: nothing protects it."""

    def protect(self) -> None:
        """Accept the host's data: nothing protects it."""

    def fetch(self, *, dulbe: bool) -> None:
        """Fill the buffer from the media; waits. Raises MediaError."""
        blocks, media = self.blocks, self.blocks.namespace.media
        if blocks.fua:
            commit(media)
        if dulbe:
            require_allocated(media, blocks.offset, blocks.length)
        self.pieces = [memoryview(bytearray(blocks.length))]
        media.read_into(self.pieces, blocks.offset)

    def put(self, pieces: list[memoryview], metadata: bytes) -> None:
        """Have the bytes of other content."""
        self.pieces = pieces

    def store(self, *, durable: bool) -> None:
        """Write what is in the buffer; waits. Raises MediaError."""
        media = self.blocks.namespace.media
        media.write_from(self.pieces, self.blocks.offset)
        if durable:
            media.flush()

    def unlike(self, stored: "Content") -> int | None:
        """The first byte of the media that differs from what is `stored`."""
        assert isinstance(stored, Plain)
        mine, other = self.pieces[0], stored.pieces[0]
        if mine == other:
            return None
        return self.blocks.offset + next(at for at, byte in enumerate(other) if byte != mine[at])


class Pairs:
    """The blocks of a command and their metadata, in private buffers."""

    def __init__(self, blocks: Target) -> None:
        assert blocks.protection is not None
        self.blocks, self.protection = blocks, blocks.protection
        self.namespace = blocks.namespace
        self.data = memoryview(bytearray(blocks.length))
        self.metadata = memoryview(bytearray(blocks.blocks * self.protection.metadata.size))

    @property
    def _interleaved(self) -> bool:
        return self.protection.metadata.extended and not self.protection.stripped

    def require_host(self, transfer: Transfer, command: Command, *, write: bool) -> None:
        """Raise NvmeError for guest memory that the command cannot use."""
        self._views(transfer, command, write=write)

    def _views(
        self, transfer: Transfer, command: Command, *, write: bool
    ) -> tuple[list[memoryview], list[memoryview]]:
        """Guest memory of the blocks, and that of separate metadata."""
        length = len(self.data) + (len(self.metadata) if self._interleaved else 0)
        data = transfer.views(command, length, write=write)
        if self._interleaved or self.protection.stripped:
            return data, []
        return data, transfer.metadata_views(command, len(self.metadata), write=write)

    def _places(self) -> Iterator[tuple[memoryview, memoryview, slice, slice]]:
        """Each block and its metadata, and where they are where the host has them together."""
        size, kept = self.namespace.block_size, self.protection.metadata.size
        for number in range(self.blocks.blocks):
            at = number * (size + kept)
            yield (
                self.data[number * size : (number + 1) * size],
                self.metadata[number * kept : (number + 1) * kept],
                slice(at, at + size),
                slice(at + size, at + size + kept),
            )

    def read_at_once(self, transfer: Transfer, command: Command) -> bool:
        """Fill the buffers from the media if that need not wait. Raises MediaError."""
        return self.namespace.pairs.read_at_once(self.blocks.slba, self.data, self.metadata)

    def write_at_once(self, transfer: Transfer, command: Command) -> bool:
        """Write what the host has if that never waits. Raises MediaError and NvmeError."""
        if not self.namespace.pairs.never_waits:
            return False
        self.receive(transfer, command)
        self.protect()
        self.store(durable=False)
        return True

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

    def check(self, done: int = 0) -> None:
        """Raise NvmeError for protection information that is not what the command wants, of which
        `done` blocks were checked before these."""
        from potash_firmware.rpu.protection import information  # NumPy delays a start

        blocks = self.blocks
        information.check(
            self.protection, self.data, self.metadata, blocks.slba, blocks.blocks, done
        )

    def clear(self, done: int) -> None:
        """Have zeroes, of a command of which `done` blocks were cleared before these."""
        if self.protection.prinfo & PRACT:
            from potash_firmware.rpu.protection import information

            information.insert(self.protection, self.data, self.metadata, self.blocks.blocks, done)
        else:
            self.metadata[:] = self.protection.metadata.unwritten * self.blocks.blocks

    def protect(self) -> None:
        """Make or check the protection information of what the host has sent. Raises NvmeError."""
        if self.protection.action:
            from potash_firmware.rpu.protection import information

            information.insert(self.protection, self.data, self.metadata, self.blocks.blocks)
        else:
            self.check()

    def fetch(self, *, dulbe: bool) -> None:
        """Fill the buffers from the media; waits. Raises MediaError."""
        if self.blocks.fua:
            commit(self.namespace.media)
        if dulbe:
            require_allocated(self.namespace.media, self.blocks.offset, self.blocks.length)
        self.namespace.pairs.read(self.blocks.slba, self.data, self.metadata)

    @property
    def pieces(self) -> list[memoryview]:
        """The bytes of the blocks without their metadata."""
        return [self.data]

    def put(self, pieces: list[memoryview], metadata: bytes) -> None:
        """Have the bytes of other content, with its metadata if it has some, and else zeroes."""
        self.data = memoryview(b"".join(pieces))
        if metadata:
            self.metadata = memoryview(bytearray(metadata))

    def store(self, *, durable: bool) -> None:
        """Write what is in the buffers; waits. Raises MediaError."""
        self.namespace.pairs.write(self.blocks.slba, self.data, self.metadata)
        if durable:
            self.namespace.media.flush()

    def unlike(self, stored: "Content") -> int | None:
        """The first byte of the first block that differs but for its protection information."""
        assert isinstance(stored, Pairs)
        kept = self.protection.metadata
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


Content: TypeAlias = Plain | Pairs


def content_of(blocks: Target) -> Content:
    """The content of a command's blocks, which has yet to be fetched or received."""
    return Plain(blocks) if blocks.protection is None else Pairs(blocks)


def expected_of(controller: Controller, command: Command, blocks: Target) -> Content:
    """The host's data for a comparison, checked as the command asks. Raises NvmeError."""
    if blocks.protection is not None and blocks.protection.action:
        raise NvmeError(
            Status.INVALID_PROTECTION_INFORMATION, "a comparison makes no protection information"
        )
    expected = content_of(blocks)
    expected.receive(controller.transfer, command)
    expected.check()
    return expected


def require_sound(controller: Controller, content: Content) -> None:
    """Check content that was read from the media; a wrong one is a media error. Raises
    NvmeError."""
    try:
        content.check()
    except NvmeError as error:
        nsid = content.blocks.namespace.nsid
        raise controller.failures.unprotected(nsid, error) from None

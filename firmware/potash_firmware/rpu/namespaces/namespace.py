"""A namespace of blocks: its media, the work on them, and uncorrectable blocks."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from nvme_spec.commands import NLB_MASK
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.logs import NO_PARAMETER_ERROR_LOCATION
from nvme_spec.opcodes import IoOpcode
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.metadata import Pairs
from potash_device.media.shapes import FORMATS, BlockFormat, Metadata, NamespaceShape
from potash_device.media.store import Media
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.media_work import BlocksInFlight
from potash_firmware.rpu.namespaces.uncorrectable import UncorrectableBlocks

_CSI, _READ, _WRITE = int(CommandSet.NVM), int(IoOpcode.READ), int(IoOpcode.WRITE)


class FastMedia(Protocol):
    """Media for the fast path, with methods of `potash_device.media.store.Media`."""

    def require_whole(self) -> None: ...

    def read_at_once(self, views: list[memoryview], offset: int) -> bool: ...

    def write_at_once(self, views: list[memoryview], offset: int) -> bool: ...


class FastAccess(NamedTuple):
    """The fast path's access to a namespace."""

    csi: int
    read: int | None
    write: int | None
    """The opcodes, where the commands need nothing but their data to be moved."""
    unit: int
    """Bytes that the first and the number of a command count."""
    zero_based: int
    """1 where the number is one less."""
    most: int
    """The largest number."""
    units: int
    """The size of the namespace."""
    media: FastMedia


@dataclass(eq=False)
class Namespace:
    """A namespace of logical blocks, on its media."""

    csi: ClassVar[CommandSet] = CommandSet.NVM

    nsid: int
    shape: NamespaceShape
    """The shape that is stored on the drive."""
    media: Media
    features: Features
    """Features that the host has set, of this namespace and of the controller."""
    in_flight: BlocksInFlight = field(default_factory=BlocksInFlight)
    uncorrectable: UncorrectableBlocks = field(default_factory=UncorrectableBlocks)
    unformatted: int = 0
    """Per cent of a format that are still to be done."""
    placed: bool = False
    """Flag: writes go to reclaim units, which are counted."""
    block_size: int = field(init=False)
    """Bytes of a logical block."""
    blocks: int = field(init=False)
    """Logical blocks; what is left of the media behind the last whole one is not used."""
    metadata: Metadata = field(init=False)
    """Metadata of each block."""

    def __post_init__(self) -> None:
        self.reshape(self.shape)

    def reshape(self, shape: NamespaceShape) -> None:
        """It is as `shape` says from now on."""
        self.shape = shape
        self.block_size, self.metadata = shape.block_size, shape.metadata
        self.blocks = self.media.size // shape.block_size
        self.in_flight.writes_alone = shape.metadata.size > 0
        self._reads_and_writes = FastAccess(
            _CSI, _READ, _WRITE, shape.block_size, 1, NLB_MASK, self.blocks, self.media
        )
        self._reads = self._reads_and_writes._replace(write=None)

    @property
    def pairs(self) -> Pairs:
        """The blocks with their metadata, of a namespace that has some."""
        assert isinstance(self.media.beside, Pairs)
        return self.media.beside

    @property
    def format(self) -> BlockFormat:
        return self.shape.format

    @property
    def capacity(self) -> int:
        """Logical blocks that can be written."""
        return self.blocks

    @property
    def size(self) -> int:
        """Bytes of all logical blocks."""
        return self.blocks * self.block_size

    def byte_range(
        self, lba: int, count: int, *, location: int = NO_PARAMETER_ERROR_LOCATION
    ) -> tuple[int, int]:
        """First byte and length of `count` blocks from `lba`, which is in the command at
        `location`. Raises NvmeError past the end.
        """
        if lba + count > self.blocks:
            raise NvmeError(
                Status.LBA_OUT_OF_RANGE,
                detail=f"{count} blocks from {lba} on leave the namespace's {self.blocks}",
                location=location,
                lba=max(lba, self.blocks),
            )
        return lba * self.block_size, count * self.block_size

    def whole_blocks(self, first: int, length: int) -> tuple[int, int]:
        """First block and number of the blocks that a range of bytes covers whole."""
        lba = -(-first // self.block_size)
        return lba, max(0, (first + length) // self.block_size - lba)

    @property
    def knows_deallocated(self) -> bool:
        """Every block is known to be allocated or not, so that reading one can be refused."""
        return self.media.reports_holes(self.block_size)

    @property
    def dulbe(self) -> bool:
        """Reading a block that is deallocated or was never written is an error."""
        return self.nsid in self.features.dulbe and self.knows_deallocated

    @property
    def write_through(self) -> bool:
        """Every write is to be durable when its command ends."""
        return self.features.write_through

    @property
    def fast_path(self) -> FastAccess | None:
        """The fast path's access; None where commands need more than that their data is moved.

        All further conditions of a namespace belong here: the fast path checks nothing else.
        """
        features = self.features
        if (
            self.in_flight.busy
            or self.uncorrectable.firsts
            or self.shape.metadata.size
            or (features.dulbe and self.dulbe)
        ):
            return None
        return self._reads if features.write_through or self.placed else self._reads_and_writes

    def require_readable(self, lba: int, count: int) -> None:
        """Raise NvmeError where some of these blocks have no data to give."""

    def has_area(self, lba: int) -> bool:
        """True for a block of a zone with a random write area."""
        return False

    def claim(self, lba: int, count: int) -> range | None:
        """These blocks are about to be written; the blocks that leave a random write area by that,
        if they are in one. Raises NvmeError where they cannot be."""
        return None

    def store_claims(self) -> None:
        """Store what was said by `claim`, before the blocks; waits. Raises MediaError."""

    def erased(self) -> None:
        """Nothing is left of what was on the media."""

    def lba_of(self, error: MediaError) -> int:
        """The block at which the media failed; 0 where that is not known."""
        return (error.at or 0) // self.block_size


def wanted_format(
    index: int,
    *,
    extended: bool,
    protection: int,
    first: bool,
    enabled: bool,
    location: int | None = None,
) -> tuple[int, Metadata]:
    """The block size and the metadata of format `index` as a host wants them.

    It has `enabled` extended formats, or not. Raises NvmeError.
    """
    if index >= len(FORMATS) or (FORMATS[index].extended and not enabled):
        raise NvmeError(
            Status.INVALID_FORMAT, detail=f"there is no LBA format {index}", location=location
        )
    chosen = FORMATS[index]
    if protection > 3 or (protection and not chosen.metadata):
        raise NvmeError(
            Status.INVALID_FORMAT,
            detail=f"LBA format {index} has no protection information of type {protection}",
            location=location,
        )
    return chosen.block_size, Metadata(
        chosen.metadata,
        extended and chosen.metadata > 0,
        protection,
        first and protection > 0,
        chosen.guard,
        chosen.storage_tag,
    )

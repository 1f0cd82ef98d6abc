"""The log page on placement handles, an extension: the bytes of each, and what became of them.

Bytes are little endian. Counters go on over power cycles. Only a drive with flexible data placement
has the page.
"""

from typing import Annotated, Self

from csd_spec.reporting import Amount, Key
from potash_wire.packed import Packed
from potash_wire.records import REST, U8, U16, U64, At
from potash_wire.structures import Buffer

HEADER_SIZE = 16
HANDLE_SIZE = 32
PAGE_SIZE = HEADER_SIZE + 128 * HANDLE_SIZE
"""Bytes of the page of a drive with as many handles as there can be."""


class PlacementLogError(ValueError):
    """Bytes that are not this log page."""


class HandleCounters(Packed, least_size=HANDLE_SIZE, error=PlacementLogError):
    """Bytes of a reclaim unit handle."""

    host: Annotated[U64, "Bytes that the host wrote by it."] = 0
    media: Annotated[U64, "Bytes written to flash for it: the host's, moved ones and padding."] = 0
    moved: Annotated[U64, "Bytes on flash that the drive moved."] = 0
    padding: Annotated[U64, "Bytes on flash that are empty, to fill program units."] = 0

    @property
    def write_amplification(self) -> Annotated[Amount, Key()]:
        """Bytes written to flash for each byte of the host; 0 before any."""
        return self.media / self.host if self.host else 0.0


class PlacementLog(Packed, least_size=HEADER_SIZE, error=PlacementLogError):
    """The handles, in their order."""

    version: U8 = 1
    count: Annotated[U16, At(2)] = 0
    """Number of handles."""
    handles: Annotated[tuple[HandleCounters, ...], At(HEADER_SIZE), REST] = ()

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Raises PlacementLogError."""
        if len(data) < HEADER_SIZE or data[0] != 1:
            raise PlacementLogError("this is no log page on placement handles")
        kept = super().decode(data[:HEADER_SIZE]).count * HANDLE_SIZE
        return super().decode(data[: HEADER_SIZE + kept])

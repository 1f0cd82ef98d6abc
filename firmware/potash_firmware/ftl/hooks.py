"""The arguments of the hooks of a translation layer in Python: see `plain.PageMapped`."""

from typing import NamedTuple, Self


class Page(NamedTuple):
    """A logical page of 4 KiB that gets a place."""

    number: int
    block: int
    """The superblock that has its data up to now; -1 if it has none."""


HOT = {2: False, 3: False, 4: True, 5: True, 8: True}
"""Access frequencies of which the writes are infrequent or frequent; 8 is of blocks that are to be
overwritten soon."""


class Hint(NamedTuple):
    """A description of a write by the host."""

    stream: int = 0
    """The placement handle (Flexible Data Placement), or the stream."""
    zone: int | None = None
    """The zone that is written, by its number in its namespace; None in one without zones."""
    hot: bool | None = None
    """True if the host expects frequent writes, False if infrequent ones; None if it did not say
    (access frequency of Dataset Management: NVM Command Set 1.1, section 3.3.3)."""
    host: int = 0
    """The dword that is the host's own."""
    frequency: int = 0
    """The access frequency, 0 where the host did not give it, and the access latency, likewise."""
    latency: int = 0
    sequential: bool = False
    """The host writes these pages in order."""
    incompressible: bool = False
    """The host says that the data cannot be compressed."""
    data: bytes = b""
    """The bytes that are written, for a translation layer with `data = True`."""
    offset: int = 0
    """Bytes of the first page before the data."""

    def with_attributes(self, dsm: int) -> Self:
        """The same, with the Dataset Management field of a command (NVM Command Set 1.0, section
        3.2.6): access frequency in bits 3:0, access latency 5:4, sequential 6, incompressible 7."""
        frequency = dsm & 0xF
        return self._replace(
            hot=HOT.get(frequency),
            frequency=frequency,
            latency=dsm >> 4 & 3,
            sequential=bool(dsm & 1 << 6),
            incompressible=bool(dsm & 1 << 7),
        )


NO_HINT = Hint()


class Block(NamedTuple):
    """A closed superblock."""

    number: int
    valid: int
    """Pages that are still mapped."""
    erases: int
    age: int
    """Superblocks that were closed since."""
    frontier: int
    """The frontier that filled it."""

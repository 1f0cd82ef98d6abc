"""The arguments of the hooks of a translation layer in Python: see `plain.PageMapped`."""

from typing import NamedTuple


class Page(NamedTuple):
    """A logical page of 4 KiB that gets a place."""

    number: int
    block: int
    """The superblock that has its data up to now; -1 if it has none."""


class Hint(NamedTuple):
    """A description of a write by the host."""

    stream: int = 0
    """The placement handle (Flexible Data Placement), or the stream."""
    zone: int | None = None
    """The zone that is written; None in a namespace without zones."""
    hot: bool | None = None
    """True if the host expects frequent writes, False if infrequent ones; None if it did not say
    (access frequency of Dataset Management: NVM Command Set 1.1, section 3.3.3)."""
    host: int = 0
    """The dword that is the host's own."""


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

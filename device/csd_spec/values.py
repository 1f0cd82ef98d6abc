"""Values of key value namespaces in memory, where programs work on them (extension).

The I/O command `ValueOpcode.COPY_VALUES` of a memory namespace copies values within the drive. It
has the fields of Memory Copy (`nvme_spec.memory_commands.MemoryCopy`): the first byte of the
destination, its length, which is room that need not be filled, and the number of source ranges; the
descriptor format is 0. A source range is a number of keys, in the drive's order, from one on.

Values are copied one behind the other, each behind a `ValueHeader` and filled up to a multiple of 8
bytes; or without either, as records of one size are read. The command ends with the first value
for which there is no room. Dword 0 of the completion is the number of values that were copied, and
dword 1 the number of their bytes.
"""

from enum import IntFlag
from typing import Annotated

from potash_wire.packed import Packed
from potash_wire.records import U8, U32, At, Stored

SOURCE_SIZE = 32
ALIGNMENT = 8
"""Bytes; a value with a header begins and ends at a multiple of it."""
KEY_SIZE = 16
LONGEST_FIRST = KEY_SIZE + 1
"""Bytes of the longest key that a list begins at: what follows a key is that key and a zero
byte."""


class SourceFlag(IntFlag):
    PLAIN = 1
    """No headers, and nothing between values."""


class ValueSource(Packed, least_size=SOURCE_SIZE):
    """A source range: at most `count` values, from the first key that is not before `key` on."""

    nsid: U32
    count: U32
    key_length: U8
    flags: U8
    key: Annotated[bytes, Stored("16s"), At(16)]

    @classmethod
    def of(cls, nsid: int, key: bytes, count: int, flags: int = 0) -> "ValueSource":
        """The source range that begins with a key of at most 16 bytes."""
        return cls(nsid, count, len(key), flags, key.ljust(KEY_SIZE, b"\0"))

    @property
    def first(self) -> bytes:
        """The key, of `key_length` bytes."""
        return self.key[: self.key_length]


class ValueHeader(Packed):
    """The header of a value: its size in bytes, and its key, filled up with zeroes."""

    size: U32
    key_length: U8
    key: Annotated[bytes, Stored("16s"), At(8)]


HEADER_SIZE = 24


def record(key: bytes, value: bytes) -> bytes:
    """A value with its header, filled up."""
    header = ValueHeader(len(value), len(key), key.ljust(KEY_SIZE, b"\0")).encode()
    return header + value + bytes(-len(value) % ALIGNMENT)

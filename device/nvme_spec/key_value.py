"""The Key Value Command Set (CSI 01h): its commands, and its data structures.

Source: NVM Express Key Value Command Set Specification 1.0d, sections 3.2 (commands), 4.1.3
(feature) and 4.1.5 (Identify).
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Self

from nvme_spec.identify.lists import IDENTIFY_SIZE
from nvme_spec.layout import Structure, raw, table, u8, u16, u32, u64
from nvme_spec.queues import EntryDwords
from nvme_spec.words import Word, field
from potash_wire.words import bits

LONGEST_KEY = 16
"""Bytes of a KV key, which has at least one."""

_HALF = LONGEST_KEY // 2


class KeyValueOpcode(IntEnum):
    """I/O commands of a key value namespace; Flush and those of reservations are those of every
    command set (figure 5)."""

    FLUSH = 0x00
    STORE = 0x01
    RETRIEVE = 0x02
    LIST = 0x06
    RESERVATION_REGISTER = 0x0D
    RESERVATION_REPORT = 0x0E
    DELETE = 0x10
    RESERVATION_ACQUIRE = 0x11
    EXIST = 0x14
    RESERVATION_RELEASE = 0x15


class KeyValueCommand(EntryDwords):
    """Any command of the set: the key, and the fields that Store, Retrieve or List add."""

    key_low: int = bits(2, 0, 63, default=0)
    """Bytes 0 to 7 of the key."""
    size: int = bits(10, 0, 31, default=0)
    """Bytes of the value (Store), or of the host's buffer (Retrieve, List)."""
    key_length: int = bits(11, 0, 7, default=0)
    must_exist: bool = bits(11, 8, default=False)
    """Store: not unless the key exists. Of Retrieve, this bit requests the value as it is
    compressed."""
    must_not_exist: bool = bits(11, 9, default=False)
    """Store: not if the key exists."""
    uncompressed: bool = bits(11, 10, default=False)
    """Store: do not compress the value."""
    key_high: int = bits(14, 0, 63, default=0)
    """Bytes 8 to 15 of the key."""

    @property
    def key(self) -> bytes:
        """The key, at most 16 bytes."""
        whole = self.key_low | self.key_high << 8 * _HALF
        return whole.to_bytes(LONGEST_KEY, "little")[: self.key_length]

    @classmethod
    def of(
        cls,
        key: bytes,
        size: int = 0,
        *,
        must_exist: bool = False,
        must_not_exist: bool = False,
        uncompressed: bool = False,
    ) -> Self:
        """A command with `key`, of at most 16 bytes. Raises ValueError for a longer one."""
        if len(key) > LONGEST_KEY:
            raise ValueError(f"a key has at most {LONGEST_KEY} bytes, not {len(key)}")
        low, high = (int.from_bytes(half, "little") for half in (key[:_HALF], key[_HALF:]))
        return cls(low, size, len(key), must_exist, must_not_exist, uncompressed, high)


# List.

LIST_HEADER_SIZE = 4
_KEY_HEADER_SIZE = 2
_KEY_ALIGNMENT = 4
SHORTEST_LISTED = 4
"""Bytes of a key of one or two bytes in a list."""


def encode_keys(keys: Iterable[bytes], size: int) -> bytes:
    """A list of the keys, from the first on, of at most `size` bytes (figures 15 and 16); the keys
    for which it has no room are left out."""
    listed, count = bytearray(LIST_HEADER_SIZE), 0
    for key in keys:
        entry = len(key).to_bytes(_KEY_HEADER_SIZE, "little") + key
        entry += bytes(-len(entry) % _KEY_ALIGNMENT)
        if len(listed) + len(entry) > size:
            break
        listed += entry
        count += 1
    listed[:LIST_HEADER_SIZE] = count.to_bytes(LIST_HEADER_SIZE, "little")
    return bytes(listed)


def decode_keys(data: bytes) -> list[bytes]:
    """The keys of a list. Raises ValueError if it does not have as many as it says."""
    keys: list[bytes] = []
    at = LIST_HEADER_SIZE
    for _ in range(int.from_bytes(data[:LIST_HEADER_SIZE], "little")):
        length = int.from_bytes(data[at : at + _KEY_HEADER_SIZE], "little")
        at += _KEY_HEADER_SIZE
        key = bytes(data[at : at + length])
        if not 1 <= length <= LONGEST_KEY or len(key) != length:
            raise ValueError(f"key {len(keys)} of the list is not there, or has {length} bytes")
        keys.append(key)
        at += length + -(_KEY_HEADER_SIZE + length) % _KEY_ALIGNMENT
    return keys


# Identify.


class KeyValueFormat(Structure):
    """A KV format (figure 40)."""

    SIZE = 16
    key_max = u16(0)
    """Bytes of the longest key."""
    options = u8(3)
    value_max = u32(4)
    """Bytes of the longest value."""
    most_keys = u32(8)
    """Keys of a namespace; 0 if their number is not limited."""


class KeyValueNamespaceStructure(Structure):
    """CNS 05h for the Key Value Command Set (figure 39); sizes in bytes."""

    SIZE = IDENTIFY_SIZE
    nsze = u64(0)
    nuse = u64(16)
    nsfeat = u8(24)
    nkvf_z = u8(25)
    nmic = u8(26)
    rescap = u8(27)
    fpi = u8(28)
    novg = u32(32)
    anagrpid = u32(36)
    nsattr = u8(43)
    nvmsetid = u16(44)
    endgid = u16(46)
    nguid = raw(48, 16)
    eui64 = raw(64, 8)
    kvf = table(72, KeyValueFormat, 16)


# Features.


class KeyValueConfiguration(Word):
    """20h: Delete of a key that does not exist is an error (figure 34)."""

    ednek = field(0)

"""The subsystem's configuration in the shared state area, which outlives the APU: two records.

A record is written over the older of the two, so a process that is killed while it writes leaves
the other one whole; a checksum tells which is. Nothing in here knows what the bytes mean.
"""

import struct
import zlib

from potash_device.saved import LARGEST_NUMBER
from potash_firmware.mailbox import MailboxError

MAGIC = b"PAPU"

_RECORD = struct.Struct("<4sIQQ")
"""Magic, CRC-32 of what follows, sequence number, length; then the bytes."""

_CHECKED = struct.Struct("<QQ")


class StateArea:
    """Two records in `memory`, which stays the caller's."""

    def __init__(self, memory: memoryview) -> None:
        half = len(memory) // 2
        self._halves = (memory[:half], memory[half : 2 * half])
        self._sequence = 0

    @property
    def capacity(self) -> int:
        """Bytes that a record holds at most."""
        return len(self._halves[0]) - _RECORD.size

    def load(self) -> bytes | None:
        """The newest whole record, None when there is none."""
        records = [record for half in self._halves if (record := _read(half)) is not None]
        if not records:
            return None
        self._sequence, data = max(records)
        return data

    def store(self, data: bytes) -> None:
        """Replace the older record. Raises MailboxError when the data does not fit."""
        if len(data) > self.capacity:
            raise MailboxError(f"a state of {len(data)} bytes does not fit in {self.capacity}")
        sequence = self._sequence + 1
        if sequence > LARGEST_NUMBER:  # only a forged one can have come so far
            sequence = 1
            self._halves[0][: _RECORD.size] = bytes(_RECORD.size)
        half = self._halves[sequence % 2]
        crc = _checksum(sequence, data)
        half[_RECORD.size : _RECORD.size + len(data)] = data
        _RECORD.pack_into(half, 0, MAGIC, crc, sequence, len(data))
        self._sequence = sequence


def _read(half: memoryview) -> tuple[int, bytes] | None:
    magic, crc, sequence, length = _RECORD.unpack_from(half)
    if magic != MAGIC or length > len(half) - _RECORD.size or sequence > LARGEST_NUMBER:
        return None
    data = bytes(half[_RECORD.size : _RECORD.size + length])
    return (sequence, data) if _checksum(sequence, data) == crc else None


def _checksum(sequence: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_CHECKED.pack(sequence, len(data))))

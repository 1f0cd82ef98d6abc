"""Bytes of registers, with masks for the bits that a host can write or clear.

Configuration space and the controller's registers are both this: a value, a mask of the bits that a
write sets as written, and a mask of the bits that a write of 1 clears.
"""

from collections.abc import Collection


class RegisterBytes:
    """`size` bytes of little-endian registers, all zero and read-only until `define`d."""

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)
        self._writable = bytearray(size)
        self._cleared_by_one = bytearray(size)

    def define(
        self, offset: int, width: int, reset: int, *, writable: int = 0, cleared_by_one: int = 0
    ) -> None:
        """Say what the `width` bytes at `offset` hold after a reset, and which bits a host
        moves."""
        self._writable[offset : offset + width] = writable.to_bytes(width, "little")
        self._cleared_by_one[offset : offset + width] = cleared_by_one.to_bytes(width, "little")
        self.put(offset, width, reset)

    def get(self, offset: int, width: int) -> int:
        """The value of the `width` bytes at `offset`."""
        return int.from_bytes(self._bytes[offset : offset + width], "little")

    def put(self, offset: int, width: int, value: int) -> None:
        """Store a value whatever its masks, as the device itself may."""
        self._bytes[offset : offset + width] = value.to_bytes(width, "little")

    def save(self) -> bytes:
        return bytes(self._bytes)

    def load(self, values: bytes, *, own: Collection[int] = ()) -> None:
        """Take values that were saved; `own` are offsets of bytes that the device itself changes.
        Raises ValueError where other bits differ than those that a host moves: the values are those
        of another device."""
        if len(values) != len(self._bytes):
            raise ValueError(f"{len(values)} bytes of registers are not {len(self._bytes)}")
        for at, (value, present) in enumerate(zip(values, self._bytes, strict=True)):
            moved = self._writable[at] | self._cleared_by_one[at]
            if at not in own and (value ^ present) & ~moved:
                raise ValueError(f"the register at {at:#x} is {value:#x} and not {present:#x}")
        self._bytes[:] = values

    def read(self, offset: int, count: int) -> bytes:
        """Read `count` bytes from `offset` for a host; bytes past the end are zero."""
        return bytes(self._bytes[offset : offset + count]).ljust(count, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """Write for a host, any length at any offset; bytes past the end are ignored."""
        for at, value in enumerate(data[: max(0, len(self._bytes) - offset)], offset):
            writable = self._writable[at]
            kept = self._bytes[at] & ~writable & ~(value & self._cleared_by_one[at])
            self._bytes[at] = (kept | value & writable) & 0xFF

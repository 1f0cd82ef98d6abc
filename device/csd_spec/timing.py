"""The log page on modelled time, an extension: how late commands are, and how the flash is used.

Bytes are little endian; times are whole nanoseconds.
"""

import struct
from typing import NamedTuple, Self

VERSION = 1
"""Of the layout; fields may be added behind the last one without another."""

_LAYOUT = struct.Struct("<BB2xI21Q3I3Bx3I4xQ5I4x2Q")


class TimingLogError(ValueError):
    """Bytes that are not this log page."""


class TimingLog(NamedTuple):
    """The fields in the order of their bytes; without modelled time all but `version` are 0."""

    version: int = VERSION
    modelled: int = 0
    """1 where commands complete at modelled times."""
    factor: int = 0
    """By which modelled times are multiplied."""
    guest_ns: int = 0
    """The guest's clock, as far as the drive knows it."""
    frozen_ns: int = 0
    """By which the guest's clock is behind the host's, as it stood still."""
    commands: int = 0
    """That were kept until a deadline."""
    late_ns: int = 0
    """How much later than their deadlines they were completed, all together."""
    late_p50_ns: int = 0
    late_p99_ns: int = 0
    late_most_ns: int = 0
    host: int = 0
    """Pages of 4 KiB written by the host; the others below in pages, too."""
    relocated: int = 0
    translation: int = 0
    padding: int = 0
    senses: int = 0
    """Reads of rows of flash."""
    programs: int = 0
    """Of program units."""
    erased: int = 0
    """Superblocks erased."""
    hits: int = 0
    """Of the mapping's cache."""
    misses: int = 0
    suspensions: int = 0
    die_ns: int = 0
    """Busy time of all dies together, and so on; without the factor."""
    bus_ns: int = 0
    link_ns: int = 0
    core_ns: int = 0
    dies: int = 0
    channels: int = 0
    cores: int = 0
    percentage_used: int = 0
    available_spare: int = 0
    worn: int = 0
    """1 where writes are refused, as too many superblocks are retired."""
    superblocks: int = 0
    free: int = 0
    retired: int = 0
    erases: int = 0
    """Of all superblocks together, in the drive's life; then their distribution."""
    erases_least: int = 0
    erases_p50: int = 0
    erases_p90: int = 0
    erases_p99: int = 0
    erases_most: int = 0
    executions: int = 0
    """Of programs in compute namespaces, that have ended."""
    execution_ns: int = 0
    """What the last of these took."""

    @property
    def write_amplification(self) -> float:
        """Pages programmed for each that the host wrote; 0 before any."""
        written = self.host + self.relocated + self.translation + self.padding
        return written / self.host if self.host else 0.0

    @property
    def cache_hits(self) -> float:
        """Share of the accesses to the mapping's cache that hit; 1 where there were none."""
        accesses = self.hits + self.misses
        return self.hits / accesses if accesses else 1.0

    def encode(self) -> bytes:
        return _LAYOUT.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises TimingLogError."""
        if len(data) < _LAYOUT.size or data[0] != VERSION:
            raise TimingLogError("this is no log page on modelled time")
        return cls(*_LAYOUT.unpack_from(data))


SIZE = _LAYOUT.size
"""Bytes of the page."""

"""The log page on modelled time, an extension: how late commands are, and how the flash is used.

Bytes are little endian; times are whole nanoseconds.
"""

from typing import Annotated, Self

from potash_wire.packed import Packed
from potash_wire.records import U8, U32, U64, At
from potash_wire.structures import Buffer

SIZE = 512
"""Bytes of the page."""
LEAST_SIZE = 256
"""Bytes of the page of version 1.0, whose fields end at `execution_ns`."""

VERSION = 1
"""Version of the layout; it stays when fields are added behind the last one."""


class TimingLogError(ValueError):
    """Bytes that are not this log page."""


class TimingLog(Packed, least_size=SIZE, error=TimingLogError):
    """The fields in the order of their bytes; without modelled time all but `version` are 0."""

    version: U8 = VERSION
    modelled: U8 = 0
    """1 where commands complete at modelled times."""
    factor: Annotated[U32, At(4)] = 0
    """The factor by which modelled times are multiplied."""
    guest_ns: U64 = 0
    """The guest's clock, as far as the drive knows it."""
    frozen_ns: U64 = 0
    """Time for which the guest was stopped: by so much its clock is behind the host's."""
    commands: U64 = 0
    """Commands that were kept until a deadline."""
    late_ns: U64 = 0
    """Sum of their delays after the deadlines; then the distribution of the delays."""
    late_p50_ns: U64 = 0
    late_p99_ns: U64 = 0
    late_most_ns: U64 = 0
    host: U64 = 0
    """Pages of 4 KiB written by the host; the others below in pages, too."""
    relocated: U64 = 0
    translation: U64 = 0
    padding: U64 = 0
    senses: U64 = 0
    """Reads of rows of flash."""
    programs: U64 = 0
    """Program units programmed."""
    erased: U64 = 0
    """Superblocks erased."""
    hits: U64 = 0
    """Accesses to the mapping's cache that hit, and those that missed."""
    misses: U64 = 0
    suspensions: U64 = 0
    die_ns: U64 = 0
    """Busy time of all dies together, then of buses, link and cores; without the factor."""
    bus_ns: U64 = 0
    link_ns: U64 = 0
    core_ns: U64 = 0
    dies: U32 = 0
    channels: U32 = 0
    cores: U32 = 0
    percentage_used: U8 = 0
    available_spare: U8 = 0
    worn: U8 = 0
    """1 where writes are refused, as too many superblocks are retired."""
    superblocks: Annotated[U32, At(192)] = 0
    free: U32 = 0
    retired: U32 = 0
    erases: Annotated[U64, At(208)] = 0
    """Erases of all superblocks in the drive's life; then their distribution."""
    erases_least: U32 = 0
    erases_p50: U32 = 0
    erases_p90: U32 = 0
    erases_p99: U32 = 0
    erases_most: U32 = 0
    executions: Annotated[U64, At(240)] = 0
    """Executions of programs in compute namespaces that have ended."""
    execution_ns: U64 = 0
    """Modelled time of the last of these executions."""
    folded: U64 = 0
    """Pages of `relocated` that were relocated from the SLC cache, or the SLC buffer of zones."""
    refreshed: U64 = 0
    """Pages of `relocated` whose data had become old, or had been read often."""
    retries: U64 = 0
    """Retries of reads of rows."""
    uncorrectable: U64 = 0
    """Reads of rows whose errors were too many for all retries."""
    lost: U64 = 0
    """Pages of the host that could not be read when they were to be relocated."""
    slc: U32 = 0
    """Superblocks in SLC mode."""
    grown_bad: U32 = 0
    """Superblocks of which a program has failed."""
    read_hits: U64 = 0
    """Reads of pages on flash that the read cache had, and those that it had not."""
    read_misses: U64 = 0
    copied: U64 = 0
    """Pages of `relocated` that did not leave their dies (copy back)."""
    slc_programs: U64 = 0
    """Programs of units in SLC mode, of `programs`."""
    area_writes: U64 = 0
    """Pages of `host` that were written to random write areas of zones."""
    commits: U64 = 0
    """Pages programmed from these areas."""

    @property
    def write_amplification(self) -> float:
        """Pages programmed for each that the host wrote; 0 before any."""
        kept = self.host - self.area_writes + self.commits
        written = kept + self.relocated + self.translation + self.padding
        return written / self.host if self.host else 0.0

    @property
    def cache_hits(self) -> float:
        """Share of the accesses to the mapping's cache that hit; 1 where there were none."""
        accesses = self.hits + self.misses
        return self.hits / accesses if accesses else 1.0

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Raises TimingLogError."""
        if len(data) < LEAST_SIZE or data[0] != VERSION:
            raise TimingLogError("this is no log page on modelled time")
        return cls.decode_head(bytes(data).ljust(SIZE, b"\0"))

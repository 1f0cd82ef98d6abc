"""Parts and times of a modelled drive, and the geometry that follows from them.

Times are whole nanoseconds. A logical page (LPN) and a place for one on flash (PPN) have 4 KiB; a
row is the flash pages of one number on all planes of a die, which are read together; a program unit
is the rows that one program operation writes; a superblock is the blocks of one number on all dies
of a group, which are all dies unless `width` is less.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Annotated

from potash_device.flash.blocks import most_bad
from potash_device.flash.rates import *  # the same names
from potash_device.flash.rates import LARGEST, PAGE, ProfileError, Rate
from potash_wire.ranges import require_ranges
from potash_wire.records import Range

Number = Annotated[int, Range(0, LARGEST)]
Positive = Annotated[int, Range(1, LARGEST)]
Numbers = Annotated[tuple[int, ...], Range(0, LARGEST)]
_Size = Annotated[int, Range(0, 1 << 36)]

LEAST_CACHED_RESERVE = 3
"""The least reserve if a superblock may be opened for translation pages, too."""
MOST_PAGES = 1 << 28
"""Maximum number of 4 KiB pages: 1 TiB, for which the model takes about 3 GiB of memory."""


MOST_SLC = 500
"""Thousandths of the superblocks that can be in SLC mode."""
RBER_PARAMETERS = 9
"""Numbers of `rber`."""
MOST_RETRIES = 64


@dataclass(frozen=True)
class Profile:
    """A drive. Raises ProfileError."""

    channels: Annotated[int, Range(1, 256)]
    dies: Annotated[int, Range(1, 256)]
    """Dies of each channel."""
    planes: Annotated[int, Range(1, 64)]
    blocks: Positive
    """Blocks of each plane."""
    pages: Positive
    """Pages of each block."""
    page_bytes: Annotated[int, Range(512, 1 << 20)]
    program_pages: Positive
    """Pages of a plane that one operation programs: 3 for one-shot TLC."""
    capacity: Annotated[int, Range(1, 1 << 43)]
    """Bytes that the host sees."""

    read_ns: Numbers
    """tR by page type: of page n of a block, the n-th, modulo their number."""
    program_ns: Numbers
    """tPROG, by program unit of a block, likewise."""
    erase_ns: Number
    bus: Rate
    """Rate of each channel."""
    link: Rate
    """PCIe, for data in each direction."""
    bus_command_ns: Number = 0
    """A channel's time for the command phase of an operation."""
    short_read_ns: Numbers = ()
    """tR where only one logical page of a row is read; as `read_ns` if empty."""
    suspend_ns: Annotated[int, Range(-1, LARGEST)] = -1
    """Time to suspend a program or an erase for a read of the host, and to resume it; -1 if a read
    waits for its end."""

    submission_ns: Number = 0
    """Time from the doorbell to the firmware."""
    completion_ns: Number = 0
    """Time from the last data to the host's interrupt."""
    cores: Annotated[int, Range(0, 1024)] = 0
    """Cores that run firmware; 0 if a command never waits for another's firmware time."""
    read_command_ns: Number = 0
    short_read_command_ns: Annotated[int, Range(-1, LARGEST)] = -1
    """Reads of one logical page; as `read_command_ns` if -1."""
    read_page_ns: Number = 0
    write_command_ns: Number = 0
    write_page_ns: Number = 0
    other_command_ns: Number = 0
    trim_page_ns: Number = 0
    """Firmware's time for each page that is deallocated."""

    buffer_bytes: _Size = 0
    """Size of the write buffer; 0 if a write completes when it is programmed."""
    protected: bool = False
    """The buffer outlives a loss of power, so that FUA and Flush need not wait for programs."""
    mapping_cache: _Size = 0
    """Bytes of translation pages in memory; 0 if the whole mapping is there."""
    read_cache: _Size = 0
    """Bytes of the host's pages that were read from flash and are kept in memory; 0 for none."""
    read_cache_page_ns: Number = 1024
    """Time to read a page from it, by default that of the DRAM of `[processor]`."""

    streams: Annotated[int, Range(1, 64)] = 1
    """Streams of the host, each with its own open superblock."""
    reserve: Annotated[int, Range(2, LARGEST)] = 3
    """Free superblocks at which a write waits for garbage collection. A step of a write may open a
    superblock for data and for relocations."""
    background: Number = 0
    """Free superblocks at which writes relocate `background_pages` each."""
    background_pages: Number = 0
    background_invalid: Annotated[int, Range(0, 1000)] = 0
    """Thousandths of a superblock that must be invalid, or it is not relocated then."""
    copy_back: bool = False
    """Relocated pages that stay on their die do not take the bus."""
    cycles: Number = 0
    """Erases after which a superblock is retired; 0 for none."""
    cycles_spread: Annotated[int, Range(0, 1000)] = 0
    """Thousandths of `cycles` by which those of a superblock are more or less at most."""
    bad_blocks: Annotated[int, Range(0, 500)] = 0
    """Thousandths of the blocks that are bad from the factory, on average."""
    program_failures: Annotated[int, Range(0, 1_000_000)] = 0
    """Millionths of the programs that fail, by which a superblock grows bad."""
    seed: Number = 0
    """Seed of what is random about blocks."""
    width: Number = 0
    """Dies of a superblock; 0 for all dies."""
    zone_superblocks: Number = 0
    """Superblocks that hold zones, if all zones are full."""
    zone_pages: Number = 0
    """Logical pages of zones."""
    zone_slc: Annotated[int, Range(0, MOST_SLC)] = 0
    """Thousandths of the superblocks that take small writes of zones, in SLC mode, if there are
    zones; in TOML also "5%"."""

    slc: Annotated[int, Range(0, MOST_SLC)] = 0
    """Thousandths of the superblocks that are a cache for the host's writes, in SLC mode; in TOML
    also "5%"."""
    cell_bits: Annotated[int, Range(0, 8)] = 0
    """Bits of a cell: blocks in SLC mode have so many times fewer pages; 0 if as many as
    `program_pages`."""
    slc_bits: Annotated[int, Range(1, 7)] = 1
    """Bits of a cell in the cache: 1, or more for an MLC or TLC mode, of which `slc_read_ns` and
    the others are the times then."""
    slc_read_ns: Number = 25_000
    slc_program_ns: Number = 200_000
    """tPROG of a page, of which a program unit in SLC mode has as many as others."""
    slc_erase_ns: Annotated[int, Range(-1, LARGEST)] = -1
    """tBERS in SLC mode; as `erase_ns` if -1."""
    slc_idle_ns: Number = 1_000_000
    """Idle time after which the cache is emptied."""

    rber: tuple[float, ...] = ()
    """Parameters of the raw bit error rate (`flash.errors`), in TOML also a name of `error_models`;
    empty for flash without errors."""
    retry_rber: tuple[float, ...] = tuple(step / 1000 for step in range(4, 23, 2))
    """The greatest rate with which a read succeeds, then that of each retry; ascending."""
    retry_ns: Numbers = (70_000,)
    """Time of each retry; the last one is that of all that follow."""
    refresh_s: Number = 0
    """Age of data in seconds at which a superblock is relocated; 0 for never."""
    reclaim_reads: Number = 0
    """Reads of each page of a superblock, on average, at which it is relocated; 0 for never."""

    zone_buffer_bytes: _Size = 0
    """Size of a write buffer of each zone; 0 if zones share the drive's."""
    isolated: bool = False
    """Relocated pages of a stream are in superblocks of that stream (persistently isolated); else
    they may be with those of others (initially isolated)."""
    reclaim_groups: Positive = 1
    """Parts of the dies in which streams are, each with a reserve of its own: stream n is in group
    n modulo their number. Superblocks have a `width` then."""
    sized: InitVar[bool] = True
    """False if `blocks` are yet to follow from the rest, and are not to be checked."""

    def __post_init__(self, sized: bool) -> None:
        require_ranges(self, ProfileError)
        for name in ("read_ns", "program_ns"):
            if not getattr(self, name):
                raise ProfileError(f"{name} is empty")
        row, planes = self.planes * self.page_bytes, f"{self.planes} planes"
        problems = {
            f"{planes} of {self.page_bytes} bytes are no multiple of {PAGE}": row % PAGE,
            f"pages is {self.pages}, no multiple of program_pages": self.pages % self.program_pages,
            f"capacity is {self.capacity}, no multiple of {PAGE}": self.capacity % PAGE,
        }
        for problem, wrong in problems.items():
            if wrong:
                raise ProfileError(problem)
        if self.width > self.total_dies or self.total_dies % (self.width or 1):
            raise ProfileError(f"width is {self.width}; it must divide the {self.total_dies} dies")
        if self.zone_pages > self.logical_pages * bool(self.zone_superblocks):
            raise ProfileError(
                f"zone_pages is {self.zone_pages}; the capacity has {self.logical_pages} pages, and"
                " zones take zone_superblocks"
            )
        if self.groups % self.reclaim_groups or self.streams % self.reclaim_groups:
            raise ProfileError(
                f"reclaim_groups is {self.reclaim_groups}; it must divide the {self.streams} "
                f"streams, and the {self.groups} groups of dies that follow from width"
            )
        others = self.zone_superblocks, self.slc, self.mapping_cache, self.program_failures
        if self.reclaim_groups > 1 and any((*others, self.refresh_s, self.reclaim_reads)):
            raise ProfileError(
                "with reclaim_groups there can be no zones, slc, mapping_cache, program_failures, "
                "refresh_s or reclaim_reads"
            )
        if self.mapping_cache and self.reserve < LEAST_CACHED_RESERVE:
            raise ProfileError(
                f"reserve is {self.reserve}; with a mapping_cache it must be 3 at least"
            )
        if self.copy_back and (self.rber or self.isolated or self.groups > 1):
            raise ProfileError(
                "with copy_back there can be no rber, as errors would stay, and no isolated, width "
                "or reclaim_groups"
            )
        if 0 < self.read_cache < PAGE:
            raise ProfileError(f"read_cache is {self.read_cache}; a page takes {PAGE}")
        self._require_slc()
        self._require_rates()
        if sized and self.superblocks * self.superblock_pages >= MOST_PAGES:
            raise ProfileError("the geometry has a TiB or more")
        if sized and self.superblocks < self.least_superblocks:
            least = -(-self.least_superblocks // self.groups)
            raise ProfileError(
                f"blocks is {self.blocks}; with its capacity, open superblocks and reserve the "
                f"drive needs {least}: give it more blocks or over_provisioning, or fewer pages"
            )
        unit = self.unit_pages * PAGE
        for name, rate in (("bus", self.bus), ("link", self.link)):
            if unit * rate.ns > LARGEST * rate.bytes:
                raise ProfileError(
                    f"{name} is {list(rate)}; a program unit of {unit} bytes takes more than 2 s"
                )
        if 0 < self.zone_buffer_bytes < unit:
            raise ProfileError(
                f"zone_buffer_bytes is {self.zone_buffer_bytes}; a program unit takes {unit}"
            )
        least = self.streams * unit
        if 0 < self.buffer_bytes < least:
            raise ProfileError(
                f"buffer_bytes is {self.buffer_bytes}; a program unit of each stream takes {least}"
            )

    def _require_slc(self) -> None:
        """Raises ProfileError unless there can be superblocks in SLC mode as described."""
        if not (name := "slc" if self.slc else "zone_slc" if self.zone_slc else ""):
            return
        if self.slc_bits > 1 and self.slc_bits >= self.bits:
            raise ProfileError(
                f"slc_bits is {self.slc_bits}; it must be less than the {self.bits} bits of a cell"
            )
        if self.bits < 2 or not self.slc_pages:
            raise ProfileError(f"{name} needs cells of several bits, and blocks of enough pages")
        if self.zone_slc and not self.buffer_bytes:
            raise ProfileError("zone_slc needs a write buffer, in which small writes gather")
        if self.zone_slc and self.copy_back:
            raise ProfileError("with copy_back there can be no zone_slc")
        if self.slc + self.zone_slc > MOST_SLC:
            raise ProfileError("slc and zone_slc are more than half of the flash together")

    def _require_rates(self) -> None:
        """Raises ProfileError unless there can be errors as described."""
        for name, most in (("rber", 10.0), ("retry_rber", 1.0)):
            rates = getattr(self, name)
            if not isinstance(rates, tuple) or not all(
                isinstance(rate, int | float) and 0 <= rate <= most for rate in rates
            ):
                raise ProfileError(f"{name} must be a list of numbers, 0 to {most:g}")
        if len(self.rber) not in (0, RBER_PARAMETERS):
            raise ProfileError(f"rber has {len(self.rber)} numbers; it must have {RBER_PARAMETERS}")
        limits = self.retry_rber
        if not 0 < len(limits) <= MOST_RETRIES or sorted(set(limits)) != list(limits):
            raise ProfileError(f"retry_rber must be 1 to {MOST_RETRIES} numbers that ascend")
        if not self.retry_ns:
            raise ProfileError("retry_ns is empty")

    @property
    def total_dies(self) -> int:
        return self.channels * self.dies

    @property
    def group_dies(self) -> int:
        """Dies of a superblock."""
        return self.width or self.total_dies

    @property
    def groups(self) -> int:
        """Groups of dies; superblock n is on the dies of group n modulo their number."""
        return self.total_dies // self.group_dies

    @property
    def superblocks(self) -> int:
        """Superblocks without factory-bad blocks (`flash.blocks`)."""
        return (self.blocks - self.lost_blocks) * self.groups

    @property
    def lost_blocks(self) -> int:
        """Factory-bad blocks of the die that has the most, by which all have fewer in use."""
        share = self.bad_blocks
        return most_bad(self.blocks, self.total_dies, share, self.seed) if share else 0

    @property
    def row_pages(self) -> int:
        """Logical pages of a row."""
        return self.planes * self.page_bytes // PAGE

    @property
    def unit_pages(self) -> int:
        """Logical pages of a program unit."""
        return self.row_pages * self.program_pages

    @property
    def zone_units(self) -> int:
        """Program units in the write buffer of a zone, at most a superblock; 0 if zones share the
        drive's."""
        units = self.superblock_pages // self.unit_pages
        return min(units, self.zone_buffer_bytes // PAGE // self.unit_pages)

    @property
    def superblock_pages(self) -> int:
        """Logical pages of a superblock."""
        return self.group_dies * self.pages * self.row_pages

    @property
    def bits(self) -> int:
        """Bits of a cell."""
        return self.cell_bits or self.program_pages

    @property
    def slc_pages(self) -> int:
        """Logical pages of a superblock in SLC mode, whole program units."""
        units = self.pages // self.program_pages * self.slc_bits // self.bits
        return self.group_dies * self.unit_pages * units

    @property
    def refresh_ns(self) -> int:
        return self.refresh_s * 10**9

    @property
    def reclaim_senses(self) -> int:
        """Reads of rows of a superblock at which it is relocated; 0 for never."""
        return self.reclaim_reads * (self.superblock_pages // self.row_pages)

    @property
    def slc_superblocks(self) -> int:
        """Superblocks that are in SLC mode at most."""
        return -(-self.superblocks * self.slc // 1000)

    @property
    def zone_slc_superblocks(self) -> int:
        """Superblocks of the SLC buffer of zones at most; another one is kept for its reclaim."""
        return -(-self.superblocks * self.zone_slc // 1000) if self.zone_superblocks else 0

    @property
    def slc_unit_ns(self) -> int:
        """Time to program a unit in SLC mode, page after page."""
        return self.slc_program_ns * self.program_pages

    @property
    def slc_erasure_ns(self) -> int:
        """Time to erase a block in SLC mode."""
        return self.erase_ns if self.slc_erase_ns < 0 else self.slc_erase_ns

    @property
    def logical_pages(self) -> int:
        return self.capacity // PAGE

    @property
    def translation_pages(self) -> int:
        """Translation pages of the mapping; 0 if it is in memory."""
        return -(-self.logical_pages // ENTRIES) if self.mapping_cache else 0

    @property
    def cached_pages(self) -> int:
        """Pages that the read cache holds."""
        return min(self.read_cache // PAGE, self.logical_pages)

    @property
    def mapped_pages(self) -> int:
        """All that is on flash: translation pages are numbered behind the host's."""
        return self.logical_pages + self.translation_pages

    @property
    def frontiers(self) -> int:
        """Superblocks that are open at once: of streams, of translation pages, of relocations."""
        return self.streams + 1 + self.relocations

    @property
    def relocations(self) -> int:
        """Superblocks that are open for relocated pages."""
        return self.reclaim_groups * (self.streams if self.isolated else 1)

    @property
    def kept_free(self) -> int:
        """Superblocks that garbage collection frees before they are needed, whatever it takes."""
        reserve = self.reserve * self.reclaim_groups
        return reserve if self.background_invalid else max(reserve, self.background)

    @property
    def other_superblocks(self) -> int:
        """Superblocks of neither data, zones nor the spare: in SLC mode, open, or kept free."""
        slc = self.slc_superblocks + self.zone_slc_superblocks + (self.zone_slc_superblocks > 0)
        return slc + self.frontiers + (self.reserve + 1) * self.reclaim_groups

    @property
    def least_superblocks(self) -> int:
        """Superblocks with which garbage collection always finds something to free."""
        data = -(-(self.mapped_pages - self.zone_pages) // self.superblock_pages)
        return data + self.zone_superblocks + self.other_superblocks

"""The Computational Programs command set: program and memory range management, Execute, log pages.

Opcodes, statuses and log page identifiers are those of NVM Express Base Specification 2.2. The
layouts are those that implementers of the Computational Programs Command Set Specification 1.1
agree on. `UNVERIFIED` lists what only one of them has, or none; each such layout is in one place
of this module, so that a correction changes data here and no code elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Annotated

from nvme_spec.layout import Structure, bits, u8, u16, u32, u64
from nvme_spec.queues import EntryDwords
from potash_wire.packed import Packed
from potash_wire.records import U16, U32, U64, Number
from potash_wire.words import CommandDwords
from potash_wire.words import bits as dwords

UNVERIFIED = {
    "ComputeNamespace": "one implementation",
    "ProgramTypeDescriptor": "one implementation",
    "ProgramListHeader": "one implementation",
    "RangeSetDescriptor": "none; inferred",
    "FIRST_VENDOR_PROGRAM_TYPE": "the standard's value for eBPF is not known",
}
"""Layouts of this module that no two independent implementations confirm, and their basis."""


class ComputeOpcode(IntEnum):
    """I/O commands of a compute namespace; Flush is that of every command set."""

    FLUSH = 0x00
    EXECUTE_PROGRAM = 0x01


# Identify.


class ComputeNamespace(Structure):
    """CNS 05h with CSI 04h. Counts are plain; 0 means that no limit is reported."""

    SIZE = 4096
    maxact = u16(0)
    """Maximum number of active programs."""
    maxmemrs = u16(2)
    """Memory range sets."""
    mrsg = u16(4)
    """Start and length of a range are multiples of 2**mrsg bytes."""
    maxmemr = u8(6)
    """Ranges in a set."""
    maxpb = u64(8)
    """MiB of all programs that are loaded."""
    lpg = u8(16)
    """The size of a program is a multiple of 2**lpg bytes."""


# Commands.


class LoadProgramSelect(IntEnum):
    """SEL of Load Program."""

    LOAD = 0
    UNLOAD = 1


class ProgramIdentifierType(IntEnum):
    """PIT: what PID is."""

    NONE = 0
    PUID = 1
    """Program unique identifier."""


class LoadProgram(CommandDwords):
    """Load Program: one piece. Sizes in bytes, plain."""

    pind: int = dwords(10, 0, 15)
    """Program index."""
    ptype: int = dwords(10, 16, 23, default=0)
    sel: int = dwords(10, 24, default=LoadProgramSelect.LOAD.value)
    pit: int = dwords(10, 25, 27, default=ProgramIdentifierType.NONE.value)
    psize: int = dwords(11, 0, 31, default=0)
    """Size of the whole program in bytes."""
    pid: int = dwords(12, 0, 63, default=0)
    numb: int = dwords(14, 0, 31, default=0)
    """Size of the piece in bytes."""
    loff: int = dwords(15, 0, 31, default=0)
    """Offset of the piece in the program, in bytes."""


class ActivationSelect(IntEnum):
    """SEL of Program Activation Management."""

    DEACTIVATE = 0
    ACTIVATE = 1


class ProgramActivation(CommandDwords):
    """Program Activation Management."""

    pind: int = dwords(10, 0, 15)
    sel: int = dwords(10, 16, 19)


class RangeSetSelect(IntEnum):
    """SEL of Memory Range Set Management."""

    CREATE = 0
    DELETE = 1


class RangeSetManagement(CommandDwords):
    """Memory Range Set Management. Create returns the new RSID in bits 15:0 of dword 0."""

    sel: int = dwords(10, 0, 3)
    rsid: int = dwords(10, 16, 31, default=0)
    """The set that is deleted."""
    numr: int = dwords(11, 0, 7, default=0)
    """Ranges of the set that is created, plain."""


class Execute(EntryDwords):
    """Execute Program: what it has besides the fields of every command.

    Its return value is in dwords 0 and 1 of the completion.
    """

    pind: int = dwords(2, 0, 15)
    rsid: int = dwords(2, 16, 31, default=0)
    """0 is none."""
    numr: int = dwords(3, 0, 31, default=0)
    dlen: int = dwords(4, 0, 31, default=0)
    """Bytes of data, those of the `numr` range descriptors at their beginning included."""
    cparam1: int = dwords(10, 0, 63, default=0)
    cparam2: int = dwords(12, 0, 63, default=0)


MEMORY_RANGE_SIZE = 32


class MemoryRange(Packed, least_size=MEMORY_RANGE_SIZE):
    """Memory range descriptor: memory namespace, length and first byte."""

    nsid: U32
    length: U32
    start: U64


# Log pages 82h, 83h and 84h. Each is of one compute namespace.


class ProgramOccupancy(IntEnum):
    """PEOCC: what is at a program index."""

    EMPTY = 0
    DOWNLOADED = 1
    DEVICE_DEFINED = 2


DEVICE_DEFINED_TYPE = 0x00
"""PTYPE of a program that cannot be loaded."""
FIRST_VENDOR_PROGRAM_TYPE = 0xC0


class ProgramDescriptor(Structure):
    """A program index in the Program List, 64 bytes."""

    SIZE = 64
    peocc = bits(0, 1, 0, 1)
    act = bits(0, 1, 2, 2)
    """The program is activated."""
    pit = bits(0, 1, 3, 5)
    ptype = u8(1)
    pid = u64(8)


class ProgramListHeader(Structure):
    """Log page 82h: a header, then the descriptor of every program index from 0 on."""

    SIZE = 64
    numd = u32(0)


class ProgramTypeDescriptor(Structure):
    """A type in log page 83h, 32 bytes; the rest is specific to the type."""

    SIZE = 32
    ptype = u8(0)
    version = u8(1)


PROGRAM_TYPE_LIST_HEADER_SIZE = 32


class RangeSetDescriptor(Structure):
    """A memory range set in log page 84h, followed by that many memory range descriptors."""

    SIZE = 32
    rsid = u16(0)
    numr = u8(2)


RANGE_SET_LIST_HEADER_SIZE = 32


def encode_program_list(programs: Sequence[ProgramDescriptor]) -> bytes:
    """Log page 82h."""
    return bytes(ProgramListHeader(numd=len(programs))) + b"".join(map(bytes, programs))


def encode_program_types(types: Sequence[ProgramTypeDescriptor]) -> bytes:
    """Log page 83h, Downloadable Program Types List."""
    header = len(types).to_bytes(4, "little").ljust(PROGRAM_TYPE_LIST_HEADER_SIZE, b"\0")
    return header + b"".join(map(bytes, types))


class _RangeSet(Packed, least_size=RangeSetDescriptor.SIZE):
    rsid: U16
    ranges: Annotated[tuple[MemoryRange, ...], Number("B")]


class _RangeSets(Packed, least_size=RANGE_SET_LIST_HEADER_SIZE):
    sets: Annotated[tuple[_RangeSet, ...], Number("I")]


def encode_range_sets(sets: Mapping[int, Iterable[MemoryRange]]) -> bytes:
    """Log page 84h, Memory Range Set List: ranges by RSID."""
    listed = tuple(_RangeSet(rsid, tuple(ranges)) for rsid, ranges in sets.items())
    return _RangeSets(listed).encode()

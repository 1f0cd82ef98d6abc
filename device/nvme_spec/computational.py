"""The Computational Programs command set: program and memory range management, Execute, log pages.

Opcodes, statuses and log page identifiers are those of NVM Express Base Specification 2.2. The
layouts are those that implementers of the Computational Programs Command Set Specification 1.1
agree on. `UNVERIFIED` lists what only one of them has, or none; each such layout is in one place
of this module, so that a correction changes data here and no code elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from nvme_spec.layout import Buffer, Structure, bits, u8, u16, u32, u64
from nvme_spec.queues import SubmissionEntry
from nvme_spec.words import put
from potash_wire.records import U32, U64, Record
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
    """Programs that can be activated at once."""
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
    """The whole program's."""
    pid: int = dwords(12, 0, 63, default=0)
    numb: int = dwords(14, 0, 31, default=0)
    """The piece's."""
    loff: int = dwords(15, 0, 31, default=0)
    """Where in the program the piece begins."""


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


class Execute(NamedTuple):
    """Execute Program: what it has besides the fields of every command.

    CDW2 PIND (15:0), RSID (31:16; 0 is none); CDW3 NUMR; CDW4 DLEN, the bytes of data, those of
    the NUMR range descriptors at their beginning included; CDW10-11 CPARAM1, CDW12-13 CPARAM2. Its
    return value is in dwords 0 and 1 of the completion.
    """

    pind: int
    rsid: int = 0
    numr: int = 0
    dlen: int = 0
    cparam1: int = 0
    cparam2: int = 0

    def fields(self) -> dict[str, int]:
        """Those fields of a `SubmissionEntry` that carry it."""
        first, second = put(self.cparam1, 0, 64), put(self.cparam2, 0, 64)
        return {
            "cdw2": put(self.pind, 0, 16) | put(self.rsid, 16, 16),
            "cdw3": put(self.numr, 0, 32),
            "mptr": put(self.dlen, 0, 32),  # CDW4 is in the place of MPTR, which is not used
            "cdw10": first & 0xFFFF_FFFF,
            "cdw11": first >> 32,
            "cdw12": second & 0xFFFF_FFFF,
            "cdw13": second >> 32,
        }

    @classmethod
    def decode(cls, entry: SubmissionEntry) -> "Execute":
        return cls(
            entry.cdw2 & 0xFFFF,
            entry.cdw2 >> 16,
            entry.cdw3,
            entry.mptr & 0xFFFF_FFFF,
            entry.cdw11 << 32 | entry.cdw10,
            entry.cdw13 << 32 | entry.cdw12,
        )


class MemoryRange(NamedTuple):
    """Memory range descriptor, 32 bytes: memory namespace, length and first byte."""

    nsid: U32
    length: U32
    start: U64

    def encode(self) -> bytes:
        return _MEMORY_RANGES.encode(self)

    @classmethod
    def decode_list(cls, buffer: Buffer) -> Iterator["MemoryRange"]:
        """The ranges in `buffer`; `struct.error` when it is not a whole number of them."""
        return _MEMORY_RANGES.decode_all(buffer)


MEMORY_RANGE_SIZE = 32
_MEMORY_RANGES = Record(MemoryRange, size=MEMORY_RANGE_SIZE)


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


def encode_range_sets(sets: Mapping[int, Iterable[MemoryRange]]) -> bytes:
    """Log page 84h, Memory Range Set List: ranges by RSID."""
    page = len(sets).to_bytes(4, "little").ljust(RANGE_SET_LIST_HEADER_SIZE, b"\0")
    for rsid, ranges in sets.items():
        encoded = b"".join(one.encode() for one in ranges)
        numr = len(encoded) // MEMORY_RANGE_SIZE
        page += bytes(RangeSetDescriptor(rsid=rsid, numr=numr)) + encoded
    return page

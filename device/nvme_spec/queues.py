"""Entries of the submission and completion queues.

NVM Express Base Specification 2.0, sections 3.3.3.1 (submission queue entry) and 3.3.3.2
(completion queue entry). These two are decoded for every command, so they are precompiled
`struct` formats and tuples, not `layout` structures.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, Self

from nvme_spec.layout import Buffer
from potash_wire.words import Dwords

SUBMISSION_ENTRY_SIZE = 64
COMPLETION_ENTRY_SIZE = 16
SUBMISSION_ENTRY_SHIFT = 6
"""CC.IOSQES and the required size in SQES are powers of two."""
COMPLETION_ENTRY_SHIFT = 4
COMPLETION_ENTRY_WORDS = COMPLETION_ENTRY_SIZE // 2
"""16-bit words in an entry: entry i's status word is word `8 * i + 7` of the queue."""
STATUS_WORD_OFFSET = 14
"""Byte offset of the 16-bit word that holds the phase tag and the status field."""

COMMAND_ID = struct.Struct("<H")
COMMAND_ID_OFFSET = 2
"""Byte offset of the command identifier in a submission entry."""

PHASE_BIT = 1 << 0
MORE_BIT = 1 << 14
DNR_BIT = 1 << 15
STATUS_SHIFT = 1
STATUS_MASK = 0x7FF

BROADCAST_NSID = 0xFFFF_FFFF


class Fuse(IntEnum):
    """Fused operation, bits 9:8 of command dword 0."""

    NORMAL = 0
    FIRST = 1
    SECOND = 2
    RESERVED = 3


class Psdt(IntEnum):
    """PRP or SGL for data transfer, bits 15:14 of command dword 0."""

    PRP = 0
    SGL_MPTR_BUFFER = 1
    SGL_MPTR_SEGMENT = 2
    RESERVED = 3


FLAGS_FUSE_MASK = 0x03
FLAGS_PSDT_SHIFT = 6


class SglDescriptorType(IntEnum):
    """Bits 7:4 of the last byte of an SGL descriptor (section 4.1.2)."""

    DATA_BLOCK = 0x0
    BIT_BUCKET = 0x1
    SEGMENT = 0x2
    LAST_SEGMENT = 0x3
    VENDOR_SPECIFIC = 0xF


class SglDescriptorSubType(IntEnum):
    """Bits 3:0 of the last byte of an SGL descriptor (section 4.1.2)."""

    ADDRESS = 0x0
    OFFSET = 0x1


SGL_DESCRIPTOR = struct.Struct("<QI3xB")
"""Address, length, then the identifier byte: type in bits 7:4, sub type in bits 3:0."""


class SubmissionEntry(NamedTuple):
    """One command, 64 bytes (section 3.3.3.1, common command format)."""

    opcode: int
    flags: int = 0
    cid: int = 0
    nsid: int = 0
    cdw2: int = 0
    cdw3: int = 0
    mptr: int = 0
    prp1: int = 0
    prp2: int = 0
    cdw10: int = 0
    cdw11: int = 0
    cdw12: int = 0
    cdw13: int = 0
    cdw14: int = 0
    cdw15: int = 0

    @classmethod
    def decode(cls, buffer: Buffer, offset: int = 0) -> Self:
        """The entry at `offset`; `struct.error` when the buffer ends before it does."""
        return cls._make(_SUBMISSION.unpack_from(buffer, offset))

    def encode(self) -> bytes:
        return _SUBMISSION.pack(*self)

    @property
    def fuse(self) -> Fuse:
        return Fuse(self.flags & FLAGS_FUSE_MASK)

    @property
    def psdt(self) -> Psdt:
        return Psdt(self.flags >> FLAGS_PSDT_SHIFT)

    @property
    def cdws(self) -> tuple[int, int, int, int, int, int]:
        """Command dwords 10 to 15."""
        return self[9:15]


_SUBMISSION = struct.Struct("<BBHIIIQQQIIIIII")


class EntryDwords(Dwords):
    """Fields of one command, of which some are in dwords 2 to 4; MPTR, which it does not use, is
    in dword 4."""

    def fields(self) -> dict[str, int]:
        """The fields of a `SubmissionEntry` that carry it. Raises ValueError if a value does not
        fit."""
        fields: dict[str, int] = (self._functions or self._compile())[0](*self)
        return fields

    @classmethod
    def decode(cls, entry: SubmissionEntry) -> Self:
        return (cls._functions or cls._compile())[1](entry)  # type: ignore[no-any-return]

    @classmethod
    def _compile(cls) -> tuple[Callable[..., Any], Callable[..., Any]]:
        carrying = {2: "cdw2", 3: "cdw3", 4: "mptr"} | {at: f"cdw{at}" for at in range(10, 16)}
        stored = (f"{carrying[dword]!r}: {value}" for dword, value in cls._stored().items())
        values = {dword: f"d.{name}" for dword, name in carrying.items()}
        values[4] = "(d.mptr & 0xFFFFFFFF)"
        cls._functions = cls._encoder(f"{{{', '.join(stored)}}}"), cls._decoder(values)
        return cls._functions


class CompletionEntry(NamedTuple):
    """One completion, 16 bytes (section 3.3.3.2); `status` is `SCT << 8 | SC`."""

    dw0: int = 0
    dw1: int = 0
    sqhd: int = 0
    sqid: int = 0
    cid: int = 0
    status: int = 0
    more: bool = False
    dnr: bool = False
    phase: int = 0

    @classmethod
    def decode(cls, buffer: Buffer, offset: int = 0) -> Self:
        """The entry at `offset`; `struct.error` when the buffer ends before it does."""
        dw0, dw1, sqhd, sqid, cid, word = _COMPLETION.unpack_from(buffer, offset)
        return cls(
            dw0,
            dw1,
            sqhd,
            sqid,
            cid,
            word >> STATUS_SHIFT & STATUS_MASK,
            bool(word & MORE_BIT),
            bool(word & DNR_BIT),
            word & PHASE_BIT,
        )

    def encode(self) -> bytes:
        word = status_word(self.status, phase=self.phase, dnr=self.dnr, more=self.more)
        return _COMPLETION.pack(self.dw0, self.dw1, self.sqhd, self.sqid, self.cid, word)


_COMPLETION = struct.Struct("<IIHHHH")
COMPLETION_BODY = struct.Struct("<QHHH")
"""The first 14 bytes of an entry: dw0 and dw1, sqhd, sqid, cid. They must be stored before the
status word, whose phase tag hands the entry over."""


def status_word(status: int, *, phase: int, dnr: bool = False, more: bool = False) -> int:
    """The last 16 bits of a completion entry."""
    return (
        (status & STATUS_MASK) << STATUS_SHIFT
        | (MORE_BIT if more else 0)
        | (DNR_BIT if dnr else 0)
        | (phase & PHASE_BIT)
    )

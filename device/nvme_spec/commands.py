"""What the standard's commands carry in command dwords 10 to 15.

One tuple for a layout, with `encode()` to the six dwords and `decode()` from them. A decode ignores
reserved bits; an encode raises ValueError for what does not fit. Fields that end in `_z` are 0's
based.

NVM Express Base Specification 2.0, section 5 (each command under its name); NVM Command Set
Specification 1.0, section 3.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from nvme_spec.layout import Buffer
from nvme_spec.words import put as _put

Cdws = tuple[int, int, int, int, int, int]
"""Command dwords 10 to 15."""


class Identify(NamedTuple):
    """Identify: CDW10 CNS (7:0), CNTID (31:16); CDW11 CNS specific identifier (15:0), CSI (31:24).

    CDW14 6:0 is the UUID index.
    """

    cns: int
    cntid: int = 0
    cnssid: int = 0
    csi: int = 0
    uuid_index: int = 0

    def encode(self) -> Cdws:
        return (
            _put(self.cns, 0, 8) | _put(self.cntid, 16, 16),
            _put(self.cnssid, 0, 16) | _put(self.csi, 24, 8),
            0,
            0,
            _put(self.uuid_index, 0, 7),
            0,
        )

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Identify:
        dw10, dw11 = cdws[0], cdws[1]
        return cls(dw10 & 0xFF, dw10 >> 16, dw11 & 0xFFFF, dw11 >> 24, cdws[4] & 0x7F)


class GetLogPage(NamedTuple):
    """Get Log Page: identifier, length, offset and what is specific to the log.

    CDW10 LID (7:0), LSP (14:8), RAE (15), NUMDL (31:16); CDW11 NUMDU (15:0), LSI (31:16); CDW12 and
    CDW13 the offset; CDW14 UUID index (6:0), offset type (23), CSI (31:24).
    """

    lid: int
    numd_z: int
    lsp: int = 0
    rae: bool = False
    lsi: int = 0
    offset: int = 0
    uuid_index: int = 0
    offset_is_index: bool = False
    csi: int = 0

    @property
    def length(self) -> int:
        """Bytes to return."""
        return 4 * (self.numd_z + 1)

    def encode(self) -> Cdws:
        numd = _put(self.numd_z, 0, 32)
        offset = _put(self.offset, 0, 64)
        return (
            _put(self.lid, 0, 8) | _put(self.lsp, 8, 7) | self.rae << 15 | (numd & 0xFFFF) << 16,
            numd >> 16 | _put(self.lsi, 16, 16),
            offset & 0xFFFF_FFFF,
            offset >> 32,
            _put(self.uuid_index, 0, 7) | self.offset_is_index << 23 | _put(self.csi, 24, 8),
            0,
        )

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> GetLogPage:
        dw10, dw11, dw12, dw13, dw14 = cdws[:5]
        return cls(
            lid=dw10 & 0xFF,
            numd_z=(dw11 & 0xFFFF) << 16 | dw10 >> 16,
            lsp=dw10 >> 8 & 0x7F,
            rae=bool(dw10 & 1 << 15),
            lsi=dw11 >> 16,
            offset=dw13 << 32 | dw12,
            uuid_index=dw14 & 0x7F,
            offset_is_index=bool(dw14 & 1 << 23),
            csi=dw14 >> 24,
        )


class CreateIoCompletionQueue(NamedTuple):
    """CDW10 QID (15:0), QSIZE (31:16); CDW11 PC (0), IEN (1), IV (31:16)."""

    qid: int
    qsize_z: int
    pc: bool = True
    ien: bool = True
    iv: int = 0

    def encode(self) -> Cdws:
        dw10 = _put(self.qid, 0, 16) | _put(self.qsize_z, 16, 16)
        return (dw10, self.pc | self.ien << 1 | _put(self.iv, 16, 16), 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> CreateIoCompletionQueue:
        dw10, dw11 = cdws[0], cdws[1]
        return cls(dw10 & 0xFFFF, dw10 >> 16, bool(dw11 & 1), bool(dw11 & 2), dw11 >> 16)


class CreateIoSubmissionQueue(NamedTuple):
    """CDW10 QID (15:0), QSIZE (31:16); CDW11 PC (0), QPRIO (2:1), CQID (31:16); CDW12 NVM set."""

    qid: int
    qsize_z: int
    cqid: int
    pc: bool = True
    qprio: int = 0
    nvmsetid: int = 0

    def encode(self) -> Cdws:
        return (
            _put(self.qid, 0, 16) | _put(self.qsize_z, 16, 16),
            self.pc | _put(self.qprio, 1, 2) | _put(self.cqid, 16, 16),
            _put(self.nvmsetid, 0, 16),
            0,
            0,
            0,
        )

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> CreateIoSubmissionQueue:
        dw10, dw11 = cdws[0], cdws[1]
        return cls(
            qid=dw10 & 0xFFFF,
            qsize_z=dw10 >> 16,
            cqid=dw11 >> 16,
            pc=bool(dw11 & 1),
            qprio=dw11 >> 1 & 3,
            nvmsetid=cdws[2] & 0xFFFF,
        )


class DeleteIoQueue(NamedTuple):
    """Delete I/O Submission Queue and Delete I/O Completion Queue: CDW10 QID (15:0)."""

    qid: int

    def encode(self) -> Cdws:
        return (_put(self.qid, 0, 16), 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> DeleteIoQueue:
        return cls(cdws[0] & 0xFFFF)


class Abort(NamedTuple):
    """CDW10: SQID (15:0) and CID (31:16) of the command to abort."""

    sqid: int
    cid: int

    def encode(self) -> Cdws:
        return (_put(self.sqid, 0, 16) | _put(self.cid, 16, 16), 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Abort:
        return cls(cdws[0] & 0xFFFF, cdws[0] >> 16)


NOT_ABORTED = 1 << 0
"""Bit 0 of dword 0 of Abort's completion: the command was not aborted."""


class SetFeatures(NamedTuple):
    """CDW10 FID (7:0), SV (31); CDW11 what the feature makes of it; CDW14 UUID index (6:0)."""

    fid: int
    value: int = 0
    save: bool = False
    uuid_index: int = 0

    def encode(self) -> Cdws:
        dw10 = _put(self.fid, 0, 8) | self.save << 31
        return (dw10, _put(self.value, 0, 32), 0, 0, _put(self.uuid_index, 0, 7), 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> SetFeatures:
        return cls(cdws[0] & 0xFF, cdws[1], bool(cdws[0] >> 31), cdws[4] & 0x7F)


class GetFeatures(NamedTuple):
    """CDW10 FID (7:0), SEL (10:8); CDW11 what the feature makes of it; CDW14 UUID index (6:0)."""

    fid: int
    select: int = 0
    value: int = 0
    uuid_index: int = 0

    def encode(self) -> Cdws:
        dw10 = _put(self.fid, 0, 8) | _put(self.select, 8, 3)
        return (dw10, _put(self.value, 0, 32), 0, 0, _put(self.uuid_index, 0, 7), 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> GetFeatures:
        return cls(cdws[0] & 0xFF, cdws[0] >> 8 & 7, cdws[1], cdws[4] & 0x7F)


class FirmwareImageDownload(NamedTuple):
    """CDW10 NUMD, 0's based; CDW11 offset in dwords."""

    numd_z: int
    offset: int

    @property
    def length(self) -> int:
        """Bytes of this piece."""
        return 4 * (self.numd_z + 1)

    def encode(self) -> Cdws:
        return (_put(self.numd_z, 0, 32), _put(self.offset, 0, 32), 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> FirmwareImageDownload:
        return cls(cdws[0], cdws[1])


class CommitAction(IntEnum):
    """CA of Firmware Commit: what happens to the image, and when the slot becomes active."""

    REPLACE = 0
    REPLACE_AND_ACTIVATE_AT_RESET = 1
    ACTIVATE_AT_RESET = 2
    REPLACE_AND_ACTIVATE_NOW = 3
    REPLACE_BOOT_PARTITION = 6
    ACTIVATE_BOOT_PARTITION = 7


class FirmwareCommit(NamedTuple):
    """CDW10: firmware slot (2:0), commit action (5:3), boot partition (31)."""

    slot: int
    action: int
    boot_partition: int = 0

    def encode(self) -> Cdws:
        dw10 = _put(self.slot, 0, 3) | _put(self.action, 3, 3) | _put(self.boot_partition, 31, 1)
        return (dw10, 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> FirmwareCommit:
        return cls(cdws[0] & 7, cdws[0] >> 3 & 7, cdws[0] >> 31)


class FormatNvm(NamedTuple):
    """CDW10: LBA format (13:12 and 3:0), MSET (4), PI (7:5), PIL (8), SES (11:9)."""

    lbaf: int
    mset: int = 0
    pi: int = 0
    pil: int = 0
    ses: int = 0

    def encode(self) -> Cdws:
        lbaf = _put(self.lbaf, 0, 6)
        dw10 = lbaf & 0xF | lbaf >> 4 << 12 | _put(self.mset, 4, 1) | _put(self.pi, 5, 3)
        return (dw10 | _put(self.pil, 8, 1) | _put(self.ses, 9, 3), 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> FormatNvm:
        dw10 = cdws[0]
        return cls(
            lbaf=(dw10 >> 12 & 3) << 4 | dw10 & 0xF,
            mset=dw10 >> 4 & 1,
            pi=dw10 >> 5 & 7,
            pil=dw10 >> 8 & 1,
            ses=dw10 >> 9 & 7,
        )


class SecureErase(IntEnum):
    """SES of Format NVM: what becomes of the user data."""

    NONE = 0
    USER_DATA = 1
    CRYPTOGRAPHIC = 2


class NamespaceManagementOperation(IntEnum):
    """SEL of Namespace Management."""

    CREATE = 0
    DELETE = 1


class NamespaceManagement(NamedTuple):
    """CDW10 SEL (3:0); CDW11 CSI (31:24), the command set of a namespace that is created."""

    sel: int
    csi: int = 0

    def encode(self) -> Cdws:
        return (_put(self.sel, 0, 4), _put(self.csi, 24, 8), 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> NamespaceManagement:
        return cls(cdws[0] & 0xF, cdws[1] >> 24)


class NamespaceAttachmentOperation(IntEnum):
    """SEL of Namespace Attachment."""

    ATTACH = 0
    DETACH = 1


class NamespaceAttachment(NamedTuple):
    """CDW10 SEL (3:0)."""

    sel: int

    def encode(self) -> Cdws:
        return (_put(self.sel, 0, 4), 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> NamespaceAttachment:
        return cls(cdws[0] & 0xF)


class SelfTestCode(IntEnum):
    """STC of Device Self-test, and the code of a test in its log."""

    NONE = 0x0
    SHORT = 0x1
    EXTENDED = 0x2
    VENDOR = 0xE
    ABORT = 0xF


class DeviceSelfTest(NamedTuple):
    """CDW10 STC (3:0)."""

    stc: int

    def encode(self) -> Cdws:
        return (_put(self.stc, 0, 4), 0, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> DeviceSelfTest:
        return cls(cdws[0] & 0xF)


class SanitizeAction(IntEnum):
    """SANACT of Sanitize."""

    EXIT_FAILURE_MODE = 1
    BLOCK_ERASE = 2
    OVERWRITE = 3
    CRYPTO_ERASE = 4


class Sanitize(NamedTuple):
    """CDW10: action (2:0), AUSE (3), passes (7:4; 0 for 16), invert between passes (8), NDAS (9).

    CDW11: the pattern of an overwrite.
    """

    sanact: int
    ause: bool = False
    owpass: int = 0
    oipbp: bool = False
    ndas: bool = False
    ovrpat: int = 0

    @property
    def passes(self) -> int:
        """How often an overwrite goes over everything."""
        return self.owpass or 16

    def encode(self) -> Cdws:
        dw10 = _put(self.sanact, 0, 3) | self.ause << 3 | _put(self.owpass, 4, 4)
        return (dw10 | self.oipbp << 8 | self.ndas << 9, _put(self.ovrpat, 0, 32), 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> Sanitize:
        dw10 = cdws[0]
        return cls(
            sanact=dw10 & 7,
            ause=bool(dw10 >> 3 & 1),
            owpass=dw10 >> 4 & 0xF,
            oipbp=bool(dw10 >> 8 & 1),
            ndas=bool(dw10 >> 9 & 1),
            ovrpat=cdws[1],
        )


FUA_BIT = 1 << 30
LIMITED_RETRY_BIT = 1 << 31
DEALLOCATE_BIT = 1 << 25


class ReadWrite(NamedTuple):
    """Read, Write, Compare, Verify, Write Zeroes and Write Uncorrectable.

    CDW10 and CDW11 SLBA; CDW12 NLB (15:0), DTYPE (23:20), DEAC (25, Write Zeroes only), PRINFO
    (29:26), FUA (30), LR (31); CDW13 DSM (7:0).
    """

    slba: int
    nlb_z: int
    fua: bool = False
    lr: bool = False
    deac: bool = False
    prinfo: int = 0
    dtype: int = 0
    dsm: int = 0

    @property
    def blocks(self) -> int:
        return self.nlb_z + 1

    def encode(self) -> Cdws:
        slba = _put(self.slba, 0, 64)
        dw12 = _put(self.nlb_z, 0, 16) | _put(self.dtype, 20, 4) | _put(self.prinfo, 26, 4)
        dw12 |= self.deac << 25 | self.fua << 30 | self.lr << 31
        return (slba & 0xFFFF_FFFF, slba >> 32, dw12, _put(self.dsm, 0, 8), 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> ReadWrite:
        dw12 = cdws[2]
        return cls(
            cdws[1] << 32 | cdws[0],
            dw12 & 0xFFFF,
            bool(dw12 & FUA_BIT),
            bool(dw12 & LIMITED_RETRY_BIT),
            bool(dw12 & DEALLOCATE_BIT),
            dw12 >> 26 & 0xF,
            dw12 >> 20 & 0xF,
            cdws[3] & 0xFF,
        )


READ_WRITE_ENTRY = struct.Struct("<BBHI16xQQQI")
"""What a plain Read or Write says, straight from its 64-byte entry: opcode, flags, command
identifier, namespace, PRP 1 and 2, starting LBA, command dword 12."""
NLB_MASK = 0xFFFF
"""NLB in command dword 12; a dword without other bits asks for nothing but a number of blocks."""


class DatasetManagement(NamedTuple):
    """CDW10 NR (7:0), 0's based; CDW11 IDR (0), IDW (1), AD (2): deallocate."""

    nr_z: int
    idr: bool = False
    idw: bool = False
    ad: bool = False

    @property
    def length(self) -> int:
        """Bytes of the ranges."""
        return DSM_RANGE_SIZE * (self.nr_z + 1)

    def encode(self) -> Cdws:
        return (_put(self.nr_z, 0, 8), self.idr | self.idw << 1 | self.ad << 2, 0, 0, 0, 0)

    @classmethod
    def decode(cls, cdws: Sequence[int]) -> DatasetManagement:
        dw11 = cdws[1]
        return cls(cdws[0] & 0xFF, bool(dw11 & 1), bool(dw11 & 2), bool(dw11 & 4))


class DatasetRange(NamedTuple):
    """A range of Dataset Management, 16 bytes: context attributes, blocks, start."""

    attributes: int
    blocks: int
    slba: int

    def encode(self) -> bytes:
        return _DSM_RANGE.pack(*self)

    @classmethod
    def decode_list(cls, buffer: Buffer) -> Iterator[DatasetRange]:
        """The ranges in `buffer`; `struct.error` when it is not a whole number of them."""
        return map(cls._make, _DSM_RANGE.iter_unpack(buffer))


_DSM_RANGE = struct.Struct("<IIQ")
DSM_RANGE_SIZE = _DSM_RANGE.size

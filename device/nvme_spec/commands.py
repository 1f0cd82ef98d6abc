"""The fields of the standard's commands in command dwords 10 to 15.

Fields that end in `_z` are 0's based.

NVM Express Base Specification 2.0, section 5 (each command under its name); NVM Command Set
Specification 1.0, section 3.2.
"""

import struct
from enum import IntEnum

from potash_wire.packed import Packed
from potash_wire.records import U32, U64
from potash_wire.words import CommandDwords, bits


class Identify(CommandDwords):
    """Identify: `cnssid` is the CNS specific identifier."""

    cns: int = bits(10, 0, 7)
    cntid: int = bits(10, 16, 31, default=0)
    cnssid: int = bits(11, 0, 15, default=0)
    csi: int = bits(11, 24, 31, default=0)
    uuid_index: int = bits(14, 0, 6, default=0)


class GetLogPage(CommandDwords):
    """Get Log Page: identifier, length, offset and what is specific to the log."""

    lid: int = bits(10, 0, 7)
    numd_z: int = bits(10, 16, 47)
    lsp: int = bits(10, 8, 14, default=0)
    rae: bool = bits(10, 15, default=False)
    lsi: int = bits(11, 16, 31, default=0)
    offset: int = bits(12, 0, 63, default=0)
    uuid_index: int = bits(14, 0, 6, default=0)
    offset_is_index: bool = bits(14, 23, default=False)
    csi: int = bits(14, 24, 31, default=0)

    @property
    def length(self) -> int:
        """Bytes to return."""
        return 4 * (self.numd_z + 1)


class CreateIoCompletionQueue(CommandDwords):
    """Create I/O Completion Queue; its memory is at PRP1."""

    qid: int = bits(10, 0, 15)
    qsize_z: int = bits(10, 16, 31)
    pc: bool = bits(11, 0, default=True)
    ien: bool = bits(11, 1, default=True)
    iv: int = bits(11, 16, 31, default=0)


class CreateIoSubmissionQueue(CommandDwords):
    """Create I/O Submission Queue; its memory is at PRP1."""

    qid: int = bits(10, 0, 15)
    qsize_z: int = bits(10, 16, 31)
    cqid: int = bits(11, 16, 31)
    pc: bool = bits(11, 0, default=True)
    qprio: int = bits(11, 1, 2, default=0)
    nvmsetid: int = bits(12, 0, 15, default=0)


class DeleteIoQueue(CommandDwords):
    """Delete I/O Submission Queue and Delete I/O Completion Queue."""

    qid: int = bits(10, 0, 15)


class Abort(CommandDwords):
    """Abort: the queue and the identifier of the command to abort."""

    sqid: int = bits(10, 0, 15)
    cid: int = bits(10, 16, 31)


NOT_ABORTED = 1 << 0
"""Bit 0 of dword 0 of Abort's completion: the command was not aborted."""


class SetFeatures(CommandDwords):
    """Set Features: `value` is CDW11, which is the feature's own."""

    fid: int = bits(10, 0, 7)
    value: int = bits(11, 0, 31, default=0)
    save: bool = bits(10, 31, default=False)
    uuid_index: int = bits(14, 0, 6, default=0)


class GetFeatures(CommandDwords):
    """Get Features: `value` is CDW11, which is the feature's own."""

    fid: int = bits(10, 0, 7)
    select: int = bits(10, 8, 10, default=0)
    value: int = bits(11, 0, 31, default=0)
    uuid_index: int = bits(14, 0, 6, default=0)


class FirmwareImageDownload(CommandDwords):
    """Firmware Image Download: number of dwords, and their offset in dwords."""

    numd_z: int = bits(10, 0, 31)
    offset: int = bits(11, 0, 31)

    @property
    def length(self) -> int:
        """Bytes of this piece."""
        return 4 * (self.numd_z + 1)


class CommitAction(IntEnum):
    """CA of Firmware Commit: what happens to the image, and when the slot becomes active."""

    REPLACE = 0
    REPLACE_AND_ACTIVATE_AT_RESET = 1
    ACTIVATE_AT_RESET = 2
    REPLACE_AND_ACTIVATE_NOW = 3


class FirmwareCommit(CommandDwords):
    """Firmware Commit: `action` is a `CommitAction`, slot 0 the controller's choice."""

    slot: int = bits(10, 0, 2)
    action: int = bits(10, 3, 5)
    boot_partition: int = bits(10, 31, default=0)


class FormatNvm(CommandDwords):
    """Format NVM: the LBA format's index in two parts, metadata, protection, secure erase."""

    lbafl: int = bits(10, 0, 3)
    lbafu: int = bits(10, 12, 13, default=0)
    mset: int = bits(10, 4, default=0)
    pi: int = bits(10, 5, 7, default=0)
    pil: int = bits(10, 8, default=0)
    ses: int = bits(10, 9, 11, default=0)

    @property
    def lbaf(self) -> int:
        """The index of the LBA format."""
        return self.lbafu << 4 | self.lbafl


class SecureErase(IntEnum):
    """SES of Format NVM: what becomes of the user data."""

    NONE = 0
    USER_DATA = 1


class NamespaceManagementOperation(IntEnum):
    """SEL of Namespace Management."""

    CREATE = 0
    DELETE = 1


class NamespaceManagement(CommandDwords):
    """Namespace Management: `csi` is the command set of a namespace that is created."""

    sel: int = bits(10, 0, 3)
    csi: int = bits(11, 24, 31, default=0)


class NamespaceAttachmentOperation(IntEnum):
    """SEL of Namespace Attachment."""

    ATTACH = 0
    DETACH = 1


class NamespaceAttachment(CommandDwords):
    """Namespace Attachment."""

    sel: int = bits(10, 0, 3)


class SelfTestCode(IntEnum):
    """STC of Device Self-test, and the code of a test in its log."""

    NONE = 0x0
    SHORT = 0x1
    EXTENDED = 0x2
    VENDOR = 0xE
    ABORT = 0xF


class DeviceSelfTest(CommandDwords):
    """Device Self-test: `stc` is a `SelfTestCode`."""

    stc: int = bits(10, 0, 3)


class SanitizeAction(IntEnum):
    """SANACT of Sanitize."""

    EXIT_FAILURE_MODE = 1
    BLOCK_ERASE = 2
    OVERWRITE = 3


class Sanitize(CommandDwords):
    """Sanitize: `oipbp` inverts the pattern `ovrpat` of an overwrite between passes."""

    sanact: int = bits(10, 0, 2)
    ause: bool = bits(10, 3, default=False)
    owpass: int = bits(10, 4, 7, default=0)
    oipbp: bool = bits(10, 8, default=False)
    ndas: bool = bits(10, 9, default=False)
    ovrpat: int = bits(11, 0, 31, default=0)

    @property
    def passes(self) -> int:
        """Number of passes of an overwrite."""
        return self.owpass or 16


FUA_BIT = 1 << 30
LIMITED_RETRY_BIT = 1 << 31
DEALLOCATE_BIT = 1 << 25
STORAGE_TAG_CHECK_BIT = 1 << 24


PRACT = 1 << 3
CHECK_GUARD = 1 << 2
CHECK_APPLICATION_TAG = 1 << 1
CHECK_REFERENCE_TAG = 1 << 0
"""Bits of PRINFO (NVM Command Set 1.0, section 2.1.5)."""


class ReadWrite(CommandDwords):
    """Read, Write, Compare, Verify, Write Zeroes, Write Uncorrectable and Zone Append.

    `dtype` and `dspec` are of Write and Zone Append, `deac` of Write Zeroes.
    """

    slba: int = bits(10, 0, 63)
    nlb_z: int = bits(12, 0, 15)
    fua: bool = bits(12, 30, default=False)
    lr: bool = bits(12, 31, default=False)
    deac: bool = bits(12, 25, default=False)
    prinfo: int = bits(12, 26, 29, default=0)
    dtype: int = bits(12, 20, 23, default=0)
    dsm: int = bits(13, 0, 7, default=0)
    stc: bool = bits(12, 24, default=False)
    dspec: int = bits(13, 16, 31, default=0)

    @property
    def blocks(self) -> int:
        return self.nlb_z + 1


READ_WRITE_ENTRY = struct.Struct("<BBHI16xQQQI12x")
"""The fields of a plain Read or Write in its 64-byte entry: opcode, flags, command
identifier, namespace, PRP 1 and 2, starting LBA, command dword 12."""
NLB_MASK = 0xFFFF
"""NLB in command dword 12; a dword without other bits asks for nothing but a number of blocks."""


class DatasetManagement(CommandDwords):
    """Dataset Management: number of ranges; `ad` deallocates them."""

    nr_z: int = bits(10, 0, 7)
    idr: bool = bits(11, 0, default=False)
    idw: bool = bits(11, 1, default=False)
    ad: bool = bits(11, 2, default=False)

    @property
    def length(self) -> int:
        """Bytes of the ranges."""
        return DatasetRange.RECORD.size * (self.nr_z + 1)


class DatasetRange(Packed):
    """A range of Dataset Management, 16 bytes: context attributes, blocks, start."""

    attributes: U32
    blocks: U32
    slba: U64

    @property
    def dsm(self) -> int:
        """The context attributes as the field DSM of a write: access frequency and latency, and
        sequential writes (NVM Command Set 1.0, section 3.2.3)."""
        return self.attributes & 0x3F | (self.attributes >> 9 & 1) << 6

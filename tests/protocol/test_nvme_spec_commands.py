"""Queue entries and command dwords, against literals written from the standard's figures."""

import struct
from typing import Any

import pytest

from nvme_spec import commands
from nvme_spec.opcodes import AdminOpcode, DataDirection, IoOpcode, data_direction
from nvme_spec.queues import CompletionEntry, Fuse, Psdt, SubmissionEntry, status_word
from nvme_spec.status import NvmeError, Status, describe, split

COMMANDS: list[tuple[Any, tuple[int, ...]]] = [
    (commands.Identify(0x12, cntid=3), (0x0003_0012, 0, 0, 0, 0, 0)),
    (commands.Identify(5, cnssid=7, csi=2, uuid_index=1), (5, 0x0200_0007, 0, 0, 1, 0)),
    (commands.GetLogPage(2, 127), (0x007F_0002, 0, 0, 0, 0, 0)),
    (
        commands.GetLogPage(0xC0, 0x2_0003, lsp=5, rae=True, lsi=9, offset=0x1_0000_0004),
        (0x0003_85C0, 0x0009_0002, 4, 1, 0, 0),
    ),
    (
        commands.GetLogPage(5, 0, csi=2, offset_is_index=True, uuid_index=3),
        (5, 0, 0, 0, 0x0280_0003, 0),
    ),
    (commands.CreateIoCompletionQueue(1, 255, iv=1), (0x00FF_0001, 0x0001_0003, 0, 0, 0, 0)),
    (commands.CreateIoCompletionQueue(2, 1, ien=False), (0x0001_0002, 1, 0, 0, 0, 0)),
    (commands.CreateIoSubmissionQueue(1, 255, 1), (0x00FF_0001, 0x0001_0001, 0, 0, 0, 0)),
    (
        commands.CreateIoSubmissionQueue(1, 1, 2, pc=False, qprio=3, nvmsetid=4),
        (0x0001_0001, 0x0002_0006, 4, 0, 0, 0),
    ),
    (commands.DeleteIoQueue(3), (3, 0, 0, 0, 0, 0)),
    (commands.NamespaceManagement(1, csi=2), (1, 0x0200_0000, 0, 0, 0, 0)),
    (commands.NamespaceAttachment(1), (1, 0, 0, 0, 0, 0)),
    (commands.DeviceSelfTest(15), (15, 0, 0, 0, 0, 0)),
    (
        commands.Sanitize(3, ause=True, owpass=5, oipbp=True, ndas=True, ovrpat=0xDEAD_BEEF),
        (0x0000_035B, 0xDEAD_BEEF, 0, 0, 0, 0),
    ),
    (commands.Abort(1, 0x22), (0x0022_0001, 0, 0, 0, 0, 0)),
    (commands.SetFeatures(7, 0x0001_0001, save=True), (0x8000_0007, 0x0001_0001, 0, 0, 0, 0)),
    (commands.GetFeatures(6, select=3, value=1), (0x0000_0306, 1, 0, 0, 0, 0)),
    (commands.FirmwareImageDownload(0x7FFF, 0x8000), (0x7FFF, 0x8000, 0, 0, 0, 0)),
    (commands.FirmwareCommit(2, 3, 1), (0x8000_001A, 0, 0, 0, 0, 0)),
    (commands.FormatNvm(2, 1, mset=1, pi=2, pil=1, ses=1), (0x0000_1352, 0, 0, 0, 0, 0)),
    (commands.ReadWrite(0x1_0000_0002, 7), (2, 1, 7, 0, 0, 0)),
    (commands.ReadWrite(0, 0, fua=True, lr=True, dsm=8), (0, 0, 0xC000_0000, 8, 0, 0)),
    (commands.ReadWrite(0, 1, deac=True, prinfo=0xF, dtype=1), (0, 0, 0x3E10_0001, 0, 0, 0)),
    (commands.DatasetManagement(2, idr=True, idw=True, ad=True), (2, 7, 0, 0, 0, 0)),
]


@pytest.mark.parametrize(("command", "dwords"), COMMANDS)
def test_a_layout_encodes_to_the_figures_dwords(command: Any, dwords: tuple[int, ...]) -> None:
    assert command.encode() == dwords


@pytest.mark.parametrize(("command", "dwords"), COMMANDS)
def test_a_layout_decodes_from_the_figures_dwords(command: Any, dwords: tuple[int, ...]) -> None:
    assert type(command).decode(dwords) == command


@pytest.mark.parametrize(
    "command",
    [
        commands.Identify(0x100),
        commands.GetLogPage(2, 1 << 32),
        commands.GetLogPage(2, 0, offset=1 << 64),
        commands.CreateIoCompletionQueue(0x1_0000, 1),
        commands.CreateIoSubmissionQueue(1, -1, 1),
        commands.ReadWrite(1 << 64, 0),
        commands.ReadWrite(0, 0x1_0000),
        commands.FormatNvm(16),
    ],
)
def test_a_value_that_does_not_fit_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        command.encode()


def test_a_layout_takes_its_own_fields_alone_and_keeps_them() -> None:
    kind: Any = commands.Abort
    for given in ({}, {"sqid": 1}, {"sqid": 1, "cid": 2, "other": 3}):
        with pytest.raises(TypeError, match=r"Abort\(\)"):
            kind(**given)
    with pytest.raises(TypeError, match=r"Abort\(\)"):
        kind(1, 2, 3)
    made = kind(1, cid=2)
    assert repr(made) == "Abort(sqid=1, cid=2)"
    assert made == kind(1, 2) != kind(1, 3) and kind(1, 2) != (1, 2)
    assert {made: 5}[kind(1, 2)] == 5
    with pytest.raises(AttributeError):
        made.sqid = 5
    assert commands.DeleteIoQueue(1) != commands.NamespaceAttachment(1)


def test_lengths_in_bytes_and_blocks() -> None:
    assert commands.GetLogPage(2, 127).length == 512
    assert commands.FormatNvm(2, 1).lbaf == 0x12
    assert commands.FirmwareImageDownload(0x7FFF, 0).length == 131072
    assert commands.ReadWrite(0, 7).blocks == 8
    assert commands.DatasetManagement(2).length == 48


def test_dataset_ranges() -> None:
    data = struct.pack("<IIQIIQ", 1, 8, 0x1_0000_0000, 0, 2, 3)
    ranges = list(commands.DatasetRange.decode_list(data))
    assert ranges == [commands.DatasetRange(1, 8, 1 << 32), commands.DatasetRange(0, 2, 3)]
    assert b"".join(item.encode() for item in ranges) == data


ENTRY = bytes.fromhex(
    "02 41 34 12  01 00 00 00  05 00 00 00  06 00 00 00"
    "00 00 00 00 00 00 00 00   00 10 00 00 00 00 00 00"
    "00 20 00 00 01 00 00 00   0a 00 00 00  0b 00 00 00"
    "0c 00 00 00  0d 00 00 00  0e 00 00 00  0f 00 00 00"
)


def test_a_submission_entry_is_laid_out_as_the_common_command_format() -> None:
    entry = SubmissionEntry.decode(b"\xff" * 64 + ENTRY, 64)
    assert (entry.opcode, entry.cid, entry.nsid) == (2, 0x1234, 1)
    assert (entry.cdw2, entry.cdw3, entry.prp1, entry.prp2) == (5, 6, 0x1000, 0x1_0000_2000)
    assert entry.cdws == (10, 11, 12, 13, 14, 15)
    assert (entry.fuse, entry.psdt) == (Fuse.FIRST, Psdt.SGL_MPTR_BUFFER)
    assert entry.encode() == ENTRY
    with pytest.raises(struct.error):
        SubmissionEntry.decode(ENTRY, 1)


def test_a_completion_entry_is_laid_out_as_its_figure() -> None:
    entry = CompletionEntry(1, 2, sqhd=3, sqid=4, cid=5, status=0x102, dnr=True, phase=1)
    word = 1 << 15 | 1 << 9 | 2 << 1 | 1
    data = struct.pack("<IIHHHH", 1, 2, 3, 4, 5, word)
    assert entry.encode() == data
    assert CompletionEntry.decode(data) == entry
    assert status_word(0, phase=0, more=True) == 1 << 14


def test_opcodes_tell_their_direction() -> None:
    assert data_direction(AdminOpcode.IDENTIFY) is DataDirection.CONTROLLER_TO_HOST
    assert data_direction(IoOpcode.WRITE) is DataDirection.HOST_TO_CONTROLLER
    assert data_direction(IoOpcode.FLUSH) is DataDirection.NONE
    assert data_direction(0xC3) is DataDirection.BIDIRECTIONAL
    documented = {0: "DELETE_IO_SUBMISSION_QUEUE", 0x10: "FIRMWARE_COMMIT", 0x84: "SANITIZE"}
    assert {code: AdminOpcode(code).name for code in documented} == documented


def test_statuses_split_and_describe() -> None:
    assert split(Status.INVALID_LOG_PAGE) == (1, 9)
    assert describe(Status.LBA_OUT_OF_RANGE) == "LBA Out Of Range (SCT 0h, SC 80h)"
    assert describe(0x7C0) == "vendor specific status (SCT 7h, SC C0h)"
    assert describe(0x07F) == "unknown status (SCT 0h, SC 7Fh)"
    error = NvmeError(Status.INVALID_FIELD, detail="CNS 99h")
    assert (error.status, error.dnr) == (2, True)
    assert str(error) == "Invalid Field (SCT 0h, SC 02h): CNS 99h"

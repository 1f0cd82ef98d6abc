"""The dwords of the accelerator commands, against the figures of the platform's documentation."""

from typing import Any

import pytest

from csd_spec import fields
from csd_spec.opcodes import (
    KEEP_ACTIVE_FIRMWARE,
    LOG_PAGE,
    AdminOpcode,
    GlobalOperation,
    IoOpcode,
    Operation,
)
from csd_spec.status import StatusId, VendorStatus, describe

COMMANDS: list[tuple[Any, tuple[int, ...]]] = [
    (fields.GlobalControl(0), (0, 0, 0, 0, 0, 0)),
    (fields.GlobalControl(1), (0, 0, 1, 0, 0, 0)),
    (fields.Identify(4), (4, 0, 0, 0, 0, 0)),
    (fields.GetStatus(8, 2), (8, 0, 2, 0, 0, 0)),
    (fields.GetStatus(1, 0x1234, retain=True), (1, 0, 0x8000_1234, 0, 0, 0)),
    (fields.DataTransfer(0x400, 1), (0x400, 0, 1, 0, 0, 0)),
    (fields.DataTransfer(0x400, 1, 0x2_0000), (0x400, 0, 1, 0, 0x2_0000, 0)),
    (fields.FirmwareTransfer(100, 3, 7), (100, 0, 3, 7, 0, 0)),
    (fields.FirmwareTransfer(100, 3, 7, 9), (100, 0, 3, 7, 9, 0)),
    (fields.LocalStorage(5, 4096, 2), (0, 0, 5, 0, 4096, 2)),
    (fields.LocalStorage(0x1_0000_0002, 1, 2, writable=True), (0, 0, 2, 1, 1, 0x0001_0002)),
    (fields.LocalStorage(6, 1, 2, writable=True, replace=True), (0, 0, 6, 0, 1, 0x0003_0002)),
    (fields.Control(3, 1, 6), (0, 0, 1, 3, 6, 0)),
    (fields.Control(1, 0, 0xFFFF_FFFF, 12), (12, 0, 0, 1, 0xFFFF_FFFF, 0)),
]


@pytest.mark.parametrize(("command", "dwords"), COMMANDS)
def test_a_layout_encodes_to_the_documented_dwords(command: Any, dwords: tuple[int, ...]) -> None:
    assert command.encode() == dwords


@pytest.mark.parametrize(("command", "dwords"), COMMANDS)
def test_a_layout_decodes_from_the_documented_dwords(command: Any, dwords: tuple[int, ...]) -> None:
    assert type(command).decode(dwords) == command


def test_reserved_bits_are_ignored() -> None:
    assert fields.GetStatus.decode((8, 0, 0x7FFF_0002, 0, 0, 0)) == fields.GetStatus(8, 2)
    assert fields.DataTransfer.decode((1, 0xFF, 0xFFFF_0003, 9, 0, 9)) == fields.DataTransfer(1, 3)
    assert fields.LocalStorage.decode(
        (9, 9, 1, 0, 0xFFFF_0002, 0xFFFC_0003)
    ) == fields.LocalStorage(1, 2, 3)


@pytest.mark.parametrize(
    "command",
    [
        fields.GlobalControl(-1),
        fields.Identify(1 << 32),
        fields.GetStatus(8, 0x1_0000),
        fields.DataTransfer(1, 0, 1 << 32),
        fields.FirmwareTransfer(1, 0, -1),
        fields.LocalStorage(1 << 64, 1, 0),
        fields.LocalStorage(0, 0x1_0000, 0),
        fields.Control(0, 0x1_0000),
    ],
)
def test_a_value_that_does_not_fit_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        command.encode()


def test_opcodes_and_operations_have_the_documented_numbers() -> None:
    assert [int(code) for code in AdminOpcode] == [0xC0, 0xC2, 0xC6]
    documented = [0x81, 0x82, 0x85, 0x86, 0x88, 0x8C, 0x91]
    assert [int(code) for code in IoOpcode][:7] == documented
    assert [int(item) for item in Operation] == [0, 1, 2, 3, 4]
    assert (GlobalOperation.ENABLE, GlobalOperation.DISABLE) == (0, 1)
    assert (LOG_PAGE, KEEP_ACTIVE_FIRMWARE) == (0xC0, 0xFFFF_FFFF)


@pytest.mark.parametrize("opcode", list(IoOpcode))
def test_an_opcodes_low_bits_give_its_direction(opcode: IoOpcode) -> None:
    sends = {IoOpcode.SEND_DATA, IoOpcode.SEND_FIRMWARE, IoOpcode.CONTROL}
    receives = {IoOpcode.READ_DATA, IoOpcode.READ_FIRMWARE}
    assert opcode & 3 == (1 if opcode in sends else 2 if opcode in receives else 0)


def test_statuses_are_vendor_specific_ones() -> None:
    assert {status >> 8 for status in VendorStatus} == {7}
    assert [status & 0xFF for status in VendorStatus] == [0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xC5]
    assert [int(item) for item in StatusId] == [0, 1, 2, 3, 4]


def test_every_vendor_status_says_what_it_means() -> None:
    assert len({describe(status) for status in VendorStatus}) == len(VendorStatus)
    assert describe(0x7C0) == "the accelerator subsystem is disabled"
    assert describe(0x7FF) is None
    assert describe(0) is None

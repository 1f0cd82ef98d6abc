"""Registers: offsets, widths and bits from NVM Express Base Specification 2.0, section 3.1.3."""

import pytest

from nvme_spec.registers import (
    Access,
    AdminQueueAttributes,
    Capabilities,
    ControllerConfiguration,
    ControllerStatus,
    Register,
    doorbell_offset,
    register_at,
)

DOCUMENTED = {
    "CAP": (0x00, 8),
    "VS": (0x08, 4),
    "INTMS": (0x0C, 4),
    "INTMC": (0x10, 4),
    "CC": (0x14, 4),
    "CSTS": (0x1C, 4),
    "NSSR": (0x20, 4),
    "AQA": (0x24, 4),
    "ASQ": (0x28, 8),
    "ACQ": (0x30, 8),
    "CMBLOC": (0x38, 4),
    "CMBSZ": (0x3C, 4),
    "BPINFO": (0x40, 4),
    "BPRSEL": (0x44, 4),
    "BPMBL": (0x48, 8),
    "CMBMSC": (0x50, 8),
    "CMBSTS": (0x58, 4),
    "CMBEBS": (0x5C, 4),
    "CMBSWTP": (0x60, 4),
    "NSSD": (0x64, 4),
    "CRTO": (0x68, 4),
    "PMRCAP": (0xE00, 4),
    "PMRCTL": (0xE04, 4),
    "PMRSTS": (0xE08, 4),
    "PMREBS": (0xE0C, 4),
    "PMRSWTP": (0xE10, 4),
    "PMRMSCL": (0xE14, 4),
    "PMRMSCU": (0xE18, 4),
}


def test_every_register_is_where_the_standard_puts_it() -> None:
    assert {item.name: (item.offset, item.width) for item in Register} == DOCUMENTED


def test_no_two_registers_share_a_byte() -> None:
    taken = [at for item in Register for at in range(item.offset, item.offset + item.width)]
    assert len(taken) == len(set(taken))


def test_only_writable_registers_have_accessible_bits() -> None:
    for item in Register:
        assert (item.mask == 0) == (item.access is Access.RO), item
        assert item.mask < 1 << 8 * item.width


@pytest.mark.parametrize(
    ("offset", "name"),
    [(0, "CAP"), (4, "CAP"), (7, "CAP"), (0x14, "CC"), (0x2C, "ASQ"), (0xE19, "PMRMSCU")],
)
def test_a_register_is_found_by_any_of_its_bytes(offset: int, name: str) -> None:
    assert register_at(offset) is Register[name]


@pytest.mark.parametrize("offset", [0x18, 0x6C, 0xE1C, 0x1000])
def test_a_reserved_offset_has_no_register(offset: int) -> None:
    assert register_at(offset) is None


def test_what_a_host_may_write() -> None:
    assert Register.VS.reset == 0x0002_0000
    assert Register.CSTS.access is Access.RW1C
    assert Register.CSTS.mask == 1 << 4  # NSSRO
    assert Register.INTMS.access is Access.RW1S
    assert Register.ASQ.mask == 0xFFFF_FFFF_FFFF_F000
    assert Register.CC.mask == 0x01FF_FFF1  # bits 3:1 and 31:25 are reserved


@pytest.mark.parametrize(
    ("qid", "completion", "dstrd", "offset"),
    [
        (0, False, 0, 0x1000),
        (0, True, 0, 0x1004),
        (1, False, 0, 0x1008),
        (3, True, 0, 0x101C),
        (1, True, 4, 0x10C0),
    ],
)
def test_doorbells_follow_the_formula(qid: int, completion: bool, dstrd: int, offset: int) -> None:
    assert doorbell_offset(qid, completion, dstrd) == offset


def test_capabilities() -> None:
    value = 0x3FF | 1 << 16 | 0x14 << 24 | 2 << 32 | 1 << 36 | 1 << 37 | 1 << 48 | 4 << 52
    cap = Capabilities(mqes_z=0x3FF, cqr=1, to=0x14, dstrd=2, nssrs=1, css=1, mpsmin=1, mpsmax=4)
    assert cap.encode() == value
    assert (Capabilities(value).to, Capabilities(value).mpsmax) == (0x14, 4)
    assert Capabilities(3 << 59 | 1 << 58 | 1 << 57 | 1 << 56) == Capabilities(
        crms=3, nsss=1, cmbs=1, pmrs=1
    )


def test_controller_configuration() -> None:
    # What Linux writes: CSS 0, 4 KiB pages, entries of 64 and 16 bytes, enabled.
    cc = ControllerConfiguration(0x0046_0001)
    assert (cc.en, cc.mps, cc.iosqes, cc.iocqes, cc.shn) == (1, 0, 6, 4, 0)
    assert cc.update(shn=1).encode() == 0x0046_4001
    assert ControllerConfiguration(css=6, mps=1, ams=1, crime=1).encode() == 0x0100_08E0


def test_controller_status() -> None:
    assert ControllerStatus(0x9).shst == 2
    assert ControllerStatus(rdy=1, cfs=1, shst=1, nssro=1, pp=1, st=1).encode() == 0x77


def test_admin_queue_attributes() -> None:
    aqa = AdminQueueAttributes(0x00FF_003F)
    assert (aqa.asqs_z, aqa.acqs_z) == (0x3F, 0xFF)

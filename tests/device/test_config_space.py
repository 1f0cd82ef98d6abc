"""Configuration space as a host finds and writes it."""

import pytest

from potash_device.pcie.config_space import BarLayout, ConfigSpace, PciIdentity
from potash_device.pcie.layout import CONFIG_SPACE_SIZE

BAR = BarLayout(size=0x4000, msix_table=0x2000, msix_pending=0x3000)


@pytest.fixture
def space() -> ConfigSpace:
    return ConfigSpace(PciIdentity(), BAR, vectors=65)


def u16(space: ConfigSpace, offset: int) -> int:
    return int.from_bytes(space.read(offset, 2), "little")


def u32(space: ConfigSpace, offset: int) -> int:
    return int.from_bytes(space.read(offset, 4), "little")


def capabilities(space: ConfigSpace) -> dict[int, int]:
    """Capability identifiers and where they are, by the linked list from 34h."""
    found: dict[int, int] = {}
    at = space.read(0x34, 1)[0]
    while at:
        identifier, following = space.read(at, 2)
        found[identifier] = at
        at = following
    return found


def test_it_is_an_nvme_controller_with_one_64_bit_bar_and_no_intx(space: ConfigSpace) -> None:
    assert space.read(0, 4) == b"\x96\x1b\x10\x00"
    assert space.read(8, 4) == b"\x00\x02\x08\x01"
    assert u32(space, 0x10) == 4
    assert space.read(0x3D, 1) == b"\0"


def test_its_capabilities_are_power_management_express_and_msix(space: ConfigSpace) -> None:
    found = capabilities(space)
    assert set(found) == {0x01, 0x10, 0x11}
    assert u32(space, found[0x10] + 4) & 1 << 28, "function level reset"
    assert u16(space, found[0x11] + 2) == 64, "65 vectors, 0's based"
    assert u32(space, found[0x11] + 4) == 0x2000
    assert u32(space, found[0x11] + 8) == 0x3000


def test_the_bar_answers_sizing_with_its_size(space: ConfigSpace) -> None:
    space.write(0x10, b"\xff" * 8)
    assert u32(space, 0x10) == (~(0x4000 - 1) & 0xFFFFFFFF) | 4
    assert u32(space, 0x14) == 0xFFFFFFFF
    space.write(0x10, (0xFEBD_4000).to_bytes(8, "little"))
    assert u32(space, 0x10) == 0xFEBD_4004


def test_read_only_registers_keep_their_values(space: ConfigSpace) -> None:
    before = space.read(0, CONFIG_SPACE_SIZE)
    space.write(0, b"\xff\xff\xff\xff")
    space.write(0x08, b"\xff\xff\xff\xff")
    space.write(0x34, b"\xff")
    space.write(0x200, b"\xff" * 64)
    assert space.read(0, CONFIG_SPACE_SIZE) == before


def test_commands_bits_are_the_ones_that_a_host_sets(space: ConfigSpace) -> None:
    space.write(4, b"\xff\xff")
    assert u16(space, 4) == 0x0546


def test_a_write_over_the_end_is_cut_off(space: ConfigSpace) -> None:
    space.write(CONFIG_SPACE_SIZE - 1, b"\xff" * 8)
    assert space.read(CONFIG_SPACE_SIZE - 2, 4) == bytes(4)


def test_a_function_level_reset_is_reported_and_forgets_what_was_written(
    space: ConfigSpace,
) -> None:
    resets: list[bool] = []
    space.on_reset = lambda: resets.append(True)
    control = capabilities(space)[0x10] + 8
    space.write(4, b"\x06\x00")
    space.write(control, b"\x10\x28")
    assert resets == []
    space.write(control + 1, b"\x80")
    assert resets == [True]
    assert u16(space, 4) == 0
    assert u16(space, control) & 1 << 15 == 0


@pytest.mark.parametrize(("size", "vectors"), [(0x3000, 1), (8, 1), (0x4000, 0), (0x4000, 2049)])
def test_what_cannot_be_is_refused(size: int, vectors: int) -> None:
    with pytest.raises(ValueError):
        ConfigSpace(PciIdentity(), BarLayout(size, 0, 0), vectors)


def test_msi_stands_beside_msix_where_the_identity_asks_for_it() -> None:
    space = ConfigSpace(PciIdentity(device_id=1, msi_vectors=32), BAR, vectors=65)
    found = capabilities(space)
    assert set(found) == {0x01, 0x05, 0x10, 0x11}
    at = found[0x05]
    assert u16(space, at + 2) == 1 << 7 | 5 << 1, "64-bit addresses, 32 messages"
    space.write(at + 2, b"\xff\xff")
    assert u16(space, at + 2) == 1 << 7 | 7 << 4 | 5 << 1 | 1
    space.write(at + 4, b"\xff" * 10)
    assert space.read(at + 4, 10) == b"\xfc" + b"\xff" * 9
    with pytest.raises(ValueError):
        ConfigSpace(PciIdentity(msi_vectors=3), BAR, vectors=1)

"""The controller memory buffer as a host finds it: registers, BAR 2, addresses, resets.

Offsets and bits: NVM Express Base Specification 2.0, section 3.1.3.1, 3.1.3.11 to 3.1.3.17."""

import fcntl
import struct
from collections.abc import Callable, Iterator

import pytest

from nvme_spec.registers import CmbUse
from potash_device.controller.cmb import CmbMisuse, CmbSettings
from pyvfio_user.memory import AccessFault
from support.nvme_host import BAR0, BAR2, CMBMSC, CONFIG, MEMORY, NSSR, PAGE, Host

SIZE = 2 << 20
CAP, CMBLOC, CMBSZ, CMBSTS = 0x00, 0x38, 0x3C, 0x58
CMBS = 1 << 57
CRE, CMSE = 1, 2
ALL_USES = 0x1F
AT = 1 << 40


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(cmb=CmbSettings(SIZE)) as host:
        yield host


def read64(host: Host, offset: int) -> int:
    return int(struct.unpack("<Q", host.board.region_read(BAR0, offset, 8))[0])


def registers(host: Host) -> tuple[int, int, int]:
    return host.read32(CMBLOC), host.read32(CMBSZ), host.read32(CMBSTS)


LOCATION = 1 << 7 | 1 << 6 | 1 << 5 | 2
"""CDMMMS, CDPCILS and CDPMLS: no restriction on data and lists; BIR is BAR 2."""
SIZES = SIZE // 4096 << 12 | ALL_USES
"""SZU 0: 4 KiB."""


def test_the_registers_are_zero_until_the_host_enables_them(host: Host) -> None:
    assert read64(host, CAP) & CMBS
    assert registers(host) == (0, 0, 0)
    host.write64(CMBMSC, AT | CMSE)  # has no effect without CRE
    assert registers(host) == (0, 0, 0)
    host.write32(CMBMSC, CRE)
    assert registers(host) == (LOCATION, SIZES, 0)
    host.write32(CMBMSC, 0)
    assert registers(host) == (0, 0, 0)


def test_a_device_without_one_has_none_of_it() -> None:
    with Host() as host:
        assert not read64(host, CAP) & CMBS
        host.write64(CMBMSC, AT | CRE | CMSE)
        assert read64(host, CMBMSC) == 0
        assert registers(host) == (0, 0, 0)
        host.board.region_write(CONFIG, 0x18, b"\xff" * 8)
        assert host.board.region_read(CONFIG, 0x18, 8) == bytes(8)
        assert set(host.board.regions) == {BAR0, CONFIG}


def test_what_may_be_in_it_is_in_its_size_register() -> None:
    with Host(cmb=CmbSettings(4096, CmbUse.SQS | CmbUse.WDS)) as host:
        host.write32(CMBMSC, CRE)
        assert host.read32(CMBSZ) == 1 << 12 | 1 << 4 | 1 << 0


@pytest.mark.parametrize("size", [0, 2048, 4096 * 3, 1 << 31])
def test_sizes_that_a_bar_cannot_have(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        CmbSettings(size)


def test_lists_are_only_where_submission_queues_are() -> None:
    with pytest.raises(ValueError, match="submission queues"):
        CmbSettings(4096, CmbUse.LISTS)


def test_bar_2_has_64_bits_is_prefetchable_and_says_its_size(host: Host) -> None:
    """PCI Local Bus Specification 3.0, section 6.2.5.1."""
    assert host.board.region_read(CONFIG, 0x18, 8) == struct.pack("<Q", 0xC)
    host.board.region_write(CONFIG, 0x18, b"\xff" * 8)
    assert host.board.region_read(CONFIG, 0x18, 8) == struct.pack("<q", -SIZE | 0xC)
    assert host.board.regions[BAR2].size == SIZE


def test_it_is_memory(host: Host) -> None:
    assert host.board.region_read(BAR2, 0, SIZE) == bytes(SIZE)
    host.board.region_write(BAR2, SIZE - 3, b"end")
    assert host.board.region_read(BAR2, SIZE - 4, 4) == b"\0end"


def test_its_memory_cannot_be_taken_away_from_the_device(host: Host) -> None:
    """Whoever maps it gets the descriptor, too."""
    assert host.board.cmb is not None
    fd = host.board.cmb.memory.fd
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == seals


@pytest.mark.parametrize(
    ("base", "valid"),
    [
        (0, True),
        (AT, True),
        ((1 << 64) - SIZE, True),
        ((1 << 64) - SIZE + 4096, False),
        ((1 << 64) - 4096, False),
    ],
)
def test_a_base_from_which_it_leaves_the_addresses_is_invalid(
    host: Host, base: int, valid: bool
) -> None:
    host.write64(CMBMSC, base | CRE | CMSE)
    assert host.read32(CMBSTS) == (0 if valid else 1)
    assert read64(host, CMBMSC) == base | CRE | CMSE
    assert host.board.cmb is not None
    assert host.board.cmb.base == (base if valid else None)
    host.write32(CMBMSC, CRE)  # the lower half: memory space is not enabled, so no error either
    assert host.read32(CMBSTS) == 0


def test_a_base_of_two_halves_is_used_when_both_are_there(host: Host) -> None:
    """As Linux writes it: the upper half first."""
    host.write32(CMBMSC, CRE)
    host.write32(CMBMSC + 4, AT >> 32)
    assert host.board.cmb is not None
    assert host.board.cmb.base is None
    host.write32(CMBMSC, CRE | CMSE)
    assert host.board.cmb.base == AT


def engine_views(host: Host, address: int, size: int, write: bool = False) -> list[memoryview]:
    return host.board.dma.pieces(address, size, write=write)


@pytest.fixture
def placed(host: Host) -> Host:
    """In the middle of the host's own memory, which it comes before."""
    host.enable()
    host.place_cmb(PAGE)
    host.memory.view[:] = b"H" * MEMORY
    host.board.region_write(BAR2, 0, b"C" * SIZE)
    return host


def test_addresses_name_it_before_the_hosts_memory(placed: Host) -> None:
    assert bytes(placed.board.dma.views(0, 0, 8, write=False)[0]) == b"H" * 8
    assert bytes(placed.board.dma.views(PAGE, 0, 8, write=False)[0]) == b"C" * 8
    end = PAGE + SIZE
    around = engine_views(placed, PAGE - 4, SIZE + 8)
    assert [len(one) for one in around] == [4, SIZE, 4]
    assert b"".join(around) == b"H" * 4 + b"C" * SIZE + b"H" * 4
    # PRP entries of pages that lie side by side, the first of which is in the buffer.
    found = placed.board.dma.views(end - PAGE, end, 2 * PAGE, write=True)
    assert b"".join(found) == b"C" * PAGE + b"H" * PAGE
    found[0][:4] = b"here"
    assert placed.board.region_read(BAR2, SIZE - PAGE, 4) == b"here"


def test_no_address_names_it_while_its_memory_space_is_not_enabled(placed: Host) -> None:
    placed.write32(CMBMSC, CRE)
    assert b"".join(engine_views(placed, 0, 3 * PAGE)) == b"H" * 3 * PAGE
    placed.write64(CMBMSC, (1 << 64) - PAGE | CRE | CMSE)
    assert b"".join(engine_views(placed, 0, 3 * PAGE)) == b"H" * 3 * PAGE


def test_transfers_that_were_made_before_are_where_the_buffer_is_now(placed: Host) -> None:
    for _ in range(2):
        assert bytes(placed.board.dma.views(PAGE, 0, 8, write=False)[0]) == b"C" * 8
    placed.place_cmb(AT)
    assert bytes(placed.board.dma.views(PAGE, 0, 8, write=False)[0]) == b"H" * 8


def test_a_stopped_engine_does_not_reach_it(placed: Host) -> None:
    placed.disable()
    with pytest.raises(AccessFault):
        engine_views(placed, PAGE, 4)
    placed.enable()
    placed.master(False)
    with pytest.raises(AccessFault):
        engine_views(placed, PAGE, 4)


def test_uses_that_are_not_supported_are_misuse() -> None:
    with Host(cmb=CmbSettings(SIZE, CmbUse.SQS | CmbUse.RDS)) as host:
        host.enable()
        host.place_cmb(AT)
        dma = host.board.dma
        dma.pieces(AT, 4, write=True)
        dma.mapped(AT, 64, write=False, use=CmbUse.SQS)
        for use in (CmbUse.CQS, CmbUse.LISTS, CmbUse(0)):
            with pytest.raises(CmbMisuse):
                dma.mapped(AT, 64, write=False, use=use)
        with pytest.raises(CmbMisuse):
            dma.pieces(AT + SIZE - 4, 8, write=False)


def flr(host: Host) -> None:
    host.board.region_write(CONFIG, 0x88, struct.pack("<H", 1 << 15))


def nssr(host: Host) -> None:
    host.write32(NSSR, 0x4E564D65)
    host.service()


RESETS: dict[str, tuple[Callable[[Host], None], bool, bool]] = {
    "controller": (lambda host: host.disable(), True, True),
    "function level": (flr, True, False),
    "subsystem": (nssr, False, False),
    "slot": (lambda host: host.board.reset(), False, False),
    "client gone": (lambda host: host.board.detached(), False, False),
}
"""What resets; whether CMBMSC keeps its value, and whether the content stays."""


@pytest.mark.parametrize("kind", RESETS)
def test_what_resets_leave_of_it(placed: Host, kind: str) -> None:
    """CMBMSC is kept by a Controller Reset and a Function Level Reset, and by no other.

    Its content is undefined after either; whoever comes after a reset of the function finds none.
    """
    reset, keeps_control, keeps_content = RESETS[kind]
    reset(placed)
    assert read64(placed, CMBMSC) == (PAGE | CRE | CMSE if keeps_control else 0)
    assert registers(placed) == ((LOCATION, SIZES, 0) if keeps_control else (0, 0, 0))
    assert placed.board.region_read(BAR2, 0, 8) == (b"C" * 8 if keeps_content else bytes(8))
    if kind != "client gone":
        placed.enable()
        named = engine_views(placed, PAGE, 4)
        placed.board.region_write(BAR2, 0, b"here")
        assert (b"".join(named) == b"here") is keeps_control


def test_who_had_it_mapped_does_not_see_what_the_next_host_writes(placed: Host) -> None:
    assert placed.board.cmb is not None
    before = placed.board.cmb.memory
    placed.board.detached()
    placed.board.region_write(BAR2, 0, b"secret")
    assert before.bytes[:6] == b"C" * 6


def test_moving_it_waits_for_transfers_that_wait_for_the_host(host: Host) -> None:
    stops = host.board.stops_transfers
    assert stops(BAR0, CMBMSC, bytes(4))
    assert stops(BAR0, CMBMSC + 4, bytes(4))
    assert stops(BAR0, CMBMSC - 4, bytes(8))
    assert not stops(BAR0, CMBMSC - 4, bytes(4))
    assert not stops(BAR0, CMBMSC + 8, bytes(4))
    assert not stops(BAR2, CMBMSC, bytes(4))
    with Host() as other:
        assert not other.board.stops_transfers(BAR0, CMBMSC, bytes(4))

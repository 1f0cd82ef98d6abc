"""The board as a PCI function: what a reset takes back, and what it does for a bus master alone."""

import struct
from collections.abc import Callable, Iterator

import pytest

from potash_device.controller.cmb import NO_USE
from potash_device.pcie.config_space import PciIdentity
from pyvfio_user.memory import AccessFault
from support.nvme_host import BAR0, CC, CONFIG, NSSR, Host

MSIX_TABLE = 0x2000
INTMS, INTMC = 0x0C, 0x10
DEVICE_CONTROL = 0x88


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


def function_level_reset(host: Host) -> None:
    host.board.region_write(CONFIG, DEVICE_CONTROL, struct.pack("<H", 1 << 15))


RESETS: dict[str, Callable[[Host], None]] = {
    "function": function_level_reset,
    "slot": lambda host: host.board.reset(),
    "client gone": lambda host: host.board.detached(),
}
"""Those that reset configuration space, too."""


@pytest.mark.parametrize("kind", RESETS)
def test_a_reset_masks_every_vector_of_the_msix_table(host: Host, kind: str) -> None:
    """And forgets the messages (PCI 3.0, section 6.8.2.9: mask bits are 1 after reset)."""
    table = bytes(12) + b"\1\0\0\0"
    assert host.board.region_read(BAR0, MSIX_TABLE, 5 * 16) == table * 5
    host.board.region_write(BAR0, MSIX_TABLE + 16, struct.pack("<QII", 0xFEE0_0000, 33, 0))
    assert host.board.region_read(BAR0, MSIX_TABLE + 16, 16) == struct.pack(
        "<QII", 0xFEE0_0000, 33, 0
    )
    RESETS[kind](host)
    assert host.board.region_read(BAR0, MSIX_TABLE, 5 * 16) == table * 5


def test_a_reset_of_the_controller_alone_leaves_the_msix_table(host: Host) -> None:
    host.enable()
    host.board.region_write(BAR0, MSIX_TABLE, struct.pack("<QII", 0xFEE0_0000, 33, 0))
    host.disable()
    host.write32(NSSR, 0x4E564D65)
    host.service()
    assert host.read32(MSIX_TABLE) == 0xFEE0_0000


@pytest.mark.parametrize("kind", RESETS)
def test_a_reset_takes_bus_mastering_away(host: Host, kind: str) -> None:
    host.enable()
    RESETS[kind](host)
    assert host.board.region_read(CONFIG, 4, 2) == b"\0\0"
    host.board.dma.start()
    with pytest.raises(AccessFault):
        host.board.dma.mapped(0, 4096, write=False, use=NO_USE)


def test_no_view_of_memory_outlives_bus_mastering(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.command(queue, 0x02, nsid=1)
    host.master(False)
    queues = host.board.queues
    for submission in queues.submissions.values():
        with pytest.raises(AccessFault):
            submission.bind()
    for completion in queues.completions.values():
        with pytest.raises(AccessFault):
            completion.bind()
    host.space.unmap_all()  # raises BufferError where somebody still holds a view


def test_interrupts_wait_for_bus_mastering(host: Host) -> None:
    host.master(False)
    host.board.interrupts.fire(1)
    host.board.interrupts.fire(3)
    assert host.lines.fired == []
    assert host.board.region_read(BAR0, 0x3000, 8) == (0b1010).to_bytes(8, "little")
    host.board.irqs_changed(2)
    assert host.lines.fired == []
    host.master()
    assert sorted(host.lines.fired) == [1, 3]
    assert host.board.region_read(BAR0, 0x3000, 8) == bytes(8)


def test_an_interrupt_sent_just_before_a_pause_is_sent_again(host: Host) -> None:
    """It may be on its way to a host that drops it while bus mastering is off."""
    host.master()
    host.lines.fired.clear()
    host.board.interrupts.fire(2)
    assert host.lines.fired == [2]
    host.master(False)
    host.master()
    assert host.lines.fired == [2, 2]
    host.master(False)
    host.board.interrupts.clear()
    host.master()
    assert host.lines.fired == [2, 2]


def test_a_function_with_msi_has_mask_registers() -> None:
    with Host(identity=PciIdentity(msi_vectors=32)) as host:
        host.enable()
        host.write32(INTMS, 1)
        host.lines.fired.clear()
        host.command(host.admin, 0x06, cdws=(1,))
        assert host.lines.fired == []
        host.write32(INTMC, 1)
        assert host.lines.fired == [0]
        host.write32(INTMS, 2)
        host.write32(CC, 0)
        host.service()
        assert host.read32(INTMS) == 0

"""The controller's life: enable, fail, shut down, and what memory does meanwhile."""

from collections.abc import Iterator

import pytest

from support.nvme_host import (
    ACQ,
    AQA,
    ASQ,
    CC,
    CSTS,
    MEMORY,
    MSIX,
    NSSR,
    Host,
)

ENABLE = 4 << 20 | 6 << 16 | 1


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        yield host


def test_capabilities_are_the_standards_bits(host: Host) -> None:
    """MQES 4095, CQR, TO 60, NSSRS, command set NVM; version 2.0."""
    cap = host.read32(0) | host.read32(4) << 32
    assert cap == 0xFFF | 1 << 16 | 60 << 24 | 1 << 36 | 1 << 37
    assert host.read32(8) == 0x00020000


@pytest.mark.parametrize(
    ("register", "value"),
    [
        (AQA, 0),
        (AQA, 15 << 16),
        (CC, ENABLE | 1 << 4),
        (CC, ENABLE | 1 << 7),
        (CC, ENABLE | 1 << 11),
        (CC, 5 << 20 | 6 << 16 | 1),
        (ASQ, 1 << 40),
        (ACQ, MEMORY - 0),
    ],
)
def test_a_configuration_that_cannot_be_is_fatal_until_a_reset(
    host: Host, register: int, value: int
) -> None:
    host.write32(AQA, 15 << 16 | 15)
    host.write64(ASQ, 0x10_0000)
    host.write64(ACQ, 0x10_4000)
    if register == CC:
        host.write32(CC, value)
    else:
        (host.write32 if register == AQA else host.write64)(register, value)
        host.write32(CC, ENABLE)
    host.service()
    assert host.read32(CSTS) & 3 == 2
    host.disable()
    assert host.read32(CSTS) & 3 == 0
    host.enable()


def test_a_shutdown_completes_when_the_media_is_flushed(host: Host) -> None:
    host.enable()
    host.write32(CC, ENABLE | 1 << 14)
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 1
    host.executor.run_all()
    host.service()
    assert host.read32(CSTS) >> 2 & 3 == 2
    host.place(host.admin, 6, 1, cdws=(1,))
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    host.disable()
    assert host.read32(CSTS) == 0
    host.enable()


def test_ready_waits_for_the_writes_of_the_time_before(host: Host) -> None:
    host.enable()
    queue = host.create_io_queue()
    host.place(queue, 0x01, 1, nsid=1, cdws=(0, 0, 1 << 30))
    host.ring(queue)
    host.service()
    assert host.executor.waiting
    host.disable()
    assert not host.ready
    host.begin_enable()
    host.service()
    assert not host.ready
    host.executor.run_all()
    host.service()
    assert host.ready
    assert host.reap(host.admin) == []


def test_a_subsystem_reset_shows_in_its_status_bit(host: Host) -> None:
    host.enable()
    host.write32(NSSR, 0x12345678)
    host.service()
    assert host.ready
    host.write32(NSSR, 0x4E564D65)
    host.service()
    assert host.read32(CSTS) == 1 << 4
    host.write32(CSTS, 1 << 4)
    assert host.read32(CSTS) == 0
    host.enable()


def test_queue_memory_that_is_gone_is_fatal_and_touches_nothing(host: Host) -> None:
    host.enable()
    host.place(host.admin, 6, 1, cdws=(1,))
    host.space.unmap(0, MEMORY)
    host.board.memory_changed()
    before = bytes(host.memory.view)
    host.ring(host.admin)
    host.service()
    assert host.read32(CSTS) & 3 == 3
    assert bytes(host.memory.view) == before


def test_memory_that_comes_back_elsewhere_is_found_again(host: Host) -> None:
    host.enable()
    host.space.unmap(0, MEMORY)
    host.board.memory_changed()
    half = MEMORY // 2
    for start in (0, half):
        host.space.map(start, half, fd=host.memory.fd, offset=start, readable=True, writable=True)
    host.board.memory_changed()
    assert host.command(host.admin, 6, cdws=(1,)).status == 0


def test_an_interrupt_waits_for_somebody_who_listens(host: Host) -> None:
    host.enable()
    host.lines.listening = False
    host.place(host.admin, 6, 1, cdws=(1,))
    host.ring(host.admin)
    host.service()
    assert host.board.region_read(0, 0x3000, 8) == b"\x01" + bytes(7)
    host.lines.listening = True
    host.board.irqs_changed(MSIX)
    assert host.lines.fired == [0]
    assert host.board.region_read(0, 0x3000, 8) == bytes(8)


def test_a_host_that_leaves_takes_its_session_with_it(host: Host) -> None:
    host.enable()
    host.place(host.admin, 0x0C, 1)
    host.ring(host.admin)
    host.service()
    host.board.detached()
    assert not host.ready
    host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # records the signals
    host.enable()
    assert host.command(host.admin, 6, 1, cdws=(1,)).status == 0

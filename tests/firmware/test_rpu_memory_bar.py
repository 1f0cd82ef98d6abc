"""A memory namespace that a host maps, through BAR 4: the same bytes with and without commands."""

import struct
from collections.abc import Callable, Iterator

import pytest

from support.compute import FakeEngine
from support.memory import COMPUTE, FILL, MEMORY, MIB, log_page, move, powered, read, write
from support.moving import move_drive
from support.nvme_host import BAR4, CONFIG, NSSR, Host

SIZE = 2 * MIB
HOST_ADDRESSABLE_NAMESPACES = 0x85
INVALID_LOG_PAGE = 0x109


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def host(engine: FakeEngine) -> Iterator[Host]:
    with powered(engine=engine, memory_bar=MEMORY) as found:
        yield found


def mapped(host: Host, size: int, start: int = 0) -> bytes:
    return host.board.region_read(BAR4, start, size)


def test_bar_4_has_64_bits_is_prefetchable_and_has_the_namespace_s_size(host: Host) -> None:
    """PCI Local Bus Specification 3.0, section 6.2.5.1."""
    host.board.region_write(CONFIG, 0x20, b"\xff" * 8)
    assert host.board.region_read(CONFIG, 0x20, 8) == struct.pack("<q", -SIZE | 0xC)
    assert host.board.regions[BAR4].size == SIZE
    assert host.board.regions[BAR4].fd is not None


def test_what_commands_write_is_in_the_bar_and_what_is_written_there_is_read(host: Host) -> None:
    write(host, b"A" * 4096, 8192)
    assert mapped(host, 4096, 8192) == b"A" * 4096
    host.board.region_write(BAR4, SIZE - 4, b"here")
    assert read(host, 8, SIZE - 8) == bytes(4) + b"here"
    assert move(host, FILL, 0, SIZE).status == 0
    assert mapped(host, SIZE) == bytes(SIZE)


def test_the_log_page_lists_the_namespace(host: Host) -> None:
    """A header of 16 bytes with their number; NSID, access type (bit 0: BAR), offset."""
    expected = struct.pack("<H14x", 1) + struct.pack("<IB3xQ", MEMORY, 1, 0)
    assert log_page(host, HOST_ADDRESSABLE_NAMESPACES, 64) == expected.ljust(64, b"\0")
    supported = log_page(host, 0, 1024)
    assert supported[4 * HOST_ADDRESSABLE_NAMESPACES] & 1
    assert host.command(host.admin, 0x15, nsid=MEMORY, cdws=(1,)).status == 0  # detach
    assert log_page(host, HOST_ADDRESSABLE_NAMESPACES, 64) == expected.ljust(64, b"\0")


def test_the_log_page_lists_none_that_no_bar_has() -> None:
    with powered() as host:
        assert log_page(host, HOST_ADDRESSABLE_NAMESPACES, 32) == bytes(32)
        host.disable()
        host.css = 0
        host.enable()
        done = host.command(host.admin, 0x02, cdws=(7 << 16 | HOST_ADDRESSABLE_NAMESPACES,))
        assert done.status == INVALID_LOG_PAGE


def test_it_stays_over_a_controller_reset(host: Host) -> None:
    host.board.region_write(BAR4, 0, b"here")
    host.disable()
    host.enable()
    host.create_io_queue()
    assert read(host, 4) == b"here" == mapped(host, 4)


RESETS: dict[str, Callable[[Host], object]] = {
    "function level": lambda host: host.board.region_write(
        CONFIG, 0x88, struct.pack("<H", 1 << 15)
    ),
    "subsystem": lambda host: host.write32(NSSR, 0x4E564D65),
    "slot": lambda host: host.board.reset(),
}


@pytest.mark.parametrize("kind", RESETS)
@pytest.mark.parametrize("by", ["command", "bar"])
def test_who_may_be_another_tenant_finds_zeroes_in_the_same_memory(
    host: Host, kind: str, by: str
) -> None:
    """QEMU has mapped it and asks for it once."""
    fd = host.board.regions[BAR4].fd
    for _ in range(2):
        if by == "command":
            write(host, b"A" * 4096)
        else:
            host.board.region_write(BAR4, 0, b"A" * 4096)
        RESETS[kind](host)
        host.service()
        assert mapped(host, SIZE) == bytes(SIZE)
        host.enable()
        host.create_io_queue()
        assert read(host, 4096) == bytes(4096)
    assert host.board.regions[BAR4].fd == fd
    host.board.region_write(BAR4, 0, b"here")
    assert read(host, 4) == b"here"


def test_a_program_that_ends_after_the_reset_leaves_nothing(host: Host, engine: FakeEngine) -> None:
    ranges = struct.pack("<IIQ16x", MEMORY, 4096, 0)
    host.put(ranges)
    assert host.command(host.admin, 0x88, nsid=COMPUTE, cdws=(1 << 16,)).status == 0
    made = host.command(host.admin, 0x89, nsid=COMPUTE, cdws=(0, 1))
    assert made.status == 0
    host.place(host.io[1], 1, 9, nsid=COMPUTE, first=(made.dw0 << 16, 0))
    host.ring(host.io[1])
    host.service()
    (running,) = engine.asked
    host.board.reset()
    host.begin_enable()
    host.service()
    assert not host.ready, "the program may still write"
    assert host.board.memory_bar is not None
    host.board.memory_bar.memory.bytes[:4] = b"late"
    engine.end(running)
    host.service()
    assert host.ready
    assert mapped(host, 4) == bytes(4)


def test_the_next_host_has_other_memory(host: Host, engine: FakeEngine) -> None:
    assert host.board.memory_bar is not None
    host.board.region_write(BAR4, 0, b"mine")
    before = host.board.memory_bar.memory
    host.board.detached()
    host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # as the host does
    host.service()
    host.enable()
    host.create_io_queue()
    assert read(host, 4096) == bytes(4096)
    write(host, b"secret!!")
    assert mapped(host, 8) == b"secret!!"
    assert before.bytes[:8] == b"mine" + bytes(4)
    assert len(engine.forgotten) == 1, "programs do not see the memory of before"


def test_a_host_is_refused_while_it_would_get_the_memory_of_the_one_before(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(size: int) -> None:
        raise OSError(24, "too many open files")

    host.board.region_write(BAR4, 0, b"mine")
    with monkeypatch.context() as patched:
        patched.setattr("potash_device.pcie.bar_memory.SharedMemory", fails)
        host.board.detached()
        assert mapped(host, 4) == bytes(4)
        with pytest.raises(OSError, match="too many"):
            host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # as above
    with pytest.raises(OSError, match="the one before"):
        host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # as above
    host.board.attached(host.space, host.lines)  # type: ignore[arg-type]  # as above
    host.service()
    host.enable()
    host.create_io_queue()
    write(host, b"next")
    assert mapped(host, 4) == b"next"


def test_a_deleted_namespace_leaves_zeroes_in_the_bar(host: Host) -> None:
    write(host, b"A" * 4096)
    assert host.command(host.admin, 0x0D, nsid=MEMORY, cdws=(1,)).status == 0
    assert mapped(host, 4096) == bytes(4096)
    assert log_page(host, HOST_ADDRESSABLE_NAMESPACES, 32) == bytes(32)
    host.board.region_write(BAR4, 0, b"harmless")
    host.board.reset()
    host.enable()


def test_a_sanitize_operation_leaves_zeroes(host: Host) -> None:
    write(host, b"A" * 4096)
    host.command(host.admin, 0x84, cdws=(2,))
    assert mapped(host, 4096) == bytes(4096)


def test_it_is_moved_with_the_drive(host: Host) -> None:
    """What the other host has mapped stays the same memory."""
    write(host, b"A" * 4096)
    with powered(engine=FakeEngine(), memory_bar=MEMORY) as other:
        fd = other.board.regions[BAR4].fd
        move_drive(host, other)
        assert other.board.regions[BAR4].fd == fd
        assert mapped(other, 8192) == b"A" * 4096 + bytes(4096) == read(other, 8192)

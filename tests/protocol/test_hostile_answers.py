"""What a whole device answers to each kind of attack: one row, one answer, and nothing left
behind."""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from potash_device.media.flash import FLASH_SIZE
from potash_device.media.store import MemoryMedia
from potash_firmware.boot import Device
from support import vfio_user as wire
from support.hostile import (
    ACQ,
    AQA,
    ASQ,
    BAR0,
    CC,
    CONFIG,
    DOORBELLS,
    MEMORY,
    NSSR,
    PAGE,
    Descriptors,
    Frame,
    wait_until,
)
from support.vfio_user import RawClient, command, dma_map, open_descriptors, region_write, set_irqs

CSTS = 0x1C
ENDED = "the connection is ended"
VERSION = Frame(command(wire.VERSION, wire.QEMU_VERSION))

Answer = int | str
"""An errno, 0 for success, or that the connection is ended."""


@pytest.fixture(scope="module")
def descriptors() -> Iterator[Descriptors]:
    with Descriptors() as descriptors:
        yield descriptors


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    media, flash = MemoryMedia.create(1 << 20), MemoryMedia.create(FLASH_SIZE)
    path = wire.socket_path(tmp_path_factory.mktemp("s"))
    with Device(path, {1: media}, flash) as device:
        yield device
    media.close()
    flash.close()


@pytest.fixture
def client(device: Device) -> Iterator[RawClient]:
    """A client that has negotiated; behind it, the device is looked at."""
    logging.getLogger("potash_firmware").setLevel(logging.CRITICAL)
    before = open_descriptors()
    with RawClient(device.server) as client:
        assert ask(device, client, VERSION) == [0]
        yield client
    logging.getLogger("potash_firmware").setLevel(logging.NOTSET)
    wait_until(lambda: not device.server.connected, lambda: device.run_once(timeout=0.01))
    assert not device.board.queues.submissions and not device.board.queues.completions
    assert wire.leaked(before) == {}
    with RawClient(device.server) as following:
        assert ask(device, following, VERSION) == [0]
    wait_until(lambda: not device.server.connected, lambda: device.run_once(timeout=0.01))


def step(device: Device) -> None:
    for _ in range(20):
        device.run_once(timeout=0)


def ask(device: Device, client: RawClient, frame: Frame) -> list[Answer]:
    """What comes of a frame."""
    client.send(frame.data, frame.fds)
    step(device)
    answers: list[Answer] = [reply.error for reply in client.replies()]
    return [*answers, ENDED] if client.disconnected else answers


def read32(device: Device, client: RawClient, offset: int) -> int:
    client.send(command(wire.REGION_READ, struct.pack("<QII", offset, BAR0, 4)))
    step(device)
    (reply,) = client.replies()
    return int.from_bytes(reply.payload[16:], "little")


@dataclass(frozen=True)
class Row:
    """Frames, and the answer to the last of them; the ones before it succeed."""

    name: str
    frames: Callable[[Descriptors], list[Frame]]
    answer: Answer


def mapping(name: str, answer: Answer, **fields: int) -> Row:
    """DMA_MAP of a descriptor by its name."""
    shape = {"address": 0, "size": PAGE} | fields
    return Row(
        f"map {name} {fields or ''}",
        lambda d: [Frame(dma_map(**shape), (d.by_name[name],))],
        answer,
    )


def bare(name: str, data: bytes, answer: Answer) -> Row:
    """One frame without descriptors."""
    return Row(name, lambda d: [Frame(data)], answer)


def whole(address: int, size: int, flags: int = 3) -> Frame:
    """A window of nothing: enough to overlap with."""
    return Frame(dma_map(address, size, flags=flags))


def multi(count: int, *writes: tuple[int, int, int]) -> bytes:
    """REGION_WRITE_MULTI that claims `count` writes of (region, offset, size)."""
    body = [struct.pack("<QII8s", at, region, size, b"\x55" * 8) for region, at, size in writes]
    return command(wire.REGION_WRITE_MULTI, struct.pack("<Q", count) + b"".join(body))


def access(region: int, offset: int, count: int) -> bytes:
    return command(wire.REGION_READ, struct.pack("<QII", offset, region, count))


def eventfds(name: str, count: int, flags: int = 0x24, start: int = 0, claimed: int = -1) -> Row:
    """SET_IRQS of the MSI-X vectors with descriptors."""
    vectors = count if claimed < 0 else claimed
    return Row(
        f"{count} of {name} for {vectors} vectors from {start}, flags {flags:#x}",
        lambda d: [Frame(set_irqs(flags, 2, start, vectors), (d.by_name[name],) * count)],
        0 if (name, flags, claimed) == ("eventfd", 0x24, -1) and start + count <= 65 else 22,
    )


ROWS = [
    # Memory: what it is made of. What cannot be mapped is reached by messages.
    mapping("sealed", 0),
    mapping("sealed", 0, size=MEMORY),
    mapping("unsealed", 0),
    mapping("sealed against growing only", 0),
    mapping("write-sealed", 0),
    mapping("write-sealed", 0, flags=1),
    mapping("read-only", 0),
    mapping("read-only", 0, flags=1),
    mapping("write-only", 0),
    mapping("growing", 0),
    mapping("growing", 0, size=2 * PAGE),
    mapping("empty", 0),
    mapping("huge", errno.ENOSPC),
    *(
        mapping(name, 0)
        for name in ("eventfd", "/dev/null", "/dev/zero", "folder", "path", "epoll")
        + ("pipe's one end", "pipe's other end", "socket's one end")
    ),
    # Memory: where it is.
    mapping("sealed", errno.EINVAL, size=0),
    mapping("sealed", 0, size=MEMORY + 1),
    mapping("sealed", 0, size=MEMORY, offset=1),
    mapping("sealed", 0, offset=(1 << 64) - PAGE),
    mapping("sealed", errno.EINVAL, offset=(1 << 64) - PAGE + 1),
    mapping("sealed", errno.EINVAL, address=(1 << 64) - 1),
    mapping("sealed", 0, address=(1 << 64) - PAGE),
    mapping("sealed", 0, size=(1 << 64) - 1),
    mapping("sealed", 0, flags=15),
    mapping("sealed", errno.EINVAL, flags=16),
    mapping("sealed", 0, flags=0),
    Row("the same twice", lambda d: [whole(0, PAGE), whole(0, PAGE)], errno.EEXIST),
    Row("one in another", lambda d: [whole(0, 4 * PAGE), whole(PAGE, PAGE)], errno.EEXIST),
    Row("one around another", lambda d: [whole(PAGE, PAGE), whole(0, 4 * PAGE)], errno.EEXIST),
    Row("by one byte", lambda d: [whole(0, PAGE), whole(PAGE - 1, PAGE)], errno.EEXIST),
    Row("side by side", lambda d: [whole(0, PAGE), whole(PAGE, PAGE)], 0),
    Row(
        "two descriptors",
        lambda d: [Frame(dma_map(0, PAGE), (d.memory.fd, d.memory.fd))],
        errno.EINVAL,
    ),
    Row("nine descriptors", lambda d: [Frame(dma_map(0, PAGE), (d.memory.fd,) * 9)], ENDED),
    bare("unmap of nothing", command(3, struct.pack("<IIQQ", 24, 0, 0, PAGE)), 0),
    bare("unmap of no bytes", command(3, struct.pack("<IIQQ", 24, 0, 0, 0)), errno.EINVAL),
    Row(
        "unmap of a half",
        lambda d: [whole(0, 2 * PAGE), Frame(command(3, struct.pack("<IIQQ", 24, 0, 0, PAGE)))],
        errno.EINVAL,
    ),
    Row(
        "unmap across two",
        lambda d: [
            whole(0, PAGE),
            whole(PAGE, PAGE),
            Frame(command(3, struct.pack("<IIQQ", 24, 0, 0, 2 * PAGE))),
        ],
        0,
    ),
    bare("unmap of all", command(3, struct.pack("<IIQQ", 24, 2, 0, 0)), 0),
    bare("unmap of all at", command(3, struct.pack("<IIQQ", 24, 2, PAGE, 0)), errno.EINVAL),
    bare("unmap with a bitmap", command(3, struct.pack("<IIQQ", 24, 1, 0, 0)), errno.EINVAL),
    # Interrupts.
    eventfds("eventfd", 1),
    eventfds("eventfd", 8, start=57),
    eventfds("eventfd", 8, start=58),
    eventfds("eventfd", 1, start=0xFFFF_FFFF),
    eventfds("eventfd", 1, claimed=2),
    eventfds("eventfd", 2, claimed=1),
    eventfds("eventfd", 1, claimed=0),
    eventfds("eventfd", 1, flags=0x0C),
    eventfds("eventfd", 1, flags=0x21),
    *(eventfds(name, 1) for name in ("sealed", "/dev/null", "socket's one end", "epoll", "path")),
    bare("all vectors without eventfds", set_irqs(0x24, 2, 0, 65), 0),
    bare("4 G of vectors", set_irqs(0x24, 2, 0, 0xFFFF_FFFF), errno.EINVAL),
    bare("4 G of vectors, triggered", set_irqs(0x21, 2, 1, 0xFFFF_FFFF), errno.EINVAL),
    bare("all disabled, twice over", set_irqs(0x21, 2, 0, 0), 0),
    bare("two kinds of data", set_irqs(0x23, 2, 0, 1, b"\1"), errno.EINVAL),
    bare("two actions", set_irqs(0x31, 2, 0, 1), errno.EINVAL),
    bare("no data", set_irqs(0x20, 2, 0, 1), errno.EINVAL),
    bare("less data than vectors", set_irqs(0x22, 2, 0, 2, b"\1"), errno.EINVAL),
    bare("more data than vectors", set_irqs(0x22, 2, 0, 1, b"\1" * 1000), errno.EINVAL),
    bare("masked MSI-X", set_irqs(0x09, 2, 0, 1), errno.EINVAL),
    bare("INTx", set_irqs(0x24, 0, 0, 1), errno.EINVAL),
    bare("a kind that there is not", set_irqs(0x24, 77, 0, 1), errno.EINVAL),
    bare("mask nothing", set_irqs(0x09, 2, 0, 0), errno.EINVAL),
    Row(
        "more vectors than were set up",
        lambda d: [Frame(set_irqs(0x24, 2, 0, 2)), Frame(set_irqs(0x24, 2, 3, 1))],
        errno.EINVAL,
    ),
    bare(
        "interrupts without an argsz",
        command(wire.SET_IRQS, struct.pack("<IIIII", 0, 0x21, 2, 0, 0)),
        errno.EINVAL,
    ),
    # Regions.
    bare("a read of nothing", access(BAR0, 0, 0), 0),
    bare("a read across the end", access(BAR0, 0x3FFD, 4), errno.EINVAL),
    bare("a read far behind", access(BAR0, (1 << 64) - 4, 4), errno.EINVAL),
    bare("a read of 4 GiB", access(BAR0, 0, 0xFFFF_FFFF), errno.EINVAL),
    bare("a read of a BAR that is not there", access(1, 0, 4), errno.EINVAL),
    bare("a read of region 4 G", access(0xFFFF_FFFF, 0, 4), errno.EINVAL),
    bare("a read of all registers", access(BAR0, 0, 0x4000), 0),
    bare("a read of odd bytes", access(BAR0, 1, 3), 0),
    bare("a write of nothing", region_write(0, b""), 0),
    bare("a write of all registers", region_write(0, b"\xff" * 0x4000), 0),
    bare("a write of all configuration", region_write(0, b"\xff" * 0x1000, region=CONFIG), 0),
    bare("a write across the end", region_write(0x3FFE, b"\xff" * 4), errno.EINVAL),
    bare(
        "a write that is shorter than it says",
        command(wire.REGION_WRITE, struct.pack("<QII", 0, 0, 8) + b"\0" * 4),
        errno.EINVAL,
    ),
    bare("no writes", multi(0), 0),
    bare("201 writes", multi(201, *[(0, CC, 4)] * 201), errno.EINVAL),
    bare("2**64 - 1 writes", multi((1 << 64) - 1, (0, CC, 4)), errno.EINVAL),
    bare("fewer writes than it says", multi(2, (0, AQA, 4)), errno.EINVAL),
    bare("a write of 9 bytes", multi(2, (0, AQA, 4), (0, AQA, 9)), errno.EINVAL),
    bare("a write behind a region", multi(2, (0, AQA, 4), (0, 0x3FFE, 4)), errno.EINVAL),
    bare("a write to no region", multi(2, (0, AQA, 4), (5, 0, 4)), errno.EINVAL),
    # Messages.
    bare("a reset with a payload", command(wire.DEVICE_RESET, b"x"), errno.EINVAL),
    bare("a second version", VERSION.data, errno.ENOTSUP),
    bare("a feature", command(wire.DEVICE_FEATURE, bytes(16)), errno.EINVAL),
    *(bare(f"command {n}", command(n, bytes(16)), errno.ENOTSUP) for n in (0, 11, 12, 14, 99)),
    *(bare(f"info {n}", command(n, bytes(7)), errno.EINVAL) for n in (4, 5, 6, 7)),
    *(bare(f"info {n} without an argsz", command(n, bytes(32)), errno.EINVAL) for n in (4, 5, 7)),
    *(
        bare(f"descriptors {fields}", command(6, struct.pack("<IIII", *fields)), answer)
        for fields, answer in (
            ((4096, 0, BAR0, 0), 0),
            ((15, 0, BAR0, 0), errno.EINVAL),
            ((4096, 1, BAR0, 0), errno.EINVAL),
            ((4096, 0, BAR0, 1), errno.EINVAL),
            ((4096, 0, 0xFFFF_FFFF, 0), errno.EINVAL),
        )
    ),
    bare("a reply", command(9, bytes(16), flags=1), ENDED),
    bare("a type that there is not", command(9, bytes(16), flags=7), ENDED),
    bare("a size below a header's", struct.pack("<HHIII", 1, 9, 15, 0, 0), ENDED),
    bare("a size of 4 GiB", struct.pack("<HHIII", 1, 9, 0xFFFF_FFFF, 0, 0), ENDED),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_kind_of_attack_has_its_answer(
    device: Device, client: RawClient, descriptors: Descriptors, row: Row
) -> None:
    *before, last = row.frames(descriptors)
    for frame in before:
        assert ask(device, client, frame) == [0]
    registers = [read32(device, client, offset) for offset in (AQA, CC)]
    assert ask(device, client, last) == [row.answer]
    if row.answer not in (0, ENDED):
        # What is refused has changed nothing, and the connection goes on.
        assert [read32(device, client, offset) for offset in (AQA, CC)] == registers


def post(device: Device, client: RawClient, *writes: tuple[int, int]) -> None:
    for offset, value in writes:
        client.send(
            region_write(offset, struct.pack("<I", value & 0xFFFF_FFFF), flags=wire.NO_REPLY)
        )
    step(device)


def enable(device: Device, client: RawClient, sq: int, cq: int, entries: int = 16) -> int:
    """Set the admin queues up where they are said to be; CSTS after that."""
    client.send(region_write(4, b"\6\0", region=CONFIG, flags=wire.NO_REPLY))  # bus master
    attributes = (entries - 1) << 16 | (entries - 1)
    registers = ((AQA, attributes), (ASQ, sq), (ASQ + 4, sq >> 32), (ACQ, cq), (ACQ + 4, cq >> 32))
    post(device, client, *registers, (CC, 4 << 20 | 6 << 16 | 1))
    return read32(device, client, CSTS)


READY, FATAL = 1, 2


@pytest.mark.parametrize(
    ("sq", "cq", "status"),
    [
        (0, PAGE, READY),
        (0, 0, READY),  # each on the other: nobody's harm but the host's
        (0x10_0000, PAGE, FATAL),
        (0, 0x10_0000, FATAL),
        (0x20_0000, PAGE, READY),  # a window for reading
        (0, 0x20_0000, FATAL),
        (0x30_0000, PAGE, FATAL),  # a window for writing
        (0, 0x30_0000, READY),
        (0x40_0000, PAGE, READY),  # a window that is reached by messages
        (0, 0x40_0000, READY),
        (0x50_0000, PAGE, FATAL),  # such a window for writing
        (0x60_0000, PAGE, READY),  # such a window for reading
        (0, 0x60_0000, FATAL),
        ((1 << 64) - PAGE, PAGE, FATAL),
        (0xF_F000, 0xF_F000, READY),
        (0, 0x20_0000 - PAGE, FATAL),  # across the end of what is mapped
    ],
)
def test_admin_queues_lie_where_they_can_or_are_fatal(
    device: Device, client: RawClient, descriptors: Descriptors, sq: int, cq: int, status: int
) -> None:
    windows = ((0, MEMORY, 3), (0x20_0000, PAGE, 1), (0x30_0000, PAGE, 2))
    for address, size, flags in windows:
        mapped = Frame(dma_map(address, size, flags=flags), (descriptors.memory.fd,))
        assert ask(device, client, mapped) == [0]
    for address, flags in ((0x40_0000, 3), (0x50_0000, 2), (0x60_0000, 1)):
        assert ask(device, client, whole(address, PAGE, flags)) == [0]
    assert enable(device, client, sq, cq) == status
    post(device, client, (CC, 0))
    assert read32(device, client, CSTS) == 0
    assert enable(device, client, 0, PAGE) == READY


@pytest.mark.parametrize("unmap", ["all", "one"])
def test_queue_memory_that_is_unmapped_is_fatal_when_it_is_used(
    device: Device, client: RawClient, descriptors: Descriptors, unmap: str
) -> None:
    mapped = Frame(dma_map(0, MEMORY), (descriptors.memory.fd,))
    assert ask(device, client, mapped) == [0]
    assert enable(device, client, 0, PAGE) == READY
    fields = (24, 2, 0, 0) if unmap == "all" else (24, 0, 0, MEMORY)
    assert ask(device, client, Frame(command(3, struct.pack("<IIQQ", *fields)))) == [0]
    assert read32(device, client, CSTS) == READY
    post(device, client, (DOORBELLS, 1))
    assert read32(device, client, CSTS) & FATAL
    assert ask(device, client, mapped) == [0]
    post(device, client, (CC, 0))
    assert enable(device, client, 0, PAGE) == READY


def test_a_client_that_does_not_give_its_read_only_memory_loses_its_connection(
    device: Device, client: RawClient, descriptors: Descriptors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to be written by messages, and no message comes that would wake the loop."""
    monkeypatch.setattr("pyvfio_user.dma_messages.REPLY_TIME", 0.05)
    assert ask(device, client, Frame(dma_map(0, MEMORY), (descriptors.memory.fd,))) == [0]
    assert ask(device, client, whole(0x60_0000, PAGE, 1)) == [0]
    assert enable(device, client, 0, PAGE) == READY
    timestamp = struct.pack("<B23xQ8xI20x", 0x09, 0x60_0000, 0x0E)  # Set Features
    descriptors.memory.view[: len(timestamp)] = timestamp
    post(device, client, (DOORBELLS, 1))
    assert not device.server.connected


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (DOORBELLS, 16),
        (DOORBELLS, 0xFFFF_FFFF),
        (DOORBELLS + 4, 1),
        (DOORBELLS + 4, 0xFFFF_FFFF),
        (DOORBELLS + 8, 1),
        (DOORBELLS + 8 * 65, 1),
        (0x1FFC, 1),
    ],
)
def test_a_doorbell_out_of_range_moves_nothing(
    device: Device, client: RawClient, descriptors: Descriptors, offset: int, value: int
) -> None:
    mapped = Frame(dma_map(0, MEMORY), (descriptors.memory.fd,))
    assert ask(device, client, mapped) == [0]
    descriptors.memory.view[PAGE : 2 * PAGE] = bytes(PAGE)
    assert enable(device, client, 0, PAGE) == READY
    post(device, client, (offset, value))
    assert read32(device, client, CSTS) == READY
    assert descriptors.memory.view[PAGE : 2 * PAGE] == bytes(PAGE)


def test_sealed_memory_cannot_be_shrunk_under_the_device(descriptors: Descriptors) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(descriptors.memory.fd, 0)


def test_an_eventfd_that_is_full_or_blocks_holds_nothing_up(
    device: Device, client: RawClient, descriptors: Descriptors
) -> None:
    """Each of 100 unknown commands wants an interrupt; nobody ever reads the eventfd."""
    mapped = Frame(dma_map(0, MEMORY), (descriptors.memory.fd,))
    assert ask(device, client, mapped) == [0]
    full = Frame(set_irqs(0x24, 2, 0, 1), (descriptors.by_name["full eventfd"],))
    assert ask(device, client, full) == [0]
    memory = descriptors.memory.view
    memory[: 2 * PAGE] = bytes(2 * PAGE)
    for slot in range(16):
        memory[64 * slot : 64 * slot + 4] = struct.pack("<BBH", 0x7F, 0, slot)
    assert enable(device, client, 0, PAGE) == READY
    head = 0
    for tail in range(1, 101):
        post(device, client, (DOORBELLS, tail % 16), (DOORBELLS + 4, head))
        head = tail % 16
    # Invalid Opcode with Do Not Retry; the phase is that of the seventh lap.
    assert struct.unpack_from("<H", memory, PAGE + 16 * 3 + 14) == (1 << 15 | 1 << 1 | 1,)
    assert read32(device, client, CSTS) == READY


def test_a_storm_of_resets_ends_with_a_controller_that_can_be_enabled(
    device: Device, client: RawClient, descriptors: Descriptors
) -> None:
    mapped = Frame(dma_map(0, MEMORY), (descriptors.memory.fd,))
    assert ask(device, client, mapped) == [0]
    kinds = (
        command(wire.DEVICE_RESET, flags=wire.NO_REPLY),
        region_write(0x88, struct.pack("<H", 1 << 15), region=CONFIG, flags=wire.NO_REPLY),
        region_write(NSSR, struct.pack("<I", 0x4E564D65), flags=wire.NO_REPLY),
        region_write(CC, struct.pack("<I", 0), flags=wire.NO_REPLY),
        region_write(CC, struct.pack("<I", 4 << 20 | 6 << 16 | 1), flags=wire.NO_REPLY),
    )
    for number in range(2000):
        client.send(kinds[number * 7 % 5 if number % 3 else number % 5])
        if number % 50 == 0:
            step(device)
    step(device)
    post(device, client, (CC, 0))
    assert enable(device, client, 0, PAGE) & ~(1 << 4) == READY

"""CC.EN is cleared, or cleared and set again, at every point of a controller's life."""

import struct
from collections.abc import Callable

import pytest

from potash_device.media.store import MemoryMedia
from support.nvme_host import (
    ACQ,
    ADMIN_CQ,
    ADMIN_SQ,
    AQA,
    ASQ,
    CC,
    CONFIG,
    CSTS,
    DATA,
    IO_QUEUES,
    NSSR,
    PAGE,
    Host,
    Queue,
)

DISABLED = 4 << 20 | 6 << 16
ENABLED = DISABLED | 1
NORMAL, ABRUPT = 1 << 14, 2 << 14
FUA = 1 << 30
SHADOW, EVENTS = DATA + 2 * PAGE, DATA + 3 * PAGE
MEMORY = DATA + 4 * PAGE
CREATE_CQ = (15 << 16 | 1, 1 << 16 | 3)
CREATE_SQ = (15 << 16 | 1, 1 << 16 | 1)


def place(qid: int, opcode: int, cid: int, **fields: object) -> Callable[[Host], None]:
    """A step that stores an entry and rings."""

    def step(host: Host) -> None:
        queue = host.io.setdefault(1, Queue(1, IO_QUEUES, IO_QUEUES + 0x1_0000, 16))
        target = queue if qid else host.admin
        host.place(target, opcode, cid, **fields)  # type: ignore[arg-type]  # fields of `place`
        host.ring(target)

    return step


def serve(host: Host) -> None:
    host.rpu.service()


def work(host: Host) -> None:
    if host.executor.waiting:
        host.executor.run_next()


LIFE: list[Callable[[Host], None]] = [
    lambda host: host.write32(AQA, 15 << 16 | 15),
    lambda host: host.write64(ASQ, ADMIN_SQ),
    lambda host: host.write64(ACQ, ADMIN_CQ),
    lambda host: host.write32(CC, ENABLED),
    serve,
    place(0, 0x0C, 1),
    place(0, 0x05, 2, prp1=IO_QUEUES + 0x1_0000, cdws=CREATE_CQ),
    serve,
    place(0, 0x01, 3, prp1=IO_QUEUES, cdws=CREATE_SQ),
    serve,
    place(0, 0x7C, 4, prp1=SHADOW, prp2=EVENTS),
    serve,
    place(1, 0x01, 5, nsid=1, cdws=(0, 0, FUA)),
    place(1, 0x02, 6, nsid=1),
    place(1, 0x81, 7, cdws=(64,)),
    serve,
    place(1, 0x00, 8, nsid=1),
    serve,
    work,
    serve,
    place(0, 0x00, 9, cdws=(1,)),
    serve,
    work,
    serve,
    place(1, 0x01, 10, nsid=1, cdws=(1, 0, FUA)),
    serve,
    lambda host: host.write32(CC, ENABLED | NORMAL),
    serve,
    work,
    serve,
    work,
    serve,
]
"""From the first register to the end of a shutdown, each step of the host, firmware and media."""


def toggle_at_once(host: Host) -> None:
    """Faster than the firmware looks."""
    host.write32(CC, DISABLED)
    host.write32(CC, ENABLED)


def toggle_a_lot(host: Host) -> None:
    for number in range(50):
        host.write32(CC, (DISABLED, ENABLED, ENABLED | NORMAL, ABRUPT | DISABLED)[number % 4])
        if number % 7 == 0:
            serve(host)


ENDS: dict[str, Callable[[Host], None]] = {
    "cleared": lambda host: host.write32(CC, DISABLED),
    "cleared and set": toggle_at_once,
    "cleared in a shutdown": lambda host: host.write32(CC, NORMAL | DISABLED),
    "set in an abrupt shutdown": lambda host: host.write32(CC, ENABLED | ABRUPT),
    "toggled a lot": toggle_a_lot,
    "subsystem reset": lambda host: host.write32(NSSR, 0x4E564D65),
    "function level reset": lambda host: host.board.region_write(
        CONFIG, 0x88, struct.pack("<H", 1 << 15)
    ),
}


@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("cut", range(len(LIFE) + 1))
def test_a_life_that_is_cut_short_leaves_nothing_to_the_next(cut: int, end: str) -> None:
    with Host({1: MemoryMedia.create(1 << 20)}, memory=MEMORY) as host:
        host.connect_apu()
        for step in LIFE[:cut]:
            step(host)
        ENDS[end](host)
        host.service()
        host.disable()
        assert not host.ready
        quiet = bytes(host.memory.view)
        host.lines.fired.clear()
        while host.executor.waiting:  # what is written, and the flush that a shutdown has behind it
            host.executor.run_all()
            host.service()
        assert bytes(host.memory.view) == quiet, "memory changed though RDY is 0"
        assert host.lines.fired == []
        host.enable()
        assert host.read32(CSTS) & ~(1 << 4) == 1  # NSSRO alone may be left of the time before
        queue = host.create_io_queue()
        host.put(b"\x5a" * PAGE)
        assert host.command(queue, 0x01, 11, nsid=1, cdws=(7, 0, FUA)).status == 0
        host.clear(DATA, PAGE)
        assert host.command(queue, 0x02, 12, nsid=1, cdws=(7,)).status == 0
        assert host.data(PAGE) == b"\x5a" * PAGE
        assert len(host.rpu.controller.outstanding) == 0
        assert not host.rpu.controller.media_work.unfinished

"""Commands with queues, lists and data in the controller memory buffer."""

import os
import struct
from collections.abc import Iterator

import pytest

from nvme_spec.registers import CmbUse
from potash_device.controller.cmb import EVERY_USE, CmbSettings
from support.moving import move_drive
from support.nvme_host import ACQ, AQA, ASQ, BAR2, CC, CMBMSC, DATA, PAGE, Host, Queue

SIZE = 2 << 20
AT = 1 << 40
SQ, CQ = AT, AT + 0x1_0000
LIST, BUFFER = AT + 0x4_0000, AT + 0x8_0000

WRITE, READ, IDENTIFY, SANITIZE = 1, 2, 6, 0x84
DATA_TRANSFER_ERROR, INVALID_USE = 0x04, 0x12
SGL_BLOCK, SGL_LAST_SEGMENT = 0x00, 0x30


def powered(uses: CmbUse = EVERY_USE, *, at: int = AT) -> Host:
    host = Host(cmb=CmbSettings(SIZE, uses))
    host.enable()
    host.place_cmb(at)
    return host


@pytest.fixture
def host() -> Iterator[Host]:
    with powered() as host:
        yield host


def round_trip(host: Host, queue: Queue, written: int, read: int, **fields: int) -> None:
    """Eight blocks to the drive from `written` and back to `read`, by PRPs."""
    content = os.urandom(8 * PAGE)
    host.put(content, written)
    for at, opcode in ((written, WRITE), (read, READ)):
        host.put(struct.pack("<7Q", *range(at + PAGE, at + 8 * PAGE, PAGE)), LIST)
        done = host.command(queue, opcode, nsid=1, prp1=at, prp2=LIST, cdws=(0, 0, 7))
        assert done.status == 0
    assert host.data(8 * PAGE, read) == content


@pytest.mark.parametrize("queues", [SQ, 0x12_0000], ids=["queues in it", "queues in memory"])
@pytest.mark.parametrize(
    ("written", "read"), [(BUFFER, DATA), (DATA, BUFFER), (BUFFER, BUFFER + 8 * PAGE)]
)
def test_blocks_go_through_it(host: Host, queues: int, written: int, read: int) -> None:
    queue = host.create_io_queue(base=queues)
    for _ in range(10):  # more commands than entries, so that the queues wrap
        round_trip(host, queue, written, read)


def test_both_admin_queues_are_in_it(host: Host) -> None:
    host.disable()
    host.write32(AQA, 15 << 16 | 15)
    host.write64(ASQ, SQ)
    host.write64(ACQ, CQ)
    host.write32(CC, 4 << 20 | 6 << 16 | 1)
    host.service()
    assert host.ready
    queue = host.admin = Queue(0, SQ, CQ, 16)
    host.clear(CQ, 256)
    assert host.command(queue, IDENTIFY, prp1=BUFFER, cdws=(1,)).status == 0
    assert host.data(2, BUFFER) == b"\x96\x1b"
    host.create_io_queue(1, base=AT + 0x2_0000)


def test_an_sgl_in_it_describes_data_in_it_and_beside_it(host: Host) -> None:
    queue = host.create_io_queue(base=SQ)
    content = os.urandom(PAGE)
    host.put(content[:1000], BUFFER + 1)
    host.put(content[1000:], DATA)
    entries = ((BUFFER + 1, 1000, SGL_BLOCK), (DATA, PAGE - 1000, SGL_BLOCK))
    host.put(b"".join(struct.pack("<QI3xB", *entry) for entry in entries), LIST)
    low, high = struct.unpack("<QQ", struct.pack("<QI3xB", LIST, 32, SGL_LAST_SEGMENT))
    for opcode in (WRITE, READ):
        done = host.command(queue, opcode, nsid=1, prp1=low, prp2=high, flags=1 << 6)
        assert done.status == 0
        if opcode == WRITE:
            host.clear(BUFFER + 1, 1000)
            host.clear(DATA, PAGE - 1000)
    assert host.data(1000, BUFFER + 1) + host.data(PAGE - 1000) == content


@pytest.mark.parametrize(
    ("prp1", "prp2", "list_at", "missing"),
    [
        (BUFFER, DATA, DATA, CmbUse.WDS),
        (DATA, BUFFER, DATA, CmbUse.WDS),
        (DATA, LIST, LIST, CmbUse.LISTS),
    ],
)
@pytest.mark.parametrize("sgl", [False, True])
def test_data_and_lists_that_may_not_be_in_it(
    prp1: int, prp2: int, list_at: int, missing: CmbUse, sgl: bool
) -> None:
    blocks = 3 if list_at == LIST else 2
    with powered(EVERY_USE & ~missing) as host:
        queue = host.create_io_queue()
        flags = 0
        if sgl:
            entries = [(page, PAGE, SGL_BLOCK) for page in (prp1, prp2 if blocks == 2 else DATA)]
            at = LIST if blocks == 3 else DATA + 0x1_0000
            host.put(b"".join(struct.pack("<QI3xB", *entry) for entry in entries), at)
            descriptor = struct.pack("<QI3xB", at, 32, SGL_LAST_SEGMENT)
            prp1, prp2 = struct.unpack("<QQ", descriptor)
            flags, blocks = 1 << 6, 2
        else:
            host.put(struct.pack("<2Q", DATA, DATA), list_at)
        fields = {"nsid": 1, "prp1": prp1, "prp2": prp2, "flags": flags}
        done = host.command(queue, WRITE, cdws=(0, 0, blocks - 1), **fields)
        assert (done.status, done.dnr) == (INVALID_USE, True)
        reads = host.command(queue, READ, cdws=(0, 0, blocks - 1), **fields).status
        assert reads == (INVALID_USE if missing is CmbUse.LISTS else 0)


def create(host: Host, opcode: int, base: int, entries: int) -> int:
    """The status of Create I/O Completion Queue (5) or Create I/O Submission Queue (1)."""
    queue = (1 << 16 if opcode == 1 else 0) | 1
    size = (entries - 1) << 16 | (1 if opcode == 5 else 2)
    return host.command(host.admin, opcode, prp1=base, cdws=(size, queue)).status


@pytest.mark.parametrize("missing", [CmbUse.SQS | CmbUse.LISTS, CmbUse.CQS])
def test_queues_that_may_not_be_in_it(missing: CmbUse) -> None:
    with powered(EVERY_USE & ~missing) as host:
        wrong = missing & CmbUse.CQS
        assert create(host, 5, CQ, 16) == (INVALID_USE if wrong else 0)
        if wrong:
            assert create(host, 5, 0x12_0000, 16) == 0
        assert create(host, 1, SQ, 16) == (0 if wrong else INVALID_USE)


@pytest.mark.parametrize(("opcode", "entry"), [(5, 16), (1, 64)])
@pytest.mark.parametrize("at", ["start", "end"])
def test_a_queue_is_in_it_as_a_whole_or_not_at_all(opcode: int, entry: int, at: str) -> None:
    """CMBLOC.CQMMS is 0. The host's memory is on both of its sides."""
    entries = 2 * PAGE // entry
    base = 0x18_0000
    with powered(at=base) as host:
        host.cmb_at = None
        if opcode == 1:
            assert create(host, 5, 0x2000, 16) == 0
        crossing = base - PAGE if at == "start" else base + SIZE - PAGE
        assert create(host, opcode, crossing, entries) == INVALID_USE
        assert create(host, opcode, base + SIZE - 2 * PAGE, entries) == 0


def test_shadow_doorbells_cannot_be_in_it(host: Host) -> None:
    assert host.command(host.admin, 0x7C, prp1=BUFFER, prp2=DATA).status == INVALID_USE
    assert host.command(host.admin, 0x7C, prp1=DATA, prp2=DATA + PAGE).status == 0


def test_an_admin_queue_that_may_not_be_in_it_is_fatal() -> None:
    with powered(CmbUse.RDS) as host:
        host.disable()
        host.write64(ASQ, SQ)
        host.write32(CC, 4 << 20 | 6 << 16 | 1)
        host.service()
        assert host.fatal
        assert not host.ready
        host.disable()
        host.enable()


@pytest.mark.parametrize("control", [0, 1, (1 << 64) - PAGE | 3], ids=["off", "CRE", "invalid"])
def test_a_live_queue_that_loses_it_is_fatal_until_a_reset(host: Host, control: int) -> None:
    queue = host.create_io_queue(base=SQ)
    round_trip(host, queue, DATA, DATA + 0x2_0000)
    host.place(queue, READ, 7, nsid=1)
    host.write64(CMBMSC, control)
    host.ring(queue)
    host.service()
    assert host.fatal
    host.disable()
    host.enable()
    host.place_cmb(AT)
    round_trip(host, host.create_io_queue(base=SQ), BUFFER, DATA)


def test_a_queue_follows_it_to_its_new_place(host: Host) -> None:
    """Its address stays, and names the buffer from now on."""
    queue = host.create_io_queue()
    assert host.command(queue, READ, nsid=1).status == 0
    host.place_cmb(queue.sq)
    host.clear(queue.cq, 256)
    assert host.command(queue, READ, nsid=1).status == 0


def test_it_is_used_as_before_after_a_controller_reset(host: Host) -> None:
    round_trip(host, host.create_io_queue(base=SQ), BUFFER, DATA)
    host.disable()
    host.enable()
    round_trip(host, host.create_io_queue(base=SQ), BUFFER, DATA)


def test_a_sanitize_operation_leaves_its_queues_alone(host: Host) -> None:
    queue = host.create_io_queue(base=SQ + PAGE)
    round_trip(host, queue, BUFFER, BUFFER + 8 * PAGE)
    for at in (AT, queue.sq - 6, queue.sq + 16 * 64, queue.cq - 6, AT + SIZE - 6):
        host.put(b"secret", at)
    queues = [host.data(16 * 64, queue.sq), host.data(16 * 16, queue.cq)]
    host.place(host.admin, SANITIZE, 7, cdws=(2,))
    host.ring(host.admin)
    host.service()
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    assert [each.status for each in host.reap(host.admin)] == [0]
    assert [host.data(16 * 64, queue.sq), host.data(16 * 16, queue.cq)] == queues
    left = host.data(SIZE, AT)
    for content in queues:
        left = left.replace(content, b"", 1)
    assert not any(left)
    round_trip(host, queue, BUFFER, BUFFER + 8 * PAGE)


def test_data_at_addresses_of_nobody_is_still_an_error(host: Host) -> None:
    queue = host.create_io_queue(base=SQ)
    for prp1 in (AT + SIZE, AT - PAGE):
        done = host.command(queue, READ, nsid=1, prp1=prp1, cdws=(0, 0, 0))
        assert done.status == DATA_TRANSFER_ERROR
    crossing = {"prp1": AT + SIZE - PAGE, "prp2": AT + SIZE}
    done = host.command(queue, READ, nsid=1, cdws=(0, 0, 1), **crossing)
    assert done.status == DATA_TRANSFER_ERROR


def test_it_is_moved_with_the_drive(host: Host) -> None:
    """Its content, and where commands name it; what the other host has mapped stays that."""
    queue = host.create_io_queue(base=SQ)
    for _ in range(10):
        round_trip(host, queue, BUFFER, BUFFER + 8 * PAGE)
    content = host.data(8 * PAGE, BUFFER)
    with Host(cmb=CmbSettings(SIZE)) as other:
        fd = other.board.regions[BAR2].fd
        move_drive(host, other)
        assert other.board.regions[BAR2].fd == fd
        assert other.data(8 * PAGE, BUFFER) == content
        round_trip(other, queue, BUFFER, DATA)

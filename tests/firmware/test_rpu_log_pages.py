"""Get Log Page: what may be asked, in which pieces, and the status of what may not."""

import itertools
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.mailbox.messages import Reply, Request
from support.nvme_host import DATA, PAGE, Host

GET_LOG, IDENTIFY = 0x02, 0x06


def get(host: Host, lid: int, size: int, offset: int = 0) -> bytes:
    """`size` bytes of a log page, retaining its event."""
    numd_z = size // 4 - 1
    cdws = (numd_z << 16 | 1 << 15 | lid, numd_z >> 16, offset & 0xFFFFFFFF, offset >> 32)
    assert host.command(host.admin, GET_LOG, cdws=cdws).status == 0
    return host.data(size)


def test_the_page_of_pages_names_exactly_what_is_answered(host: Host) -> None:
    """Every identifier is tried (section 5.16.1.1): LSUPP is bit 0."""
    host.connect_apu()
    page = get(host, 0, 1024)
    supported = [lid for lid in range(256) if page[4 * lid] & 1]
    for lid in set(range(256)) - {0xC0}:  # that one is the APU's to answer
        status = host.command(host.admin, GET_LOG, cdws=(1 << 15 | lid,)).status
        assert (status != 0x109) == (lid in supported), hex(lid)
    assert 0xC0 in supported
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    assert host.data(1, DATA + 261)[0] & 1 << 5  # LPA: the page itself


@pytest.mark.parametrize(
    ("nsid", "cdws", "status"),
    [
        (0, (2, 0, 0, 0, 1), 0x002),  # a UUID index, and no list of UUIDs
        (0, (2, 0, 0, 0, 1 << 23), 0x002),  # an offset in structures, of a page without any
        (0, (2, 0, 6), 0x002),
        (0, (2, 0, 516), 0x002),  # behind the page's 512 bytes
        (0, (2, 0, 512), 0x000),  # at its end
        (0, (2, 0, 0, 1), 0x002),
        (7, (1,), 0x002),  # Not active.
        (0xFFFFFFFE, (3,), 0x00B),  # No namespace's.
        (0xFFFFFFFF, (5,), 0x000),
        (0, (1, 2), 0x002),  # half a megabyte and a dword
    ],
)
def test_a_field_that_cannot_be_has_its_status(
    host: Host, nsid: int, cdws: tuple[int, ...], status: int
) -> None:
    answer = host.command(host.admin, GET_LOG, nsid=nsid, cdws=cdws)
    assert (answer.status, answer.dnr) == (status, status != 0)


def test_a_namespace_may_be_named_where_the_page_is_of_the_controller(host: Host) -> None:
    """Of the pages of any drive; smartctl reads 06h so on a namespace's device."""
    for lid in (0, 1, 2, 3, 4, 5, 6, 7, 8, 0x0E, 0x12, 0x81, 0xC1):
        cdws = (127 << 16 | 1 << 15 | lid,)
        pages = []
        for nsid in (0, 1, 0xFFFFFFFF):
            assert host.command(host.admin, GET_LOG, nsid=nsid, cdws=cdws).status == 0
            pages.append(host.data(512))
        assert pages == [pages[0]] * 3, hex(lid)


def test_what_is_behind_a_page_reads_as_zeroes(host: Host) -> None:
    host.put(b"\xff" * PAGE)
    assert get(host, 3, 1024)[512:] == bytes(512)
    assert host.data(4, DATA + 1024) == b"\xff" * 4


# The error log.


def errors(host: Host) -> list[tuple[int, ...]]:
    """Count, SQID, CID, status field, location, LBA and NSID of each entry, the newest first."""
    page = get(host, 1, 64 * 64)
    entries = [struct.unpack_from("<QHHHHQI", page, at) for at in range(0, len(page), 64)]
    return [entry for entry in entries if entry[0]]


def test_an_entry_says_which_parameter_was_wrong(host: Host) -> None:
    """Byte 7:0 and bit 10:8 of the command (section 5.16.1.2, figure 206)."""
    queue = host.create_io_queue()
    host.command(queue, 0x02, 1, nsid=1, cdws=(7, 1))  # LBA 1_0000_0007h
    host.command(queue, 0x02, 2, nsid=0xFFFFFFFE)
    host.command(queue, 0x7F, 3)
    host.command(host.admin, IDENTIFY, 4, cdws=(1,), flags=0x40)  # a question: no entry
    host.command(host.admin, 0x09, 5, cdws=(2,), flags=0x40)
    dnr = 1 << 15
    assert errors(host) == [
        (4, 0, 5, dnr | 0x002 << 1, 0x601, 0, 0),
        (3, 1, 3, dnr | 0x001 << 1, 0, 0, 0),
        (2, 1, 2, dnr | 0x00B << 1, 4, 0, 0xFFFFFFFE),
        (1, 1, 1, dnr | 0x080 << 1, 40, 0x1_0000_0007, 1),
    ]


def test_an_entry_has_the_first_block_that_is_not_there(host: Host) -> None:
    """Which the command names at byte 40, or its data does, or nobody (section 5.16.1.2)."""
    queue = host.create_io_queue()
    nowhere, cdw10 = 0xFFFF, 40
    host.put(struct.pack("<IIQIIQ", 0, 8, 16, 0, 8, 250))  # ranges of Dataset Management
    source = struct.pack("<8xQH14x", 300, 0)  # and of Copy, whose number of blocks is 0's based
    host.put(source, DATA + PAGE)
    host.put(struct.pack("<B15xQQ32x", 0, 254, 4), DATA + 2 * PAGE)  # an LBA range
    apu = host.connect_apu()
    for opcode, cdws, prp1 in (
        (0x02, (250, 0, 9), DATA),
        (0x09, (1, 4), DATA),
        (0x19, (3, 0, 0), DATA + PAGE),
        (0x19, (400, 0, 0), DATA),
    ):
        assert host.command(queue, opcode, nsid=1, cdws=cdws, prp1=prp1).status == 0x080, opcode
    done = host.command(host.admin, 0x09, nsid=1, cdws=(3,), prp1=DATA + 2 * PAGE)
    assert done.status == 0x080
    host.place(queue, 0x88, 7, nsid=1, cdws=(0, 0x1234))
    host.ring(queue)
    host.service()
    request = apu.receive()
    assert isinstance(request, Request)
    apu.send(Reply(request.tag, 0x080, dnr=True))
    host.service()
    assert [one.status for one in host.reap(queue)] == [0x080]
    assert [entry[4:6] for entry in reversed(errors(host))] == [
        (cdw10, 256),
        (nowhere, 256),
        (nowhere, 300),
        (cdw10, 400),
        (nowhere, 256),
        (nowhere, 0),
    ]


def test_an_entry_says_which_prp_is_not_aligned(host: Host) -> None:
    queue = host.create_io_queue()
    for prps in ({"prp1": DATA + 1}, {"prp2": DATA + 8}):
        assert host.command(queue, 0x02, nsid=1, cdws=(0, 0, 1), **prps).status == 0x013
    assert [entry[4] for entry in errors(host)] == [32, 24]


def test_what_a_driver_asks_to_find_out_makes_no_entry(host: Host) -> None:
    for opcode, cdw10, nsid in (
        (IDENTIFY, 0xFE, 0),
        (IDENTIFY, 3, 0xFFFFFFFE),
        (GET_LOG, 0x7F, 0),
        (0x0A, 0x7D, 0),
    ):
        assert host.command(host.admin, opcode, nsid=nsid, cdws=(cdw10,)).status != 0
    assert errors(host) == []


def test_a_reset_removes_commands_entries_and_counts_on(host: Host) -> None:
    host.command(host.admin, 0x3F)
    host.write32(0x1000 + 8 * 3, 1)  # a doorbell of no queue: no command's error
    host.service()
    assert [entry[:2] for entry in errors(host)] == [(2, 0xFFFF), (1, 0)]
    host.disable()
    host.enable()
    assert [entry[:2] for entry in errors(host)] == [(2, 0xFFFF)]
    host.command(host.admin, 0x3F)
    assert [entry[:2] for entry in errors(host)] == [(3, 0), (2, 0xFFFF)]


def test_only_the_newest_errors_are_kept_and_all_are_counted(host: Host) -> None:
    for _ in range(70):
        host.command(host.admin, 0x3F)
    assert [entry[0] for entry in errors(host)] == list(range(70, 6, -1))
    assert get(host, 2, 512)[176:184] == (70).to_bytes(8, "little")


# SMART / Health.


def test_a_drive_that_waits_for_its_media_is_busy(host: Host) -> None:
    """Minutes with an I/O command outstanding (section 5.16.1.3, Controller Busy Time)."""
    queue = host.create_io_queue()
    host.place(queue, 0x01, 7, nsid=1, cdws=(0, 0, 1 << 30))  # FUA: through the executor
    host.ring(queue)
    host.service()
    host.now += 0.5
    host.service()
    host.now += 180
    host.service()
    assert int.from_bytes(get(host, 2, 512)[96:112], "little") == 3
    host.executor.run_all()
    host.service()
    host.now += 600
    host.service()
    assert int.from_bytes(get(host, 2, 512)[96:112], "little") == 3


def test_an_idle_drive_that_does_something_now_and_then_is_hardly_busy(host: Host) -> None:
    queue = host.create_io_queue()
    for cid in range(100):
        host.now += 60
        assert host.command(queue, 0x02, cid, nsid=1).status == 0
    assert int.from_bytes(get(host, 2, 512)[96:112], "little") == 0
    assert 0 < host.rpu.controller.health.busy_seconds <= 0.2


# Changed namespaces.


def changed(host: Host, *, retain: bool) -> list[int]:
    cdw10 = 1023 << 16 | retain << 15 | 4
    assert host.command(host.admin, GET_LOG, cdws=(cdw10,)).status == 0
    return list(struct.unpack("<1024I", host.data(PAGE)))


def test_changed_namespaces_are_told_until_the_host_has_read_them(host: Host) -> None:
    assert changed(host, retain=False) == [0] * 1024
    for nsid in (7, 3, 7):
        host.rpu.controller.reports.namespace_changed(nsid)
    assert changed(host, retain=True)[:3] == [3, 7, 0]
    assert changed(host, retain=False)[:3] == [3, 7, 0]
    assert changed(host, retain=True) == [0] * 1024


def test_more_changes_than_the_list_holds_are_one_entry(host: Host) -> None:
    for nsid in range(1, 1025):
        host.rpu.controller.reports.namespace_changed(nsid)
    assert changed(host, retain=True) == list(range(1, 1025))
    host.rpu.controller.reports.namespace_changed(1025)
    assert changed(host, retain=True) == [0xFFFFFFFF] + [0] * 1023


def test_a_change_is_an_event_where_the_host_wants_it(host: Host) -> None:
    def event(cid: int) -> list[int]:
        host.rpu.controller.reports.namespace_changed(1)
        host.place(host.admin, 0x0C, cid)
        host.ring(host.admin)
        host.service()
        return [one.dw0 for one in host.reap(host.admin)]

    assert host.command(host.admin, 0x09, cdws=(0x0B, 0)).status == 0
    assert event(0x30) == []
    assert host.command(host.admin, 0x09, cdws=(0x0B, 1 << 8)).status == 0
    assert event(0x31) == [4 << 16 | 0 << 8 | 2]


# LBA status.


def test_unreadable_blocks_are_listed_by_namespace() -> None:
    media = {1: MemoryMedia.create(1 << 20), 2: MemoryMedia.create(1 << 20)}
    with Host(media, shapes={2: NamespaceShape(1 << 20, 512)}) as host:
        host.enable()
        empty = (16).to_bytes(4, "little") + bytes(12)
        assert get(host, 0x0E, 16) == empty
        queue = host.create_io_queue()
        for nsid, slba, count in ((2, 100, 8), (2, 10, 1), (1, 5, 3)):
            assert host.command(queue, 0x04, nsid=nsid, cdws=(slba, 0, count - 1)).status == 0
        page = get(host, 0x0E, 128)
        assert struct.unpack_from("<III2xH", page) == (16 + 16 + 16 + 16 + 32, 2, 12, 1)
        assert struct.unpack_from("<IIB7xQI", page, 16) == (1, 1, 0x11, 5, 2)
        assert struct.unpack_from("<IIB7xQI4xQI", page, 48) == (2, 2, 0x11, 10, 0, 100, 7)
        assert page[96:] == bytes(32)
        assert get(host, 0x0E, 16)[14:] == b"\x01\0"  # nothing new
        assert host.command(queue, 0x04, nsid=1, cdws=(50, 0, 0)).status == 0
        assert get(host, 0x0E, 16)[14:] == b"\x02\0"


# Effects.


def test_effects_tell_what_a_command_changes(host: Host) -> None:
    """CSUPP 0, LBCC 1, NCC 2, NIC 3, CCC 4, CSE 18:16, scope of a namespace 20, controller 21."""
    admin = struct.unpack("<256I", get(host, 5, 1024))
    io = struct.unpack("<256I", get(host, 5, 1024, 1024))
    known = {0x06: 1 << 21 | 1, 0x10: 1 << 21 | 0x11, 0x80: 1 << 21 | 2 << 16 | 7}
    assert {opcode: admin[opcode] for opcode in known} == known
    # None of an I/O command has more than Linux expects.
    assert set(io) == {0, 1, 3}
    assert (io[0x01], io[0x02], io[0x91]) == (3, 1, 3)
    # Vendor specific: Control may write blocks.
    assert admin[0xC2] == 1 << 21 | 1


# Any part of any page.

Asked = tuple[int, int, int, int, bool, int, int]

REGIONS = st.tuples(
    st.one_of(st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 0xD, 0xE, 0x12]), st.integers(0, 255)),
    st.one_of(st.integers(0, 1200), st.integers(0, (1 << 32) - 1)),
    st.one_of(st.integers(0, 300).map(lambda n: 4 * n), st.integers(0, (1 << 64) - 1)),
    st.integers(0, 127),
    st.booleans(),
    st.sampled_from([0, 0xFFFFFFFF, 1, 2, 0xFFFFFFFE]),
    st.one_of(st.just(0), st.integers(0, (1 << 32) - 1)),
)
GUARD = 0xA5


@given(st.lists(REGIONS, min_size=1, max_size=12))
def test_no_question_gets_more_bytes_than_it_asked_for(questions: list[Asked]) -> None:
    with Host() as host:
        host.enable()
        for lid, numd_z, offset, lsp, retain, nsid, dw14 in questions:
            if lid == 0xC0:
                continue  # the APU's, of which there is none
            host.put(bytes([GUARD]) * 3 * PAGE)
            answer = host.command(
                host.admin,
                GET_LOG,
                nsid=nsid,
                prp2=DATA + PAGE,
                cdws=(
                    (numd_z & 0xFFFF) << 16 | retain << 15 | lsp << 8 | lid,
                    numd_z >> 16,
                    offset & 0xFFFFFFFF,
                    offset >> 32,
                    dw14,
                    0,
                ),
            )
            assert answer.status in (0, 0x002, 0x004, 0x00B, 0x00C, 0x013, 0x109)
            size = 0 if answer.status else 4 * (numd_z + 1)
            behind = host.data(max(0, 3 * PAGE - size), DATA + size)
            assert behind == bytes([GUARD]) * len(behind)
        assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0


WHOLE = {0: 1024, 1: 4096, 2: 512, 3: 512, 4: 4096, 5: 4096, 0x0E: 96, 0x12: 1024}
"""Pages and their sizes; with the bad blocks below, the LBA Status Information log has 96 bytes."""


@pytest.fixture(scope="module")
def lived() -> Iterator[Host]:
    """A device to which something has happened."""
    with Host() as host:
        host.enable()
        queue = host.create_io_queue()
        for slba in (1, 3, 5, 7):
            assert host.command(queue, 0x04, nsid=1, cdws=(slba,)).status == 0
        for nsid in (1, 5, 9):
            host.rpu.controller.reports.namespace_changed(nsid)
        for cid in range(9):
            host.command(queue, 0x7F, cid)
        yield host


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_page_in_pieces_is_the_page(lived: Host, data: st.DataObject) -> None:
    lid = data.draw(st.sampled_from(sorted(WHOLE)))
    size = WHOLE[lid]
    whole = get(lived, lid, size)
    cuts = data.draw(st.lists(st.integers(1, size // 4 - 1), unique=True, max_size=6).map(sorted))
    edges = [0, *(4 * cut for cut in cuts), size]
    pieces = [get(lived, lid, end - at, at) for at, end in itertools.pairwise(edges)]
    assert b"".join(pieces) == whole

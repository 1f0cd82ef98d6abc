"""Admin commands as a driver sends them: structures at the standard's offsets, and every
refusal."""

import struct

import pytest

from support.nvme_host import DATA, PAGE, Host

DELETE_SQ, CREATE_SQ, GET_LOG, DELETE_CQ, CREATE_CQ, IDENTIFY = 0, 1, 2, 4, 5, 6
ABORT, SET_FEATURES, GET_FEATURES, EVENT_REQUEST, DOORBELL_BUFFERS = 8, 9, 0xA, 0xC, 0x7C


def u16(host: Host, offset: int) -> int:
    return int.from_bytes(host.data(2, DATA + offset), "little")


def u32(host: Host, offset: int) -> int:
    return int.from_bytes(host.data(4, DATA + offset), "little")


def test_identify_controller_is_what_linux_reads(host: Host) -> None:
    """Offsets of NVMe Base 2.0, figure 275."""
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0
    assert u16(host, 0) == 0x1B96
    assert host.data(20, DATA + 4) == b"POTASH0001          "
    assert host.data(1, DATA + 77) == b"\x07"
    assert u32(host, 80) == 0x00020000
    assert u16(host, 256) == 1 << 9 | 1 << 8 | 1 << 4 | 1 << 3 | 1 << 2 | 1 << 1
    assert host.data(2, DATA + 512) == b"\x66\x44"
    assert u32(host, 516) == 64
    assert host.data(1, DATA + 525)[0] & 1
    assert host.data(13, DATA + 768) == b"nqn.2014-08.o"


def test_identify_namespace_gives_size_and_format(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, nsid=1, cdws=(0,)).status == 0
    assert struct.unpack("<QQQ", host.data(24)) == (256, 256, 256)
    assert (host.data(1, DATA + 26), u32(host, 128), u32(host, 132)) == (b"\1", 9 << 16, 12 << 16)


def test_namespace_list_and_descriptors(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(2,)).status == 0
    assert host.data(8) == b"\x01\0\0\0\0\0\0\0"
    assert host.command(host.admin, IDENTIFY, nsid=1, cdws=(2,)).status == 0
    assert host.data(PAGE) == bytes(PAGE)
    assert host.command(host.admin, IDENTIFY, nsid=1, cdws=(3,)).status == 0
    assert host.data(4) == b"\x03\x10\0\0"
    assert host.data(5, DATA + 20) == b"\x04\x01\0\0\0"


def test_the_effects_log_names_exactly_what_is_answered(host: Host) -> None:
    """Every opcode is tried: the log must not promise or hide one."""
    assert host.command(host.admin, GET_LOG, cdws=(1023 << 16 | 5,)).status == 0
    promised = [u32(host, 4 * opcode) & 1 for opcode in range(256)]
    promised_io = [u32(host, 1024 + 4 * opcode) & 1 for opcode in range(256)]
    queue = host.create_io_queue()
    harmless = {EVENT_REQUEST}
    for opcode in sorted(set(range(256)) - harmless):
        for on, table in ((host.admin, promised), (queue, promised_io)):
            if on is host.admin and opcode in (DELETE_SQ, DELETE_CQ):
                continue
            completion = host.command(on, opcode, nsid=0xFFFFFFFE, cdws=(0xFFFF,) * 6, prp1=2)
            assert (completion.status != 0x001) == bool(table[opcode]), hex(opcode)


@pytest.mark.parametrize(
    ("opcode", "fields", "status"),
    [
        (IDENTIFY, {"cdws": (0xFF,)}, 0x002),
        (IDENTIFY, {"nsid": 0, "cdws": (0,)}, 0x00B),
        (IDENTIFY, {"nsid": 65, "cdws": (0,)}, 0x00B),
        (IDENTIFY, {"nsid": 0xFFFFFFFF, "cdws": (2,)}, 0x00B),
        (IDENTIFY, {"cdws": (1,), "flags": 0x40}, 0x002),
        (IDENTIFY, {"cdws": (1,), "prp1": 1 << 44}, 0x004),
        (GET_LOG, {"cdws": (0x7F,)}, 0x109),
        (GET_LOG, {"cdws": (2, 0, 2)}, 0x002),
        (GET_LOG, {"cdws": (2, 0, 513 * 4)}, 0x002),
        (GET_LOG, {"nsid": 2, "cdws": (127 << 16 | 2,)}, 0x002),
        (GET_LOG, {"cdws": (0xFFFF << 16 | 2, 0xF)}, 0x002),
        (GET_FEATURES, {"cdws": (0x00,)}, 0x002),
        (GET_FEATURES, {"cdws": (0x7D,)}, 0x002),
        (GET_FEATURES, {"cdws": (7 << 8 | 1,)}, 0x002),
        (GET_FEATURES, {"cdws": (9, 5)}, 0x002),
        (GET_FEATURES, {"cdws": (5,)}, 0x00B),
        (SET_FEATURES, {"cdws": (1 << 31 | 2,)}, 0x10D),
        (SET_FEATURES, {"cdws": (1 << 31 | 7,)}, 0x10D),
        (SET_FEATURES, {"cdws": (2, 1)}, 0x002),
        (SET_FEATURES, {"nsid": 1, "cdws": (6, 1)}, 0x10F),
        (SET_FEATURES, {"nsid": 65, "cdws": (6, 1)}, 0x00B),
        (SET_FEATURES, {"cdws": (7, 0xFFFF)}, 0x002),
        (SET_FEATURES, {"cdws": (9, 5)}, 0x002),
        (CREATE_CQ, {"cdws": (15 << 16 | 0, 1)}, 0x101),
        (CREATE_CQ, {"cdws": (15 << 16 | 5, 1)}, 0x101),
        (CREATE_CQ, {"cdws": (0 << 16 | 1, 1)}, 0x102),
        (CREATE_CQ, {"cdws": (4096 << 16 | 1, 1)}, 0x102),
        (CREATE_CQ, {"cdws": (15 << 16 | 1, 0)}, 0x002),
        (CREATE_CQ, {"cdws": (15 << 16 | 1, 5 << 16 | 3)}, 0x108),
        (CREATE_CQ, {"cdws": (15 << 16 | 1, 1), "prp1": DATA + 8}, 0x013),
        (CREATE_CQ, {"cdws": (15 << 16 | 1, 1), "prp1": 1 << 44}, 0x004),
        (CREATE_SQ, {"cdws": (15 << 16 | 1, 1 << 16 | 1)}, 0x100),
        (CREATE_SQ, {"cdws": (15 << 16 | 1, 1)}, 0x101),
        (CREATE_SQ, {"cdws": (15 << 16 | 1, 5 << 16 | 1)}, 0x101),
        (CREATE_SQ, {"cdws": (15 << 16 | 1, 0xFFFF << 16 | 1)}, 0x101),
        (DELETE_SQ, {"cdws": (0,)}, 0x101),
        (DELETE_SQ, {"cdws": (1,)}, 0x101),
        (DELETE_CQ, {"cdws": (0,)}, 0x101),
        (DELETE_CQ, {"cdws": (3,)}, 0x101),
        (DOORBELL_BUFFERS, {"prp2": DATA + 8}, 0x002),
        (DOORBELL_BUFFERS, {"prp2": 1 << 44}, 0x004),
        (0x3F, {}, 0x001),
        (0xFF, {}, 0x001),
    ],
)
def test_what_a_command_cannot_have_gets_its_status(
    host: Host, opcode: int, fields: dict[str, int], status: int
) -> None:
    completion = host.command(host.admin, opcode, **fields)
    assert completion.status == status
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0


def test_queues_come_and_go_in_the_right_order(host: Host) -> None:
    host.create_io_queue(1)
    assert host.command(host.admin, CREATE_CQ, cdws=(15 << 16 | 1, 1)).status == 0x101
    assert host.command(host.admin, DELETE_CQ, cdws=(1,)).status == 0x10C
    assert host.command(host.admin, SET_FEATURES, cdws=(7, 0)).status == 0x00C
    assert host.command(host.admin, DELETE_SQ, cdws=(1,)).status == 0
    assert host.command(host.admin, DELETE_CQ, cdws=(1,)).status == 0
    host.create_io_queue(1)


def test_deleting_a_queue_answers_its_commands_first(host: Host) -> None:
    host.connect_apu()
    queue = host.create_io_queue()
    host.place(queue, 0x91, 7)
    host.ring(queue)
    host.service()
    assert host.reap(queue) == []
    host.place(host.admin, DELETE_SQ, 8, cdws=(1,))
    host.ring(host.admin)
    host.service()
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0x008)]
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(8, 0)]
    assert host.reap(queue) == []


def test_deleting_a_queue_waits_for_what_the_media_have_begun(host: Host) -> None:
    """A write that was called aborted could otherwise undo a later one of the same block."""
    queue, other = host.create_io_queue(1), host.create_io_queue(2)
    host.place(queue, 0x01, 7, nsid=1, cdws=(0, 0, 1 << 30))  # FUA: through the media executor
    host.ring(queue)
    host.service()
    host.place(host.admin, DELETE_SQ, 8, cdws=(1,))
    host.place(host.admin, DELETE_SQ, 9, cdws=(1,))
    host.ring(host.admin)
    host.service()
    host.place(queue, 0x02, 10, nsid=1)
    host.ring(queue)
    host.service()
    assert host.reap(queue) == []
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(9, 0x101)]
    assert host.command(other, 0x02, 11, nsid=1).status == 0  # the media get on with their work
    assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0)]
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(8, 0)]
    host.create_io_queue(3)
    assert host.command(host.admin, DELETE_CQ, cdws=(1,)).status == 0


def test_features_have_current_default_saved_and_capabilities(host: Host) -> None:
    def get(fid: int, select: int = 0, value: int = 0, nsid: int = 0) -> int:
        completion = host.command(
            host.admin, GET_FEATURES, nsid=nsid, cdws=(select << 8 | fid, value)
        )
        assert completion.status == 0
        return completion.dw0

    assert get(7) == 3 << 16 | 3
    assert get(4) == 343
    assert get(4, value=1 << 20) == 1 << 20  # the selector, and 0 K
    assert host.command(host.admin, SET_FEATURES, cdws=(4, 320)).status == 0
    assert (get(4), get(4, 1), get(4, 2), get(4, 3)) == (320, 343, 343, 5)
    assert get(5, 3, nsid=1) == 7
    assert host.command(host.admin, SET_FEATURES, cdws=(9, 1 << 16 | 2)).status == 0
    assert (get(9, value=1), get(9, value=2)) == (1, 1 << 16 | 2)
    host.disable()
    host.enable()
    assert get(4) == 343


def test_event_requests_have_a_limit_and_can_be_aborted(host: Host) -> None:
    for cid in range(1, 6):
        host.place(host.admin, EVENT_REQUEST, cid)
    host.ring(host.admin)
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(5, 0x105)]
    host.place(host.admin, ABORT, 9, cdws=(2 << 16,))
    host.place(host.admin, ABORT, 10, cdws=(77 << 16,))
    host.ring(host.admin)
    host.service()
    answers = [(one.cid, one.status, one.dw0) for one in host.reap(host.admin)]
    assert answers == [(2, 0x007, 0), (9, 0, 0), (10, 0, 1)]


def test_a_command_identifier_in_use_is_refused(host: Host) -> None:
    for _ in range(2):
        host.place(host.admin, EVENT_REQUEST, 3)
    host.ring(host.admin)
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(3, 0x003)]


def test_the_identifier_of_an_event_request_may_be_given_to_another_command(host: Host) -> None:
    """SPDK ends its requests for itself when it detaches, before the controller does."""
    for opcode, cid in ((EVENT_REQUEST, 3), (EVENT_REQUEST, 4), (0x10, 3)):  # Firmware Commit
        host.place(host.admin, opcode, cid, cdws=(1 << 3 | 2,))
    host.ring(host.admin)
    host.service()
    host.executor.run_all()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(3, 0x107)]
    assert host.command(host.admin, 0x18, 4).status == 0  # Keep Alive
    for cid in (3, 4):
        assert host.rpu.controller.outstanding.find((0, cid)) is not None
    host.place(host.admin, ABORT, 9, cdws=(3 << 16,))
    host.ring(host.admin)
    host.service()
    answers = [(one.cid, one.status, one.dw0) for one in host.reap(host.admin)]
    assert answers == [(3, 0x007, 0), (9, 0, 0)]


def test_a_bad_doorbell_is_an_event_and_stays_silent_until_its_log_is_read(host: Host) -> None:
    for cid in (1, 2):
        host.place(host.admin, EVENT_REQUEST, cid)
    host.ring(host.admin)
    host.service()
    host.write32(0x1000 + 8 * 3, 1)
    host.service()
    assert [(one.cid, one.dw0) for one in host.reap(host.admin)] == [(1, 1 << 16 | 0 << 8 | 0)]
    host.write32(0x1000, 99)
    host.service()
    assert host.reap(host.admin) == []
    host.place(host.admin, GET_LOG, 5, cdws=(15 << 16 | 1 << 15 | 1,))
    host.ring(host.admin)
    host.service()
    assert [one.cid for one in host.reap(host.admin)] == [5]
    host.place(host.admin, GET_LOG, 6, cdws=(15 << 16 | 1,))
    host.ring(host.admin)
    host.write32(0x1000, 99)
    host.write32(0x1000, host.admin.tail)
    host.service()
    host.write32(0x1000, 99)
    host.service()
    assert {(one.cid, one.dw0) for one in host.reap(host.admin)} == {(6, 0), (2, 1 << 16 | 1 << 8)}


def test_the_error_log_keeps_errors_and_no_questions(host: Host) -> None:
    assert host.command(host.admin, IDENTIFY, cdws=(0xFE,)).status == 0x002
    assert host.command(host.admin, GET_LOG, cdws=(0xFE,)).status == 0x109
    assert host.command(host.admin, 0x3F, 0x55, nsid=9).status == 0x001
    host.clear(DATA, PAGE)
    assert host.command(host.admin, GET_LOG, cdws=(31 << 16 | 1,)).status == 0
    count, sqid, cid, status = struct.unpack("<QHHH", host.data(14))
    assert (count, sqid, cid, status >> 1) == (1, 0, 0x55, 0x4001)
    assert u32(host, 24) == 9
    assert host.data(64, DATA + 64) == bytes(64)


@pytest.mark.parametrize(
    ("offset", "value", "status"), [(0x1000 + 8 * 3, 1, 0x101), (0x1000 + 8 * 1, 99, 0x002)]
)
def test_a_bad_doorbell_is_in_the_error_log_once(
    host: Host, offset: int, value: int, status: int
) -> None:
    """It is no command's: SQID, CID and location are FFFFh (section 5.16.1.2)."""
    host.create_io_queue()
    for _ in range(100):
        host.write32(offset, value)
    host.service()
    host.clear(DATA, PAGE)
    assert host.command(host.admin, GET_LOG, cdws=(31 << 16 | 1,)).status == 0
    entry = struct.unpack("<QHHHHQI", host.data(28))
    assert entry == (1, 0xFFFF, 0xFFFF, status << 1, 0xFFFF, 0, 0)
    assert host.data(64, DATA + 64) == bytes(64)
    host.write32(offset, value)  # the log was read: it counts again
    host.service()
    assert host.command(host.admin, GET_LOG, cdws=(31 << 16 | 1,)).status == 0
    assert struct.unpack("<Q", host.data(8)) == (2,)


def test_a_log_page_is_read_in_pieces(host: Host) -> None:
    queue = host.create_io_queue()
    assert host.command(queue, 0x02, nsid=1).status == 0
    assert host.command(host.admin, GET_LOG, nsid=0xFFFFFFFF, cdws=(127 << 16 | 2,)).status == 0
    whole = host.data(512)
    assert int.from_bytes(whole[64:80], "little") == 1
    assert int.from_bytes(whole[32:48], "little") == 1
    assert host.command(host.admin, GET_LOG, cdws=(3 << 16 | 2, 0, 64)).status == 0
    assert host.data(16) == whole[64:80]

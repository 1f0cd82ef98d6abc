"""Reservations: their commands, what they deny, and what persists.

The expected values are the standard's (`support.reservation_model`), except where a test says so.
"""

import errno
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvme_spec.reservations import NotificationType
from potash_device.media.file import FileMedia
from potash_device.media.shapes import NamespaceShape
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import MemoryMedia
from potash_firmware.mailbox.messages import ReadCheck, ReadChecked, WriteBack, WriteBackDone
from potash_firmware.mailbox.values import JobValueRead, ReadJobValue
from support.memory import MIB, identify, powered
from support.nvme_host import DATA, PAGE, Host
from support.reservation_model import (
    ADMIN_KINDS,
    BEHAVIOUR,
    CONFLICT,
    INCONSISTENT,
    INVALID_FIELD,
    IO_KINDS,
    REGISTER,
    TYPES,
    Report,
    acquire,
    become,
    register,
    release,
    report,
    set_host,
)

A, B, C = (bytes([number]) * 8 for number in (1, 2, 3))
WRITE, READ = 1, 2
SET_FEATURES, GET_FEATURES, GET_LOG, EVENT_REQUEST = 0x09, 0x0A, 0x02, 0x0C
REGISTRATION, RELEASED, PREEMPTED = [*NotificationType][1:]
MASK, PERSISTENCE, HOST_IDENTIFIER = 0x82, 0x83, 0x81
KEY = 0xFFFF_FFFF_FFFF_FFFE


@pytest.fixture
def host() -> Iterator[Host]:
    with Host({nsid: MemoryMedia.create(MIB) for nsid in (1, 2)}) as host:
        host.enable()
        host.create_io_queue()
        yield host


def feature(host: Host, fid: int, value: int | None = None, nsid: int = 1) -> tuple[int, int]:
    """Status and dword 0 of Get Features, or of Set Features with a value."""
    if value is None:
        done = host.command(host.admin, GET_FEATURES, nsid=nsid, cdws=(fid,))
    else:
        done = host.command(host.admin, SET_FEATURES, nsid=nsid, cdws=(fid, value))
    return done.status, done.dw0


def test_identify_and_the_effects_log_report_them(host: Host) -> None:
    assert host.command(host.admin, 0x06, cdws=(1,)).status == 0
    assert host.data(522)[520] & 1 << 5
    assert host.command(host.admin, 0x06, nsid=1, cdws=(0,)).status == 0
    assert host.data(32)[31] == 0xFF
    assert host.command(host.admin, 0x06, nsid=1, cdws=(8,)).status == 0
    assert host.data(3)[2] == 0xFF
    assert host.command(host.admin, GET_LOG, nsid=0, cdws=(1023 << 16 | 5,)).status == 0
    effects = struct.unpack_from("<256I", host.data(4096), 1024)
    assert [effects[opcode] for opcode in (0x0D, 0x0E, 0x11, 0x15)] == [1, 1, 1, 1]


@pytest.mark.parametrize("key", [0, 1, KEY])
def test_a_host_registers_acquires_and_releases(host: Host, key: int) -> None:
    become(host, A)
    assert report(host) == Report(0, 0, 0, [])
    assert register(host, 0, new=key) == 0
    assert report(host) == Report(1, 0, 0, [(0, 0, A, key)])
    assert acquire(host, 0, key, rtype=3) == 0
    assert report(host) == Report(1, 3, 0, [(0, 1, A, key)])
    assert report(host, nsid=2) == Report(0, 0, 0, [])
    assert release(host, 0, key, rtype=1) == INVALID_FIELD
    assert release(host, 0, key, rtype=3) == 0
    assert release(host, 1, key) == 0
    assert report(host) == Report(2, 0, 0, [])


def test_a_report_is_cut_to_the_length_that_is_asked_for(host: Host) -> None:
    become(host, A)
    assert register(host, 0, new=KEY) == 0
    host.put(b"\xee" * 64)
    assert host.command(host.io[1], 0x0E, nsid=1, cdws=(6 - 1, 0)).status == 0
    assert host.data(64)[24:] == b"\xee" * 40
    host.put(b"\xee" * 64)
    assert host.command(host.io[1], 0x0E, nsid=1, cdws=(1 << 30, 0)).status == 0
    assert host.data(64)[48:] == b"\xee" * 16


def test_identifiers_of_128_bits_are_in_the_extended_structure(host: Host) -> None:
    long = bytes(range(16))
    become(host, long)
    assert register(host, 0, new=7) == 0
    assert report(host, extended=1) == Report(1, 0, 0, [(0, 0, long, 7)])
    assert report(host, extended=0) == INCONSISTENT
    # As long as there is a registrant with such an identifier, no host has one of 64 bits.
    become(host, None)
    assert set_host(host, A) == INCONSISTENT
    assert report(host, extended=1) == Report(1, 0, 0, [(0xFFFF, 0, long, 7)])
    assert set_host(host, bytes(8)) == 0
    become(host, long)
    assert register(host, 1, old=7) == 0
    become(host, A)
    assert report(host, extended=1) == INCONSISTENT


def test_a_host_without_an_identifier_is_another_one_after_a_reset(host: Host) -> None:
    assert register(host, 0, new=5) == 0
    assert acquire(host, 0, 5, rtype=1) == 0
    assert report(host, extended=1) == Report(1, 1, 0, [(0, 1, bytes(16), 5)])
    assert report(host) == Report(1, 1, 0, [(0, 1, bytes(8), 5)])
    # With an identifier it is another host, and its registration is that of the one before.
    assert set_host(host, A) == 0
    assert report(host) == Report(1, 1, 0, [(0xFFFF, 1, bytes(8), 5)])
    assert host.command(host.io[1], WRITE, nsid=1).status == CONFLICT
    become(host, None)
    assert report(host) == Report(1, 0, 0, [])
    assert host.command(host.io[1], WRITE, nsid=1).status == 0


@pytest.mark.parametrize(
    ("opcode", "cdw10"),
    [
        (0x0D, 3),
        (0x0D, 7),
        (0x0D, 1 << 30),
        (0x11, 3 | 1 << 8),
        (0x11, 0),
        (0x11, 7 << 8),
        (0x11, 0xFF << 8),
        (0x11, 1 << 3 | 1 << 8),
        (0x15, 2),
        (0x15, 1 << 3),
    ],
)
def test_reserved_values_are_refused(host: Host, opcode: int, cdw10: int) -> None:
    become(host, A)
    assert register(host, 0, new=1) == 0
    host.put(struct.pack("<QQ", 1, 1))
    done = host.command(host.io[1], opcode, nsid=1, cdws=(cdw10,))
    assert (done.status, done.dnr) == (INVALID_FIELD, True)
    assert report(host) == Report(1, 0, 0, [(0, 0, A, 1)])


@pytest.mark.parametrize("nsid", [0, 3, 0xFFFF_FFFF])
def test_other_namespaces_are_refused(host: Host, nsid: int) -> None:
    for opcode in (0x0D, 0x0E, 0x11, 0x15):
        done = host.command(host.io[1], opcode, nsid=nsid, cdws=(1 << 8,))
        assert done.status in (INVALID_FIELD, 0x0B)


def test_data_that_is_not_there_changes_nothing(host: Host) -> None:
    done = host.command(host.io[1], REGISTER, nsid=1, prp1=1 << 40)
    assert done.status == 0x04
    assert report(host) == Report(0, 0, 0, [])


def test_registrants_are_limited(host: Host) -> None:
    """128, a limit of this drive."""
    for number in range(1, 130):
        assert set_host(host, struct.pack("<Q", number)) == 0
        assert register(host, 0, new=1) == (0 if number <= 128 else 0x06)
    assert host.command(host.io[1], 0x0E, nsid=1, cdws=(1023, 0)).status == 0
    assert struct.unpack_from("<H", host.data(8), 5) == (128,)
    assert release(host, 1, 1) == CONFLICT
    assert set_host(host, struct.pack("<Q", 1)) == 0
    assert release(host, 1, 1) == 0
    assert register(host, 0, new=1) == 0


# What is denied.


def reserved(host: Host, rtype: int, role: str, nsid: int = 1) -> None:
    """Reserve a namespace; the controller's host has that role then."""
    assert set_host(host, A) == 0
    assert register(host, 0, new=1, nsid=nsid) == 0
    assert acquire(host, 0, 1, rtype=rtype, nsid=nsid) == 0
    if role != "holder":
        assert set_host(host, B) == 0
    if role == "registrant":
        assert register(host, 0, new=2, nsid=nsid) == 0


SHAPES = (
    NamespaceShape(MIB),
    NamespaceShape.zoned(MIB, zone_size=128 << 10),
    NamespaceShape.key_value(MIB),
)
COMMAND_SETS = {1: 0, 2: 2, 3: 1}
"""The command set of each namespace."""


@pytest.mark.parametrize("role", ["other", "registrant", "holder"])
@pytest.mark.parametrize("rtype", range(1, 7))
def test_a_command_is_denied_exactly_as_the_tables_say(rtype: int, role: str) -> None:
    with powered(None, *SHAPES) as host:
        assert identify(host, 5, 3, 1)[27] == 0xFF
        for nsid in COMMAND_SETS:
            assert identify(host, 8, nsid)[2] == 0xFF
            reserved(host, rtype, role, nsid)
        column = {"other": 0, "registrant": 1, "holder": 2}[role]
        denied = {
            kind: BEHAVIOUR[kind, TYPES[rtype]][column] == "C" for kind in ("read", "write")
        } | {"other": False}
        if role == "registrant" and rtype > 4:
            denied = dict.fromkeys(denied, False)  # who is a holder, too
        for nsid, csi in COMMAND_SETS.items():
            for kind, opcodes in IO_KINDS[csi].items():
                for opcode in opcodes:
                    host.put(bytes(4096))
                    done = host.command(host.io[1], opcode, nsid=nsid, prp2=DATA + PAGE)
                    found = done.status == CONFLICT
                    assert found == denied[kind], (csi, hex(opcode), hex(done.status))
        done = host.command(host.io[1], 0x00, nsid=0xFFFF_FFFF)
        assert (done.status == CONFLICT) == denied["write"]
        for kind, opcodes in ADMIN_KINDS.items():
            for opcode in opcodes:
                host.put(bytes(4096))
                # Values that are not valid, so that nothing is deleted or formatted.
                done = host.command(host.admin, opcode, nsid=1, cdws=(0xF0F,))
                found = done.status == CONFLICT
                assert found == denied[kind], (hex(opcode), hex(done.status))


def test_what_is_done_for_a_host_is_denied_as_its_own_commands() -> None:
    """Jobs of an accelerator, programs, and sources of copies to memory."""
    shapes = (NamespaceShape(MIB), NamespaceShape.key_value(MIB), NamespaceShape.memory(MIB))
    with powered(None, *shapes) as host:
        apu = host.connect_apu()

        def answers() -> list[int]:
            apu.send(ReadCheck(1, 1, ((0, PAGE),)))
            apu.send(WriteBack(2, 0, 0, ((1, 0, PAGE),)))
            apu.send(ReadJobValue(3, 2, 0, b"k"))
            apu.send(ReadJobValue(4, 2, 64, b"", lists=True))
            host.service()
            host.executor.run_all()
            host.service()
            found = {}
            while (message := apu.receive()) is not None:
                if isinstance(message, ReadChecked | WriteBackDone):
                    found[message.tag] = message.error
                elif isinstance(message, JobValueRead):
                    found[message.tag] = message.result
            return [found[tag] for tag in (1, 2, 3, 4)]

        def copies() -> list[int]:
            host.put(struct.pack("<I4xQH14x", 1, 0, 0))
            blocks = host.command(host.io[1], 1, nsid=3, first=(PAGE,), cdws=(0, 0, 2 << 8))
            host.put(struct.pack("<IIBB6x16x", 2, 1, 0, 0))
            values = host.command(host.io[1], 0xA1, nsid=3, first=(64,))
            return [blocks.status, values.status]

        assert answers() == [0, 0, -errno.ENOENT, 0]
        assert copies() == [0, 0]
        for nsid in (1, 2):
            reserved(host, 2, "other", nsid)
        denied = errno.EACCES
        assert answers() == [denied, denied, -denied, 0]
        assert copies() == [CONFLICT, CONFLICT]


def test_both_halves_of_a_fused_operation_are_checked(host: Host) -> None:
    def fused() -> list[int]:
        for opcode, flags, cid in ((5, 1, 1), (1, 2, 2)):
            host.place(host.io[1], opcode, cid, nsid=1, flags=flags)
        host.ring(host.io[1])
        host.service()
        host.executor.run_all()
        host.service()
        return [done.status for done in host.reap(host.io[1])]

    host.put(bytes(PAGE))
    assert fused() == [0, 0]
    reserved(host, 1, "other")
    assert fused() == [0x09, CONFLICT]
    become(host, A)
    assert acquire(host, 1, 1, 1, rtype=2) == 0
    become(host, B)
    assert fused() == [CONFLICT, 0x09]
    become(host, A)
    host.put(bytes(PAGE))
    assert fused() == [0, 0]


def test_a_namespace_leaves_the_fast_path_while_it_is_restricted(host: Host) -> None:
    """Many commands are served in one batch of the fast path, as its counters show."""

    def batch() -> set[int]:
        for cid in range(8):
            host.place(host.io[1], READ + cid % 2 * (WRITE - READ), cid, nsid=1)
        host.ring(host.io[1])
        host.service()
        return {done.status for done in host.reap(host.io[1])}

    assert batch() == {0}
    reserved(host, 2, "other")
    assert batch() == {CONFLICT}
    assert set_host(host, A) == 0
    assert batch() == {0}
    become(host, B)
    assert batch() == {CONFLICT}
    become(host, A)
    assert release(host, 1, 1) == 0
    become(host, B)
    assert batch() == {0}


# What persists.


def start(path: Path) -> Host:
    media = {nsid: FileMedia.open(path / str(nsid), MIB) for nsid in (1, 2)}
    host = Host(media, sidecar=FileMedia.open(path / "sidecar", SIDECAR_SIZE))
    host.enable()
    host.create_io_queue()
    return host


@pytest.mark.parametrize("by_feature", [False, True])
def test_a_namespace_persists_through_power_loss_if_it_is_to(
    tmp_path: Path, by_feature: bool
) -> None:
    with start(tmp_path) as host:
        become(host, A)
        assert feature(host, PERSISTENCE) == (0, 0)
        assert register(host, 0, new=1, persistence=0 if by_feature else 3) == 0
        assert register(host, 0, new=1, nsid=2) == 0
        if by_feature:
            assert feature(host, PERSISTENCE, 1) == (0, 0)
        assert feature(host, PERSISTENCE) == (0, 1)
        assert feature(host, PERSISTENCE, nsid=2) == (0, 0)
        assert acquire(host, 0, 1, rtype=4) == 0
        assert acquire(host, 0, 1, rtype=4, nsid=2) == 0
        become(host, B)
        assert register(host, 0, new=KEY) == 0
        before = report(host)
    with start(tmp_path) as host:
        become(host, B)
        assert before == Report(2, 4, 1, [(0xFFFF, 1, A, 1), (0, 0, B, KEY)])
        assert report(host) == before
        assert report(host, nsid=2) == Report(0, 0, 0, [])
        assert feature(host, PERSISTENCE) == (0, 1)
        become(host, C)
        assert host.command(host.io[1], READ, nsid=1).status == CONFLICT
        become(host, A)
        assert register(host, 2, old=1, new=1, persistence=2) == 0
        assert report(host) == Report(3, 4, 0, [(0, 1, A, 1), (0xFFFF, 0, B, KEY)])
    with start(tmp_path) as host:
        assert report(host) == Report(0, 0, 0, [])


def test_a_change_that_persists_is_durable_before_it_is_acknowledged(host: Host) -> None:
    """The sidecar is written before the completion is posted."""
    become(host, A)
    assert register(host, 0, new=1, persistence=3) == 0
    number = host.sidecar.number
    host.put(struct.pack("<QQ", 1, 0))
    host.place(host.io[1], 0x11, 1, nsid=1, cdws=(1 << 8,))
    host.ring(host.io[1])
    host.service()
    assert host.reap(host.io[1]) == [] and host.sidecar.number == number
    host.executor.run_all()
    host.service()
    assert [done.status for done in host.reap(host.io[1])] == [0]
    assert host.sidecar.number == number + 1


def test_a_namespace_that_is_deleted_takes_its_reservation_along() -> None:
    with powered(None, NamespaceShape(MIB)) as host:
        become(host, A)
        assert register(host, 0, new=1, persistence=3) == 0
        assert acquire(host, 0, 1, rtype=2) == 0
        assert host.command(host.admin, 0x0D, nsid=1, cdws=(1,)).status == 0
        host.put(struct.pack("<QQ", 256, 256) + bytes(4080))
        assert host.command(host.admin, 0x0D, cdws=(0,)).dw0 == 1
        host.put(struct.pack("<HH", 1, 0) + bytes(4092))
        assert host.command(host.admin, 0x15, nsid=1, cdws=(0,)).status == 0
        become(host, B)
        assert report(host) == Report(0, 0, 0, [])
        assert host.command(host.io[1], WRITE, nsid=1).status == 0


# Features and notifications.


def test_features_of_reservations(host: Host) -> None:
    assert feature(host, MASK) == (0, 0)
    assert feature(host, MASK, 0b1110, nsid=0xFFFF_FFFF) == (0, 0)
    assert [feature(host, MASK, nsid=nsid) for nsid in (1, 2)] == [(0, 0b1110)] * 2
    assert feature(host, PERSISTENCE, 1, nsid=0xFFFF_FFFF) == (0, 0)
    assert [feature(host, PERSISTENCE, nsid=nsid) for nsid in (1, 2)] == [(0, 1)] * 2
    for fid in (MASK, PERSISTENCE):
        assert feature(host, fid, nsid=0xFFFF_FFFF)[0] == INVALID_FIELD
        assert feature(host, fid | 1 << 31, 1)[0] == 0x10D
        assert feature(host, fid | 3 << 8) == (0, 0b110)
    become(host, None)
    assert [feature(host, fid)[1] for fid in (MASK, PERSISTENCE)] == [0, 1]


def notification(host: Host) -> tuple[int, int, int, int]:
    """Count, type, number of others, and namespace of the log page."""
    host.put(b"\xee" * 64)
    assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | 0x80,)).status == 0
    data = host.data(64)
    assert not any(data[10:12]) and not any(data[16:])
    return struct.unpack_from("<QBB2xI", data)


def test_the_log_page_of_notifications_is_empty_at_first(host: Host) -> None:
    assert notification(host) == (0, 0, 0, 0)


def test_the_host_is_notified_and_events_are_masked(host: Host) -> None:
    side = host.rpu.controller.reservations
    host.place(host.admin, EVENT_REQUEST, 9)
    host.ring(host.admin)
    host.service()
    assert host.reap(host.admin) == []
    side.notify(1, RELEASED)
    host.service()
    assert [(done.cid, done.dw0) for done in host.reap(host.admin)] == [(9, 6 | 0x80 << 16)]
    assert feature(host, MASK, 1 << 1, nsid=2) == (0, 0)
    side.notify(2, REGISTRATION)
    side.notify(2, PREEMPTED)
    assert [notification(host) for _ in range(3)] == [(1, 2, 1, 1), (2, 3, 0, 2), (0, 0, 0, 0)]
    # Retained: the host reads the same one again.
    side.notify(1, REGISTRATION)
    for _ in range(2):
        assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | 1 << 15 | 0x80,)).status == 0
        assert struct.unpack_from("<QB", host.data(64)) == (3, 1)
    become(host, None)
    assert notification(host) == (0, 0, 0, 0)


def test_notifications_for_which_there_is_no_room_are_counted(host: Host) -> None:
    """64, a limit of this drive."""
    side = host.rpu.controller.reservations
    for _ in range(70):
        side.notify(1, PREEMPTED)
    found = [notification(host) for _ in range(65)]
    assert [count for count, *_ in found] == [*range(1, 64), 70, 0]
    assert [left for _, _, left, _ in found] == [*range(63, -1, -1), 0]
    side.notify(1, PREEMPTED)
    assert notification(host) == (71, 3, 0, 1)

"""Namespace Management and Attachment: capacity, identifiers, lists, and what survives what."""

import os
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.media.drive import Drive
from potash_device.media.errors import MediaError
from potash_device.media.store import Media
from support.namespaces import (
    ALL,
    ATTACH,
    EVENT_REQUEST,
    MANAGE,
    READ,
    SET_FEATURES,
    WRITE,
    Namespace,
    attach,
    begin,
    capacity,
    create,
    delete,
    finish,
    identify,
    io,
    log_page,
    namespace,
    nsids,
    powered,
    steps,
    uuid,
)
from support.nvme_host import PAGE, Host

MIB = 1 << 20
ACTIVE, ALLOCATED = 2, 0x10
W = b"w" * PAGE


def test_a_namespace_is_made_attached_used_and_remembered(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    with powered(folder) as host:
        assert capacity(host) == (4 * MIB, 2 * MIB)
        made = create(host, 512, nmic=1)
        assert (made.status, made.dw0) == (0, 3)
        assert capacity(host) == (4 * MIB, 0)
        assert (nsids(host, ACTIVE), nsids(host, ALLOCATED)) == ([1, 2], [1, 2, 3])
        assert namespace(host, 3) == Namespace(512, 1, 1, 0x80, 2 * MIB, (9, 12))
        assert not any(identify(host, 0, 3))
        host.create_io_queue()
        assert io(host, READ, 3) == 0x002
        assert attach(host, 3).status == 0
        assert io(host, WRITE, 3, 511, W) == 0
        identity = uuid(host, 3)
    with powered(folder) as host:
        assert (nsids(host, ACTIVE), capacity(host)) == ([1, 2, 3], (4 * MIB, 0))
        assert namespace(host, 3, 0) == Namespace(512, 1, 1, 0x80, 2 * MIB, (9, 12))
        assert uuid(host, 3) == identity
        host.create_io_queue()
        assert io(host, READ, 3, 511) == 0
        assert host.data(PAGE) == W
        assert attach(host, 3, sel=1).status == 0
        assert io(host, READ, 3) == 0x002
    with powered(folder) as host:
        assert (nsids(host, ACTIVE), nsids(host, ALLOCATED)) == ([1, 2], [1, 2, 3])
        assert delete(host, 3).status == 0
        assert not (folder / "namespace-3").exists()
    with powered(folder) as host:
        assert (nsids(host, ALLOCATED), capacity(host)) == ([1, 2], (4 * MIB, 2 * MIB))


def test_a_namespace_that_is_made_anew_is_another_one_and_empty() -> None:
    with powered() as host:
        host.create_io_queue()
        assert io(host, WRITE, 1, 0, W) == 0
        before = uuid(host, 1)
        assert delete(host, 1).status == 0
        assert create(host, 256).dw0 == 1
        assert attach(host, 1).status == 0
        assert uuid(host, 1) != before
        assert io(host, READ, 1) == 0
        assert not any(host.data(PAGE))


@pytest.mark.parametrize(("opcode", "sel"), [(MANAGE, 1), (ATTACH, 1)], ids=["deleted", "detached"])
def test_a_reset_brings_back_no_namespace_that_is_leaving(opcode: int, sel: int) -> None:
    with powered() as host:
        host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
        begin(host, host.admin, opcode, nsid=1, cdws=(sel,))
        host.disable()
        host.begin_enable()
        host.service()
        finish(host)
        assert host.ready
        assert nsids(host, ACTIVE) == [2]


def test_all_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    with powered(folder, capacity=None) as host:
        assert delete(host, ALL).status == 0
        assert delete(host, ALL).status == 0
        assert (nsids(host, ALLOCATED), capacity(host)) == ([], (2 * MIB, 2 * MIB))
        assert {path.name for path in folder.iterdir()} == {"namespaces.toml", "sidecar", "flash"}
        host.create_io_queue()
        assert host.command(host.io[1], 0, nsid=ALL).status == 0
        assert log_page(host, 2, 512)[0] == 0
    with powered(folder) as host:
        assert (nsids(host, ALLOCATED), capacity(host)) == ([], (2 * MIB, 2 * MIB))
        assert create(host, 4096, 0).dw0 == 1
        assert capacity(host) == (2 * MIB, 0)


@pytest.mark.parametrize(
    ("blocks", "format", "fields", "status"),
    [
        (512, 1, {}, 0),
        (513, 1, {}, 0x115),
        (4097, 0, {}, 0x115),
        (1 << 63, 1, {}, 0x115),
        ((1 << 64) - 1, 0, {}, 0x115),
        (0, 1, {}, 0x002),
        (8, 1, {"ncap": 7}, 0x11B),
        (8, 1, {"ncap": 0}, 0x11B),
        (8, 1, {"ncap": 9}, 0x002),
        (8, 14, {}, 0x10A),
        (8, 8, {}, 0x10A),  # an extended format, which the host has not enabled
        (8, 1 << 5, {}, 0x10A),
        (8, 1 | 1 << 4, {}, 0),
        (8, 1, {"dps": 1}, 0x10A),
        (8, 5, {"dps": 4}, 0x10A),
        (8, 1, {"nmic": 2}, 0x002),
        (8, 1, {"anagrpid": 1}, 0x002),
        (8, 1, {"nvmsetid": 1}, 0x002),
        (8, 1, {"endgid": 1}, 0x002),
        (8, 1, {"csi": 2}, 0x129),
    ],
)
def test_what_a_namespace_cannot_be(
    blocks: int, format: int, fields: dict[str, int], status: int
) -> None:
    with powered() as host:
        done = create(host, blocks, format, **fields)
        assert done.status == status
        assert len(nsids(host, ALLOCATED)) == (3 if status == 0 else 2)


def test_there_are_as_many_namespaces_as_there_are_identifiers() -> None:
    with powered() as host:
        made = [create(host, 1).dw0 for _ in range(62)]
        assert made == list(range(3, 65))
        assert create(host, 1).status == 0x116
        assert delete(host, 30).status == 0
        assert create(host, 1).dw0 == 30


@pytest.mark.parametrize(
    ("nsid", "sel", "controllers", "status"),
    [
        (3, 0, (0,), 0),
        (1, 0, (0,), 0x118),
        (3, 1, (0,), 0x11A),
        (1, 1, (0,), 0),
        (3, 0, (1,), 0x11C),
        (3, 0, (0, 1), 0x11C),
        (3, 0, (0, 0), 0x11C),
        (3, 0, (1, 0), 0x11C),
        (4, 0, (0,), 0x002),
        (65, 0, (0,), 0x00B),
        (0, 0, (0,), 0x00B),
        (ALL, 0, (0,), 0x002),
        (3, 2, (0,), 0x002),
        (3, 15, (0,), 0x002),
    ],
)
def test_attaching(nsid: int, sel: int, controllers: tuple[int, ...], status: int) -> None:
    with powered() as host:
        assert create(host, 8).dw0 == 3
        assert attach(host, nsid, *controllers, sel=sel).status == status
        listed = set(nsids(host, ACTIVE))
        assert listed == ({1, 2} ^ {nsid} if status == 0 else {1, 2})


@pytest.mark.parametrize("count", [0, 2048, 0xFFFF])
def test_a_controller_list_of_no_or_too_many_controllers(count: int) -> None:
    with powered() as host:
        host.put(struct.pack("<H", count).ljust(PAGE, b"\0"))
        assert host.command(host.admin, ATTACH, nsid=1, cdws=(1,)).status == 0x11C


@pytest.mark.parametrize(
    ("nsid", "sel", "status"), [(3, 1, 0x002), (65, 1, 0x00B), (0, 1, 0x00B), (1, 2, 0x002)]
)
def test_deleting_what_is_not_there(nsid: int, sel: int, status: int) -> None:
    with powered() as host:
        assert host.command(host.admin, MANAGE, nsid=nsid, cdws=(sel,)).status == status
        assert nsids(host, ALLOCATED) == [1, 2]


def test_lists_of_namespaces_and_controllers() -> None:
    with powered() as host:
        assert create(host, 8).dw0 == 3
        assert identify(host, ALLOCATED, 2)[:8] == struct.pack("<II", 3, 0)
        for cns, nsid, cntid, expected in (
            (0x12, 1, 0, (1, 0)),
            (0x12, 1, 1, (0, 0)),
            (0x12, 3, 0, (0, 0)),
            (0x13, 0, 0, (1, 0)),
            (0x13, 0, 1, (0, 0)),
        ):
            assert struct.unpack("<HH", identify(host, cns, nsid, cntid)[:4]) == expected
        for cns, nsid, status in (
            (0x10, ALL, 0x00B),
            (0x10, ALL - 1, 0x00B),
            (0x11, 0, 0x00B),
            (0x11, 65, 0x00B),
            (0x11, 4, 0),
            (0x12, 4, 0x002),
            (0x12, 65, 0x00B),
        ):
            assert host.command(host.admin, 6, nsid=nsid, cdws=(cns,)).status == status
        common = identify(host, 0, ALL)
        assert common[:24] == bytes(24)
        assert (common[25], common[130], common[134]) == (13, 9, 12)


def test_a_host_is_told_what_comes_and_goes() -> None:
    with powered() as host:
        assert host.command(host.admin, SET_FEATURES, cdws=(0xB, 1 << 8)).status == 0
        assert create(host, 8).dw0 == 3
        host.put(struct.pack("<HH", 1, 0))
        for number, (opcode, nsid, sel) in enumerate(
            [(ATTACH, 3, 0), (ATTACH, 3, 1), (MANAGE, 2, 1)]
        ):
            host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
            begin(host, host.admin, EVENT_REQUEST, 0x70 + number)
            begin(host, host.admin, opcode, nsid=nsid, cdws=(sel,))
            finish(host)
            answers = {one.cid: (one.status, one.dw0) for one in host.reap(host.admin)}
            assert answers == {1: (0, 0), 0x70 + number: (0, 0x04_00_02)}
            assert struct.unpack("<II", log_page(host, 4, PAGE)[:8]) == (nsid, 0)


def test_what_was_begun_ends_before_the_namespace_is_gone() -> None:
    with powered() as host:
        queue = host.create_io_queue()
        assert host.command(host.admin, SET_FEATURES, cdws=(6, 0)).status == 0
        host.put(W)
        begin(host, queue, WRITE, 7, nsid=2)
        begin(host, host.admin, MANAGE, 8, nsid=2, cdws=(1,))
        begin(host, queue, READ, 9, nsid=2)
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(9, 0x002)]
        finish(host)
        assert [(one.cid, one.status) for one in host.reap(queue)] == [(7, 0)]
        assert [one.status for one in host.reap(host.admin)] == [0]
        assert nsids(host, ALLOCATED) == [1]


def test_commands_that_change_what_there_is_take_turns() -> None:
    """Two that would each fit, and do not together."""
    with powered() as host:
        page = struct.pack("<QQ", 300, 300).ljust(26, b"\0") + b"\1"
        host.put(page.ljust(PAGE, b"\0"))
        for cid in (1, 2):
            host.place(host.admin, MANAGE, cid)
        host.ring(host.admin)
        host.service()
        finish(host)
        answers = [(one.cid, one.status, one.dw0) for one in host.reap(host.admin)]
        assert answers == [(1, 0, 3), (2, 0x115, 0)]


def test_a_drive_that_was_opened_for_reading_is_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    with powered(folder):
        pass
    with Drive.open(folder, read_only=True) as drive, Host(drive=drive) as host:
        host.enable()
        assert create(host, 8).status == 0x015
        assert attach(host, 1, sel=1).status == 0x015
        assert delete(host, 1).status == 0x015
        assert host.command(host.admin, 0x80, nsid=1, cdws=(0,)).status == 0x020


def test_one_file_is_a_drive_with_one_identifier(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"x" * MIB)
    with Drive.open(image) as drive, Host(drive=drive) as host:
        host.enable()
        assert int.from_bytes(identify(host, 1)[516:520], "little") == 1
        assert (capacity(host), create(host, 8).status) == ((MIB, 0), 0x115)
        assert delete(host, 1).status == 0
        assert image.stat().st_size == 0
    with Drive.open(image) as drive, Host(drive=drive) as host:
        host.enable()
        assert (nsids(host, ALLOCATED), capacity(host)) == ([], (MIB, MIB))
        assert create(host, 1024, 0).dw0 == 1
        assert (create(host, 8).status, capacity(host)) == (0x116, (MIB, MIB // 2))
    with Drive.open(image) as drive:
        assert (drive.namespaces[1].size, drive.block_sizes) == (MIB // 2, {1: 512})


@pytest.mark.parametrize("cut", range(6))
@pytest.mark.parametrize("what", ["create", "delete", "detach"])
def test_a_device_that_is_killed_in_the_middle_has_the_namespace_whole_or_not_at_all(
    tmp_path: Path, what: str, cut: int
) -> None:
    folder = tmp_path / "drive"
    with powered(folder) as host:
        host.create_io_queue()
        assert io(host, WRITE, 2, 0, W) == 0
        if what == "create":
            page = struct.pack("<QQ", 300, 300).ljust(26, b"\0") + b"\1"
            host.put(page.ljust(PAGE, b"\0"))
            begin(host, host.admin, MANAGE)
        elif what == "delete":
            begin(host, host.admin, MANAGE, nsid=2, cdws=(1,))
        else:
            host.put(struct.pack("<HH", 1, 0).ljust(PAGE, b"\0"))
            begin(host, host.admin, ATTACH, nsid=2, cdws=(1,))
        for done in steps(host):
            if done == cut:
                break
        answered = [one.status for one in host.reap(host.admin)] == [0]
        host.executor.waiting.clear()
    before, after = {"create": ({1, 2}, {1, 2, 3}), "delete": ({1, 2}, {1})}.get(
        what, ({1, 2}, {1, 2})
    )
    with powered(folder) as host:
        found = set(nsids(host, ALLOCATED))
        assert found in ((after,) if answered else (before, after))
        files = {path.name for path in folder.iterdir() if path.name.startswith("namespace-")}
        assert files == {f"namespace-{nsid}" for nsid in found}
        assert capacity(host)[1] == 4 * MIB - sum(
            host.board.storage.media[nsid].size for nsid in found
        )
        if 2 in found:
            assert os.pread(host.board.storage.media[2].fd, 512, 0) == W[:512]


def test_nothing_that_was_kept_of_a_deleted_namespace_becomes_its_successor_s(
    tmp_path: Path,
) -> None:
    """A bad block, an LBA range and a saved value, wherever the device is killed in between."""
    for cut in range(1, 20):
        drive = tmp_path / f"{cut}"
        with powered(drive) as host:
            host.create_io_queue()
            assert host.command(host.io[1], 4, nsid=2, cdws=(5,)).status == 0
            host.put(bytes(24) + (7).to_bytes(8, "little") + bytes(32))
            assert host.command(host.admin, SET_FEATURES, nsid=2, cdws=(3, 0)).status == 0
            assert host.command(host.admin, SET_FEATURES, nsid=2, cdws=(1 << 31 | 5, 9)).status == 0
            begin(host, host.admin, MANAGE, nsid=2, cdws=(1,))
            done = next((number for number in steps(host) if number == cut), None)
            host.executor.waiting.clear()
        with powered(drive) as host:
            if nsids(host, ALLOCATED) == [1, 2]:
                assert delete(host, 2).status == 0
            assert create(host, 256, format=0).dw0 == 2
            assert attach(host, 2).status == 0
        with powered(drive) as host:
            host.create_io_queue()
            assert io(host, READ, 2, 5) == 0
            done_get = host.command(host.admin, 0x0A, nsid=2, cdws=(5,))
            assert (done_get.status, done_get.dw0) == (0, 0)
            assert host.command(host.admin, 0x0A, nsid=2, cdws=(3,)).status == 0
            assert host.data(64)[24:32] == (256).to_bytes(8, "little")
        if done is None:
            return
    raise AssertionError("the deletion has no end")


def test_a_file_that_a_crash_has_left_behind_is_not_what_a_new_namespace_has(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "drive"
    with powered(folder) as host:
        (folder / "namespace-3").write_bytes(b"left" * 100000)
        assert create(host, 8).dw0 == 3
        assert os.pread(host.board.storage.media[3].fd, 1 << 20, 0) == bytes(8 * PAGE)


def test_a_failure_leaves_the_namespaces_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Media:
        raise MediaError(28, "no room")

    with powered() as host:
        host.create_io_queue()
        monkeypatch.setattr(Drive, "_change", fails)
        assert (create(host, 8).status, delete(host, 1).status) == (0x115, 0x006)
        assert attach(host, 1, sel=1).status == 0x006
        assert (nsids(host, ACTIVE), nsids(host, ALLOCATED)) == ([1, 2], [1, 2])
        assert io(host, READ, 1) == 0


@pytest.mark.parametrize("opcode", [MANAGE, ATTACH])
def test_memory_that_is_not_there(opcode: int) -> None:
    with powered() as host:
        done = host.command(host.admin, opcode, nsid=1, prp1=1 << 40)
        assert done.status == 0x004


A_NAMESPACE = struct.pack("<QQ", 100, 100).ljust(26, b"\0") + b"\1"
A_CONTROLLER = struct.pack("<HH", 1, 0)
SEEN: Counter[int] = Counter()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([MANAGE, ATTACH, 0x80, 0x14, 0x84, 6]),
            st.sampled_from([0, 1, 2, 3, 64, 65, ALL - 1, ALL]),
            st.one_of(st.integers(0, 0x3FF), st.integers(0, 0xFFFF_FFFF)),
            st.sampled_from([0, 0, 0, 1 << 24]),
            st.one_of(st.binary(max_size=128), st.sampled_from([A_NAMESPACE, A_CONTROLLER])),
        ),
        max_size=12,
    )
)
def test_no_command_breaks_the_accounts(commands: list[tuple[int, int, int, int, bytes]]) -> None:
    with powered() as host:
        for opcode, nsid, dword10, dword11, data in commands:
            host.put(data.ljust(PAGE, b"\0"))
            done = host.command(host.admin, opcode, nsid=nsid, cdws=(dword10, dword11))
            SEEN[done.status] += 1
            assert done.status != 0x006
            there, active = nsids(host, ALLOCATED), nsids(host, ACTIVE)
            assert set(active) <= set(there) == set(host.board.storage.media)
            total, free = capacity(host)
            sizes = sum(one.bytes for nsid in there if (one := namespace(host, nsid)) is not None)
            assert (total, free) == (4 * MIB, 4 * MIB - sizes)
        assert host.rpu.controller.scheduler.calls == set()

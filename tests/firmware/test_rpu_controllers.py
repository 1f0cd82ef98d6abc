"""Several controllers of one NVM subsystem: what they share, and what is each one's own."""

import struct
from pathlib import Path

import pytest

from csd_spec.faults import Fault, FaultKind
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_device.media.store import MemoryMedia
from potash_firmware.rpu.features import values
from potash_firmware.rpu.settings import RpuSettings
from support.controllers import (
    active,
    attach,
    changed,
    controllers,
    end_media_work,
    queues,
    read,
    watch,
    write,
)
from support.extended import settings
from support.nvme_host import CC, CSTS, DATA, NSSR, Host

WRITE, READ, FLUSH, FORMAT, SANITIZE = 0x01, 0x02, 0x00, 0x80, 0x84
IDENTIFY, GET_LOG, SET_FEATURES, GET_FEATURES = 0x06, 0x02, 0x09, 0x0A
ATTACHMENT, MANAGEMENT, EVENT_REQUEST = 0x15, 0x0D, 0x0C
ATTACH, DETACH = 0, 1
NAMESPACE_CHANGED = 2 | 0 << 8 | 4 << 16
SHUT_DOWN = 4 << 20 | 6 << 16 | 1 << 14 | 6 << 4 | 1
PAGE = 4096


def attached(host: Host, nsid: int = 1) -> list[int]:
    """The controllers that a namespace is attached to (CNS 12h)."""
    assert host.command(host.admin, IDENTIFY, nsid=nsid, cdws=(0x12,)).status == 0
    count, *identifiers = struct.unpack_from("<H16H", host.data(PAGE))
    return list(identifiers[:count])


# Isolation.


def test_reads_and_writes_of_the_same_blocks_are_seen_by_both(pair: list[Host]) -> None:
    (first, second), (one, two) = pair, queues(pair)
    assert write(first, one, b"first", 3) == 0
    assert read(second, two, 3)[:5] == b"first"
    assert write(second, two, b"second", 3) == 0
    assert read(first, one, 3)[:6] == b"second"


def test_a_reset_of_one_ends_its_commands_alone(slow_pair: list[Host]) -> None:
    (first, second), (one, two) = slow_pair, queues(slow_pair)
    for host, queue in zip(slow_pair, (one, two), strict=True):
        host.place(queue, READ, 7, nsid=1)
        host.ring(queue)
    first.service()
    first.disable()
    assert not first.ready and second.ready
    first.executor.run_all()
    first.service()
    assert [(one.cid, one.status) for one in second.reap(two)] == [(7, 0)]
    assert first.reap(one) == []
    first.enable()
    assert read(first, first.create_io_queue(1)) == bytes(PAGE)


@pytest.mark.parametrize("how", ["disable", "function", "leaves", "failed"])
def test_nothing_that_one_host_does_to_its_controller_disturbs_the_other(
    pair: list[Host], how: str
) -> None:
    (first, second), (_, two) = pair, queues(pair)
    watch(second)
    match how:
        case "disable":
            first.disable()
        case "function":
            first.board.function_reset()
        case "leaves":
            first.board.detached()
        case "failed":
            first.space.unmap_all()
            first.board.memory_changed()
            first.ring(first.io[1])
    first.service()
    assert write(second, two, b"goes on") == 0
    assert read(second, two)[:7] == b"goes on"
    assert len(second.rpu.subsystem.outstanding[1]) == 1, "the event request still waits"
    assert second.read32(CSTS) == 1


def test_a_reset_of_one_waits_for_its_own_work_on_the_media_only(slow_pair: list[Host]) -> None:
    (first, second), (_, two) = slow_pair, queues(slow_pair)
    second.place(two, READ, 7, nsid=1)
    second.ring(two)
    second.service()
    first.disable()
    first.begin_enable()
    first.service()
    assert first.ready, "though the other's read is still under way"
    first.executor.run_all()
    second.service()
    assert [each.cid for each in second.reap(two)] == [7]


def test_a_bus_master_that_is_off_pauses_one_alone(slow_pair: list[Host]) -> None:
    (first, second), (one, two) = slow_pair, queues(slow_pair)
    first.place(one, READ, 7, nsid=1)
    first.ring(one)
    first.service()
    first.master(False)
    first.executor.run_all()
    for number in range(3000):  # what is remembered of them is bounded
        assert read(second, two, number % 4) == bytes(PAGE)
    assert len(first.rpu.subsystem.scheduler.over) < 2000
    assert first.reap(one) == []
    first.master()
    first.service()
    assert [(each.cid, each.status) for each in first.reap(one)] == [(7, 0)]


@pytest.mark.parametrize("waits", ["write", "read"])
def test_a_host_cannot_keep_the_other_from_blocks_by_work_that_overlaps(
    slow_pair: list[Host], waits: str
) -> None:
    """The command of one waits for what the other had begun, and not for what came later."""
    (first, second), (one, two) = slow_pair, queues(slow_pair)
    others, own = (READ, WRITE) if waits == "write" else (WRITE, READ)

    def flood(cid: int) -> None:
        first.place(one, others, cid, nsid=1, cdws=(0, 0, 1))  # blocks 0 and 1
        first.ring(one)
        first.service()

    flood(0)
    flood(1)
    second.place(two, own, 7, nsid=1, cdws=(1, 0, 0))
    second.ring(two)
    second.service()
    completed: list[int] = []
    for cid in range(2, 9):
        flood(cid)
        first.executor.run_next()
        first.service()
        completed += [each.cid for each in first.reap(one)]
        ended = second.reap(two)
        if ended:
            break
    assert [(each.cid, each.status) for each in ended] == [(7, 0)]
    assert completed == [0, 1], "those that came before, and no others"
    first.executor.run_all()
    first.service()
    end_media_work(first)
    assert len(first.reap(one)) == cid - 1, "and those that waited for it go on"


@pytest.mark.parametrize("how", ["abort", "reset", "bus master"])
def test_nobody_waits_for_a_command_that_does_not_go_on(slow_pair: list[Host], how: str) -> None:
    (first, second), (one, two) = slow_pair, queues(slow_pair)
    first.place(one, READ, 0, nsid=1)
    first.ring(one)
    first.service()
    second.place(two, WRITE, 7, nsid=1)
    second.ring(two)
    second.service()
    first.place(one, READ, 1, nsid=1)
    first.ring(one)
    first.service()
    match how:
        case "abort":
            second.place(second.admin, 0x08, 3, cdws=(7 << 16 | 1,))
            second.ring(second.admin)
        case "reset":
            second.write32(CC, 0)
        case "bus master":
            second.master(False)
    second.service()
    end_media_work(first)
    assert sorted(each.cid for each in first.reap(one)) == [0, 1]
    if how == "bus master":
        second.master()
        second.service()
        end_media_work(second)
        assert [(each.cid, each.status) for each in second.reap(two)] == [(7, 0)]


def test_one_queue_that_is_full_leaves_the_other_going(pair: list[Host]) -> None:
    (first, second), (one, two) = pair, queues(pair)
    for cid in range(15):  # no completion is ever taken
        first.place(one, READ, cid, nsid=1)
    first.ring(one)
    first.service()
    for lba in range(40):
        assert write(second, two, b"%d" % lba, lba) == 0
    assert len(first.reap(one)) == 15


def test_identifiers_of_commands_and_aborts_are_each_controller_s(slow_pair: list[Host]) -> None:
    (first, second), (one, two) = slow_pair, queues(slow_pair)
    for host, queue in zip(slow_pair, (one, two), strict=True):
        host.place(queue, WRITE, 7, nsid=1)
        host.ring(queue)
    first.service()
    aborted = first.command(first.admin, 0x08, cdws=(7 << 16 | 1,), cid=3)
    assert aborted.status == 0
    first.executor.run_all()
    second.service()
    assert [(each.cid, each.status) for each in second.reap(two)] == [(7, 0)]


def test_features_are_those_of_a_controller_or_of_a_namespace(pair: list[Host]) -> None:
    first, second = pair
    assert first.command(first.admin, SET_FEATURES, cdws=(1, 2)).status == 0  # arbitration
    assert first.command(first.admin, SET_FEATURES, nsid=1, cdws=(0x84, 1)).status == 0  # protects
    found = [host.command(host.admin, GET_FEATURES, cdws=(1,)).dw0 & 7 for host in pair]
    assert found == [2, 4]
    found = [host.command(host.admin, GET_FEATURES, nsid=1, cdws=(0x84,)).dw0 for host in pair]
    assert found == [1, 1]
    two = second.create_io_queue(1)
    assert write(second, two, b"no") == 0x020, "Namespace is Write Protected"
    first.disable()
    assert write(second, two, b"no") == 0x020, "which outlives a reset of one"


def test_error_logs_are_each_controller_s_and_numbers_are_the_drive_s(pair: list[Host]) -> None:
    first, second = pair
    for host in (first, second, first):
        assert host.command(host.admin, 0x7F).status == 1  # Invalid Command Opcode
    counts = []
    for host in pair:
        assert host.command(host.admin, GET_LOG, cdws=(1023 << 16 | 1,)).status == 0
        data = host.data(PAGE)
        entries = [struct.unpack_from("<Q", data, at)[0] for at in range(0, PAGE, 64)]
        counts.append([number for number in entries if number])
    assert counts == [[3, 1], [2]]


def test_all_controllers_share_the_room_for_saved_features(
    pair: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "KEPT_LIMIT", 40)  # two values have room, three have none
    statuses = [
        host.command(host.admin, SET_FEATURES, cdws=(1 << 31 | fid, 1)).status
        for fid in (1, 8)  # arbitration, interrupt coalescing
        for host in pair
    ]
    assert statuses == [0, 0, 6, 6]


def test_telemetry_is_each_controller_s(pair: list[Host]) -> None:
    def telemetry(host: Host, lid: int, create: int = 0) -> bytes:
        status = host.command(host.admin, GET_LOG, cdws=(1023 << 16 | 1 << 15 | create | lid,))
        assert status.status == 0
        return host.data(PAGE)

    first, second = pair
    for number, host in enumerate(pair):
        host.put(b"identifier %5d" % number)
        assert host.command(host.admin, SET_FEATURES, cdws=(0x81, 1)).status == 0
    for lid, create in ((7, 1 << 8), (8, 0)):
        if not create:
            first.rpu.subsystem.controllers[0].internal_fault("a mistake")
        assert b"identifier     0".hex().encode() in telemetry(first, lid, create)
        assert b"identifier     0".hex().encode() not in telemetry(second, lid)
        assert telemetry(second, lid)[8:14] == bytes(6), "last blocks"
    second.board.function_reset()
    second.service()
    assert telemetry(first, 7)[8:14] != bytes(6) != telemetry(first, 8)[8:14]


# Namespaces.


def test_a_namespace_is_detached_from_one_and_attached_again(pair: list[Host]) -> None:
    (first, second), (one, two) = pair, queues(pair)
    for host in pair:
        assert host.command(host.admin, SET_FEATURES, cdws=(0x0B, 1 << 8)).status == 0
        watch(host)
    assert attached(first) == [0, 1]
    assert attach(first, 1, sel=DETACH) == 0
    events = second.reap(second.admin)
    assert [(each.cid, each.dw0) for each in events] == [(0x99, NAMESPACE_CHANGED)]
    assert attached(second) == attached(first) == [0]
    assert (active(first), active(second)) == ([1], [])
    assert second.command(two, READ, nsid=1).status == 0x002, "Invalid Field in Command"
    assert read(first, one) == bytes(PAGE)
    assert (changed(first), changed(second)) == ([], [1])
    assert attach(first, 1, sel=DETACH) == 0x11A, "Namespace Not Attached"
    assert attach(first, 0, 1) == 0x118, "Namespace Already Attached"
    assert attach(second, 1) == 0
    assert attached(first) == [0, 1] and read(second, two) == bytes(PAGE)


@pytest.mark.parametrize("identifiers", [(2,), (0, 2), (1, 0), (0, 0), ()])
def test_lists_of_controllers_that_are_invalid(
    pair: list[Host], identifiers: tuple[int, ...]
) -> None:
    first, _ = pair
    assert attach(first, *identifiers, sel=DETACH) == 0x11C
    assert attached(first) == [0, 1]


def test_commands_in_flight_of_a_controller_that_loses_a_namespace(slow_pair: list[Host]) -> None:
    (first, second), (one, two) = slow_pair, queues(slow_pair)
    for host, queue in zip(slow_pair, (one, two), strict=True):
        host.put(b"A" * PAGE)
        host.place(queue, WRITE, 7, nsid=1)
        host.ring(queue)
    first.service()
    first.put(struct.pack("<HH", 1, 1).ljust(PAGE, b"\0"), DATA + PAGE)
    first.place(first.admin, ATTACHMENT, 9, nsid=1, prp1=DATA + PAGE, cdws=(DETACH,))
    first.ring(first.admin)
    first.service()
    assert first.reap(first.admin) == [], "it waits for what the media do"
    first.executor.run_all()
    first.service()
    first.executor.run_all()
    first.service()
    assert [(each.cid, each.status) for each in first.reap(one)] == [(7, 0)]
    assert [(each.cid, each.status) for each in second.reap(two)] == [(7, 0)]
    assert [(each.cid, each.status) for each in first.reap(first.admin)] == [(9, 0)]
    assert write(first, one, b"B") == 0
    assert second.command(two, WRITE, nsid=1).status != 0


def test_private_namespaces_are_one_controller_s() -> None:
    shapes = {
        1: NamespaceShape(1 << 20, controllers=(1,)),
        2: NamespaceShape(1 << 20),
    }
    media = {nsid: MemoryMedia.create(1 << 20) for nsid in shapes}
    with controllers(2, media=media, shapes=shapes) as (first, second):
        assert (active(first), active(second)) == ([2], [1, 2])
        assert first.command(first.admin, IDENTIFY, nsid=1, cdws=(0x11,)).status == 0
        assert first.data(PAGE)[30] == 0, "NMIC"
        assert attach(first, 0) == 0x119, "Namespace Is Private"
        inventory = first.rpu.subsystem.inventory
        versions = [inventory.version]
        assert set(inventory.of_accelerators) == {2}
        two = second.create_io_queue(1)
        assert second.command(two, 0x04, nsid=1, cdws=(7, 0, 0)).status == 0  # Write Uncorrectable
        elements = []
        for host, offset in ((second, 0), (first, 16), (second, 16)):
            cdws = (15 << 16 | 0x0E, 0, offset)
            assert host.command(host.admin, GET_LOG, cdws=cdws).status == 0
            elements.append(struct.unpack_from("<I", host.data(8), 4 if not offset else 0)[0])
        assert elements == [1, 0, 1], "the other one does not learn which blocks cannot be read"
        assert attach(second, 1, sel=DETACH) == 0
        assert attach(first, 0) == 0 and active(first) == [1, 2] and active(second) == [2]
        versions.append(inventory.version)
        assert set(inventory.of_accelerators) == {1, 2}
        assert attach(first, 0, sel=DETACH) == 0
        versions.append(inventory.version)
        assert set(inventory.of_accelerators) == {2}
        assert len(set(versions)) == 3, "workers that have a descriptor are ended"


def test_namespaces_that_a_host_makes_are_private_or_shared() -> None:
    drive = Drive.open(None, (NamespaceShape(1 << 20),), capacity=8 << 20)
    with controllers(2, drive=drive) as (first, second):
        for nmic in (0, 1):
            first.put(struct.pack("<QQ", 64, 64).ljust(30, b"\0") + bytes([nmic]) + bytes(PAGE))
            made = first.command(first.admin, MANAGEMENT, cdws=(0,))
            assert (made.status, made.dw0) == (0, 2 + nmic)
        assert attach(first, 0, 1, nsid=2) == 0x119
        assert attach(first, 0, 1, nsid=3) == 0
        assert (active(first), active(second)) == ([1, 3], [1, 3])
        assert second.command(second.admin, MANAGEMENT, nsid=3, cdws=(1,)).status == 0
        assert (changed(first), changed(second)) == ([3], [3])


# Resets of the subsystem, shutdowns, and what outlives them.


def test_a_reset_of_the_subsystem_resets_every_controller(pair: list[Host]) -> None:
    first, second = pair
    second.write32(NSSR, 0x4E56_4D65)
    second.service()
    for host in pair:
        assert host.read32(CSTS) == 1 << 4 and host.read32(CC) == 0  # CSTS.NSSRO
        host.enable()
    assert [first.command(first.admin, IDENTIFY, cdws=(1,)).status for _ in pair] == [0, 0]


def test_a_drive_is_shut_down_with_its_last_controller(pair: list[Host]) -> None:
    def shut_down() -> object:
        return pair[0].sidecar._sections.get("shutdown")

    for number, host in enumerate(pair):
        host.write32(CC, SHUT_DOWN)
        host.service()
        host.executor.run_all()
        host.service()
        assert host.read32(CSTS) == 2 << 2 | 1
        assert shut_down() == (number == 1)


def test_the_other_goes_on_while_one_is_shut_down(pair: list[Host]) -> None:
    (first, second), (_, two) = pair, queues(pair)
    first.write32(CC, SHUT_DOWN)
    first.service()
    first.executor.run_all()
    assert write(second, two, b"goes on") == 0
    first.service()
    assert first.read32(CSTS) == 2 << 2 | 1 and second.read32(CSTS) == 1


def test_counters_of_data_are_the_drive_s(pair: list[Host]) -> None:
    (first, second), (one, two) = pair, queues(pair)
    for host, queue in ((first, one), (second, two)):
        read(host, queue)
    assert first.rpu.subsystem.health.reads == 2
    assert [each.statistics.reads.count for each in first.rpu.subsystem.controllers] == [1, 1]


def test_a_fault_is_about_one_controller_or_about_any(pair: list[Host]) -> None:
    (first, second), (one, two) = pair, queues(pair)
    faults = first.rpu.subsystem.faults
    faults.add(Fault(FaultKind.STATUS, status=0x281, controller=2))
    assert second.command(two, READ, nsid=1).status == 0x281
    assert first.command(one, READ, nsid=1).status == 0
    faults.clear()
    faults.add(Fault(FaultKind.INTERRUPT, controller=1))
    for host, queue in ((first, one), (second, two)):
        host.lines.fired.clear()
        assert host.command(queue, READ, nsid=1).status == 0
    assert 1 not in first.lines.fired and 1 in second.lines.fired
    faults.clear()
    faults.add(Fault(FaultKind.STATUS, status=0x281))
    pairs = ((first, one), (second, two))
    assert [host.command(queue, READ, nsid=1).status for host, queue in pairs] == [0x281] * 2


def test_asymmetric_access_is_of_each_controller() -> None:
    """A fault at a time is of all controllers, or of one; one by commands is of their controller."""
    media = {1: MemoryMedia.create(1 << 20)}
    with controllers(2, media=media, settings=RpuSettings(ana=True)) as hosts:
        both = queues(hosts)
        lost = Fault(FaultKind.ACCESS_STATE, times=1, group=1, state=3, delay=1000)

        def add(**fields: int) -> list[int]:
            """Add a fault, and pass its time; the statuses of a read by each controller."""
            hosts[0].rpu.controller.faults.add(lost._replace(**fields))
            hosts[0].now += 0.006
            hosts[0].service()
            return [
                host.command(queue, READ, nsid=1).status
                for host, queue in zip(hosts, both, strict=True)
            ]

        assert add(controller=2) == [0, 0x302]
        assert add(state=2) == [0, 0]
        assert add(delay=0, controller=1) == [0x302, 0]
        assert add(state=1) == [0, 0]
        assert add(state=4, controller=2) == [0, 0x301]
        # A namespace is not attached to a controller that has lost access to its group.
        assert attach(hosts[0], 0, 1, sel=DETACH) == 0
        assert attach(hosts[0], 0, 1) == 0x125
        assert attach(hosts[0], 0) == 0
        assert attached(hosts[0]) == [0]


def test_functions_of_extensions_see_the_controller_of_their_command(tmp_path: Path) -> None:
    text = """
    @admin_command(0xC4, name="Count", data="none")
    def count(drive, command):
        return 256 * len(drive.namespaces) + drive.feature(0xC5)

    @feature(0xC5, name="Mine", default=7)
    def mine(drive, value):
        pass
    """
    media = {nsid: MemoryMedia.create(1 << 20) for nsid in (1, 2)}
    shapes = {1: NamespaceShape(1 << 20), 2: NamespaceShape(1 << 20, controllers=(1,))}
    mine = settings(tmp_path, text)
    with controllers(2, media=media, shapes=shapes, settings=mine) as (first, second):
        found = [host.command(host.admin, 0xC4).dw0 for host in (first, second)]
        assert found == [0x107, 0x207]
        assert second.command(second.admin, SET_FEATURES, cdws=(0xC5, 9)).status == 0
        found = [host.command(host.admin, 0xC4).dw0 for host in (first, second)]
        assert found == [0x109, 0x209], "features of extensions are the drive's"

"""Asymmetric namespace access: states, what works in them, the log page and its event.

Expected values are those of NVM Express Base Specification 2.0, section 8.1 (2.2, figure 589) and
5.16.1.13, by literal numbers and offsets.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_spec.faults import Fault, FaultKind
from nvme_spec.asymmetric_access import AccessState
from nvme_spec.identify.capabilities import CommandSet
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware.rpu.admin import ADMIN_COMMANDS
from potash_firmware.rpu.command_sets import COMMANDS
from potash_firmware.rpu.dispatch import NamespaceUse
from potash_firmware.rpu.features.table import FEATURES
from potash_firmware.rpu.namespaces.asymmetric_access import UNAVAILABLE, AsymmetricAccess
from potash_firmware.rpu.settings import RpuSettings
from support.migration import moved
from support.namespaces import (
    ALL,
    EVENT_REQUEST,
    IDENTIFY,
    READ,
    SELF_TEST,
    SET_FEATURES,
    WRITE,
    attach,
    create,
    delete,
    format_,
    identify,
    io,
    log_page,
)
from support.nvme_host import PAGE, Cqe, Host

MIB = 1 << 20
GET_FEATURES, GET_LOG, FLUSH = 0x0A, 0x02, 0x00
ANA_LOG = 0x0C
OPTIMIZED, NON_OPTIMIZED, INACCESSIBLE, LOST = (AccessState(number) for number in (1, 2, 3, 4))
CHANGE = 0xF
STATUS = {INACCESSIBLE: 0x302, LOST: 0x301}
W = b"w" * PAGE
Groups = list[tuple[int, int, int, list[int]]]
"""Identifier, change count, state and namespaces of each group of the log page."""


@contextmanager
def powered(path: Path | None = None, *, faults: tuple[Fault, ...] = ()) -> Iterator[Host]:
    """A drive with namespaces 1 and 2 in group 1, and 3 in group 7; with an I/O queue."""
    shapes = [NamespaceShape(MIB), NamespaceShape(MIB), NamespaceShape(MIB, ana_group=7)]
    new = path is None or not (path / "namespaces.toml").exists()
    with (
        Drive.open(path, shapes if new else (), capacity=8 * MIB if new else None) as drive,
        Host(drive=drive, settings=RpuSettings(ana=True, faults=faults)) as host,
    ):
        host.enable()
        host.create_io_queue()
        yield host


def ana(host: Host) -> AsymmetricAccess:
    found = host.rpu.controller.ana
    assert found is not None
    return found


def change(host: Host, group: int, state: AccessState, transition: float = 0.0) -> None:
    ana(host).change(group, state, transition)
    host.service()


def read(host: Host, nsid: int = 1) -> int:
    """Read a block while no time passes; the status."""
    host.place(host.io[1], READ, 9, nsid=nsid)
    host.ring(host.io[1])
    host.service()
    (done,) = host.reap(host.io[1])
    return done.status


def groups(host: Host, *, only: bool = False) -> tuple[int, Groups]:
    """The log page: its change count, and its groups."""
    cdws = ((1023 << 16) | only << 8 | ANA_LOG,)
    host.place(host.admin, GET_LOG, 1, nsid=ALL, cdws=cdws)
    host.ring(host.admin)
    host.service()
    assert [done.status for done in host.reap(host.admin)] == [0]
    page = host.data(PAGE)
    count, number = struct.unpack_from("<QH6x", page)
    found, at = [], 16
    for _ in range(number):
        group, nsids, changes, state = struct.unpack_from("<IIQB15x", page, at)
        found.append((group, changes, state, [*struct.unpack_from(f"<{nsids}I", page, at + 32)]))
        at += 32 + 4 * nsids
    return count, found


def features(host: Host, opcode: int, fid: int, nsid: int, value: int = 0, save: int = 0) -> Cqe:
    return host.command(host.admin, opcode, nsid=nsid, cdws=(save << 31 | fid, value))


def test_identify_and_the_log_page_have_the_groups() -> None:
    with powered() as host:
        controller = identify(host, 1)
        assert controller[76] == 1 << 1 | 1 << 3
        assert int.from_bytes(controller[92:96], "little") & 1 << 11
        assert (controller[342], controller[343]) == (10, 0xDF)
        assert struct.unpack_from("<II", controller, 344) == (64, 64)
        most = struct.unpack_from("<I", controller, 516)[0]
        assert struct.unpack_from("<I", controller, 540)[0] == most  # Linux wants MNAN
        for nsid, group in ((1, 1), (2, 1), (3, 7)):
            assert struct.unpack_from("<I", identify(host, 0, nsid), 92)[0] == group
            assert struct.unpack_from("<I", identify(host, 8, nsid), 4)[0] == group
        assert groups(host) == (0, [(1, 0, 1, [1, 2]), (7, 0, 1, [3])])
        assert groups(host, only=True) == (0, [(1, 0, 1, []), (7, 0, 1, [])])
        assert log_page(host, 0, 1024)[4 * ANA_LOG] == 1


def test_without_the_option_nothing_is_reported() -> None:
    with Host() as host:
        host.enable()
        controller = identify(host, 1)
        assert controller[76] == 0
        assert not int.from_bytes(controller[92:96], "little") & 1 << 11
        assert not any(controller[342:352]) and not any(controller[540:544])
        assert not any(identify(host, 0, 1)[92:96]) and not any(identify(host, 8, 1)[4:8])
        assert host.command(host.admin, GET_LOG, cdws=(3 << 16 | ANA_LOG,)).status == 0x109


@pytest.mark.parametrize("state", [INACCESSIBLE, LOST])
def test_commands_without_access_end_with_the_state_and_may_be_sent_elsewhere(
    state: AccessState,
) -> None:
    with powered() as host:
        assert io(host, WRITE, 1, 0, W) == 0
        change(host, 1, state)
        for opcode in (READ, WRITE, FLUSH, 0x04, 0x05, 0x08, 0x09, 0x0C):
            done = host.command(host.io[1], opcode, nsid=1)
            assert (done.status, done.dnr) == (STATUS[state], False), hex(opcode)
        assert io(host, READ, 3) == 0
        assert host.command(host.io[1], FLUSH, nsid=ALL).status == STATUS[state]
        assert host.command(host.io[1], FLUSH, nsid=3).status == 0
        assert host.command(host.io[1], FLUSH, nsid=9).status == 0x002


def test_commands_of_every_command_set_need_access() -> None:
    shapes = {
        1: NamespaceShape(MIB),
        2: NamespaceShape.zoned(MIB, MIB),
        3: NamespaceShape.key_value(MIB),
        4: NamespaceShape.memory(MIB),
        5: NamespaceShape.compute(),
    }
    with (
        Drive.open(None, [*shapes.values()]) as drive,
        Host(drive=drive, settings=RpuSettings(ana=True)) as host,
    ):
        host.css = 6
        host.enable()
        queue = host.create_io_queue()
        change(host, 1, INACCESSIBLE)
        asked = 0
        for nsid, shape in shapes.items():
            for opcode, row in COMMANDS[CommandSet(shape.csi)].items():
                if row.namespace is not NamespaceUse.NONE:
                    asked += 1
                    assert host.command(queue, opcode, nsid=nsid).status == 0x302, (nsid, opcode)
        for opcode, row in ADMIN_COMMANDS.items():
            if row.namespace is NamespaceUse.ONE:
                asked += 1
                assert host.command(host.admin, opcode, nsid=1).status == 0x302, opcode
        assert asked > 40


def test_a_copy_needs_access_to_its_sources_and_programs_to_their_memory() -> None:
    memory = NamespaceShape.memory(MIB)._replace(ana_group=7)
    shapes = [NamespaceShape(MIB), memory, NamespaceShape.memory(MIB), NamespaceShape.compute()]
    with (
        Drive.open(None, shapes) as drive,
        Host(drive=drive, settings=RpuSettings(ana=True)) as host,
    ):
        host.css = 6
        host.enable()
        queue = host.create_io_queue()
        sources = struct.pack("<IIQI12x", 2, 0, 0, PAGE)
        for state, status in ((OPTIMIZED, 0), (INACCESSIBLE, 0x302), (NON_OPTIMIZED, 0)):
            change(host, 7, state)
            assert (host.rpu.controller.compute._memory(2) is not None) is (status == 0)
            host.put(sources)
            assert host.command(queue, 0x19, nsid=1, cdws=(0, 0, 4 << 8)).status == status


def test_a_fused_operation_needs_access() -> None:
    with powered() as host:
        change(host, 7, INACCESSIBLE)
        queue = host.io[1]
        host.place(queue, 0x05, 1, nsid=3, flags=1)
        host.place(queue, WRITE, 2, nsid=3, flags=2)
        host.ring(queue)
        host.service()
        assert [done.status for done in host.reap(queue)] == [0x302, 0x009]


@pytest.mark.parametrize("state", [INACCESSIBLE, LOST])
def test_admin_commands_work_as_the_standard_says(state: AccessState) -> None:
    refused = STATUS[state]
    with powered() as host:
        for nsid in (1, ALL):
            assert features(host, SET_FEATURES, 5, nsid, 7).status == 0
        change(host, 1, state)
        # Identify gives no capacities; everything else of it is as before.
        page = identify(host, 0, 1)
        assert struct.unpack_from("<QQQ", page) == (256, 256, 0) and not any(page[48:64])
        page = identify(host, 0, 3)
        assert struct.unpack_from("<QQQ", page) == (256, 256, 256) and any(page[48:64])
        assert features(host, GET_FEATURES, 5, 1).status == refused
        assert features(host, GET_FEATURES, 5, 3).dw0 == 7
        assert features(host, GET_FEATURES, 0x84, 1).status == 0
        assert features(host, SET_FEATURES, 5, 1, 7).status == refused
        assert features(host, SET_FEATURES, 5, ALL, 7).status == refused
        assert features(host, SET_FEATURES, 5, 3, 7).status == 0
        assert features(host, SET_FEATURES, 4, 0, 300, save=1).status == 0
        write_protection = features(host, SET_FEATURES, 0x84, 1, 0).status
        assert write_protection == (refused if state is LOST else 0)
        for nsid in (1, ALL):
            assert format_(host, nsid, 1).status == refused
            assert delete(host, nsid).status == refused
        assert host.command(host.admin, SELF_TEST, nsid=1, cdws=(1,)).status == refused
        assert host.command(host.admin, SELF_TEST, nsid=ALL, cdws=(1,)).status == 0
        assert host.command(host.admin, GET_LOG, nsid=1, cdws=(127 << 16 | 2,)).status == 0
        assert host.command(host.admin, IDENTIFY, nsid=1, cdws=(3,)).status == 0
        assert attach(host, 1, sel=1).status == 0
        assert attach(host, 1).status == (0x125 if state is LOST else 0)


def test_no_feature_can_be_saved_without_access() -> None:
    saved = {fid for fid, row in FEATURES.items() if row.namespace_specific and row.saveable}
    assert saved <= UNAVAILABLE


def test_non_optimized_access_is_access() -> None:
    with powered() as host:
        change(host, 1, NON_OPTIMIZED)
        assert io(host, WRITE, 1, 0, W) == 0
        assert io(host, READ, 1) == 0
        assert host.data(PAGE) == W
        assert format_(host, 1, 1).status == 0
        assert groups(host) == (1, [(1, 1, 2, [1, 2]), (7, 0, 1, [3])])


def test_a_transition_takes_its_time_and_ends_in_the_state() -> None:
    with powered() as host:
        change(host, 1, INACCESSIBLE, 2.5)
        assert read(host) == 0x303
        assert groups(host) == (1, [(1, 1, CHANGE, [1, 2]), (7, 0, 1, [3])])
        host.now += 2.4
        host.service()
        assert groups(host)[1][0][2] == CHANGE
        host.now += 0.2
        host.service()
        assert groups(host)[1][0] == (1, 2, INACCESSIBLE, [1, 2])
        assert io(host, READ, 1) == 0x302


def test_a_later_change_takes_the_place_of_a_transition() -> None:
    with powered() as host:
        change(host, 1, INACCESSIBLE, 5)
        change(host, 1, OPTIMIZED)
        host.now += 6
        host.service()
        assert groups(host)[1][0][:3] == (1, 2, OPTIMIZED)
        assert io(host, READ, 1) == 0


def test_changes_that_cannot_be_are_refused() -> None:
    with powered() as host:
        for group, state, transition, why in (
            (0, OPTIMIZED, 0, "no ANA group 0"),
            (65, OPTIMIZED, 0, "no ANA group 65"),
            (1, AccessState.CHANGE, 0, "transition time"),
            (1, OPTIMIZED, 10.5, "at most 10 seconds"),
        ):
            with pytest.raises(ValueError, match=why):
                ana(host).change(group, state, transition)
        change(host, 1, LOST)
        with pytest.raises(ValueError, match="persistent loss"):
            ana(host).change(1, OPTIMIZED)
        change(host, 1, LOST)
        assert groups(host) == (1, [(1, 1, 4, [1, 2]), (7, 0, 1, [3])])


def test_the_state_outlives_resets_and_not_the_power() -> None:
    with powered() as host:
        change(host, 1, INACCESSIBLE)
        host.disable()
        host.enable()
        host.create_io_queue()
        assert io(host, READ, 1) == 0x302
        assert io(host, READ, 3) == 0


def test_the_event_comes_once_for_each_change_that_the_host_reads_of() -> None:
    with powered() as host:
        assert features(host, SET_FEATURES, 0x0B, 0, 1 << 11).status == 0
        host.place(host.admin, EVENT_REQUEST, 0x77)
        host.ring(host.admin)
        host.service()
        change(host, 1, NON_OPTIMIZED, 1)
        assert not host.reap(host.admin)  # the Change state has no event
        host.now += 1.1
        host.service()
        (event,) = host.reap(host.admin)
        assert (event.cid, event.dw0) == (0x77, ANA_LOG << 16 | 3 << 8 | 2)
        host.place(host.admin, EVENT_REQUEST, 0x78)
        host.ring(host.admin)
        host.service()
        change(host, 7, INACCESSIBLE)
        assert not host.reap(host.admin)
        host.place(host.admin, GET_LOG, 0x79, nsid=ALL, cdws=(1023 << 16 | ANA_LOG,))
        host.ring(host.admin)
        host.service()
        assert [done.cid for done in host.reap(host.admin)] == [0x79]
        change(host, 7, OPTIMIZED)
        assert [done.cid for done in host.reap(host.admin)] == [0x78]


def test_the_change_count_follows_the_namespaces_of_a_group() -> None:
    with powered() as host:
        assert groups(host)[0] == 0
        assert attach(host, 3, sel=1).status == 0
        assert groups(host) == (1, [(1, 0, 1, [1, 2])])
        assert attach(host, 3).status == 0
        assert groups(host) == (2, [(1, 0, 1, [1, 2]), (7, 2, 1, [3])])


def test_a_new_namespace_is_in_the_group_that_the_host_names(tmp_path: Path) -> None:
    with powered(tmp_path / "drive") as host:
        assert create(host, 64, anagrpid=65).status == 0x124
        assert create(host, 64, anagrpid=64).dw0 == 4
        assert create(host, 64).dw0 == 5
        assert attach(host, 4).status == attach(host, 5).status == 0
        assert groups(host)[1][0][3] == [1, 2, 5]
    with powered(tmp_path / "drive") as host:
        assert [group[0] for group in groups(host)[1]] == [1, 7, 64]
        change(host, 64, INACCESSIBLE)
        assert io(host, READ, 4) == 0x302


def test_commands_that_have_begun_end_as_usual() -> None:
    with powered() as host:
        host.put(W)
        host.place(host.io[1], WRITE, 5, nsid=1, cdws=(0, 0, 1 << 30))  # FUA: by the executor
        host.ring(host.io[1])
        host.service()
        assert host.executor.waiting
        change(host, 1, INACCESSIBLE)
        host.executor.run_all()
        host.service()
        assert [(done.cid, done.status) for done in host.reap(host.io[1])] == [(5, 0)]


STEPS = st.one_of(
    st.tuples(
        st.just("change"),
        st.sampled_from([1, 7]),
        st.sampled_from([OPTIMIZED, NON_OPTIMIZED, INACCESSIBLE, LOST]),
        st.sampled_from([0, 0, 2, 10]),
    ),
    st.tuples(st.just("pass"), st.integers(1, 12)),
    st.tuples(st.just("detach"), st.integers(1, 3)),
    st.tuples(st.just("attach"), st.integers(1, 3)),
    st.tuples(st.just("log")),
)


@given(st.lists(STEPS, max_size=25))
@settings(deadline=None, max_examples=60)
def test_a_random_history_is_that_of_a_plain_model(history: list[tuple[Any, ...]]) -> None:
    """The model has a state, a pending state with its time, and a change count for each group."""
    members = {1: 1, 2: 1, 3: 7}
    states, changes = {1: 1, 7: 1}, {1: 0, 7: 0}
    pending: dict[int, tuple[float, int]] = {}
    attached, now = {1, 2, 3}, 0.0
    listed = {1: [1, 2], 7: [3]}

    def enter(group: int, state: int) -> None:
        changes[group] += state != states[group]
        states[group] = state

    with powered() as host:
        groups(host)
        for step in history:
            match step:
                case ("change", group, state, transition):
                    if 4 in (states[group], pending.get(group, (0, 0))[1]) and state != 4:
                        with pytest.raises(ValueError, match="persistent loss"):
                            change(host, group, state, transition)
                        continue
                    change(host, group, state, transition)
                    pending.pop(group, None)
                    enter(group, CHANGE if transition else state)
                    if transition:
                        pending[group] = (now + transition, state)
                case ("pass", seconds):
                    now += seconds
                    host.now += seconds + 1e-6
                    host.service()
                    for group in [group for group, (due, _) in pending.items() if due <= now]:
                        enter(group, pending.pop(group)[1])
                case ("detach", nsid) if nsid in attached and not pending:
                    assert attach(host, nsid, sel=1).status == 0
                    attached.remove(nsid)
                case ("attach", nsid) if nsid not in attached and not pending:
                    lost = states[members[nsid]] == 4
                    assert attach(host, nsid).status == (0x125 if lost else 0)
                    attached |= set() if lost else {nsid}
                case ("log",):
                    for group, before in listed.items():
                        found = [nsid for nsid in sorted(attached) if members[nsid] == group]
                        changes[group] += found != before
                        listed[group] = found
                    assert groups(host) == (
                        sum(changes.values()),
                        [(g, changes[g], states[g], listed[g]) for g in (1, 7) if listed[g]],
                    )
            for nsid, group in members.items():
                refusal = {3: 0x302, 4: 0x301, CHANGE: 0x303}.get(states[group], 0)
                assert read(host, nsid) == (refusal if nsid in attached else 0x002)


def test_states_are_moved_to_another_drive() -> None:
    with powered() as host, powered() as other:
        assert features(host, SET_FEATURES, 0x0B, 0, 1 << 11).status == 0
        host.place(host.admin, EVENT_REQUEST, 0x77)
        host.ring(host.admin)
        change(host, 7, NON_OPTIMIZED)
        assert [done.cid for done in host.reap(host.admin)] == [0x77]
        assert groups(host)[0] == 1
        change(host, 1, INACCESSIBLE, 5)
        moved(host, other)
        assert read(other) == 0x302
        assert groups(other) == (3, [(1, 2, INACCESSIBLE, [1, 2]), (7, 1, NON_OPTIMIZED, [3])])
        other.place(other.admin, EVENT_REQUEST, 0x78)
        other.ring(other.admin)
        other.service()
        assert not other.reap(other.admin)  # it has read the page


ACCESS_FAULT = Fault(FaultKind.ACCESS_STATE, times=1, group=1, state=3)


def test_a_fault_changes_the_state_between_commands_and_back() -> None:
    fault = ACCESS_FAULT._replace(after=3, times=2, lasting=50_000)
    with powered(faults=(fault,)) as host:
        statuses = []
        for _ in range(2):
            statuses.append([read(host) for _ in range(6)])
            assert read(host, 3) == 0
            host.now += 0.06
            host.service()
        assert statuses == [[0, 0, 0, 0x302, 0x302, 0x302], [0x302] * 6]
        assert read(host) == 0
        (listed,) = host.rpu.controller.faults.listed()
        assert listed.triggered == 2


def test_changes_that_end_go_back_to_the_state_that_was_to_stay() -> None:
    with powered() as host:
        ana(host).change(1, INACCESSIBLE, lasting=9)
        ana(host).change(1, NON_OPTIMIZED, lasting=1)
        host.now += 1.1
        host.service()
        assert ana(host).state(1) is OPTIMIZED


def test_a_fault_changes_the_state_at_a_time() -> None:
    with powered() as host:
        fault = ACCESS_FAULT._replace(delay=2_000_000, state=4, transition=1_000_000)
        host.rpu.controller.faults.add(fault)
        host.now += 1.9
        host.service()
        assert read(host) == 0
        host.now += 0.2
        host.service()
        assert read(host) == 0x303
        host.now += 1
        host.service()
        assert read(host) == 0x301

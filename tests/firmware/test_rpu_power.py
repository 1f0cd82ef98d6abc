"""Power states of a drive whose time is modelled: what an idle drive enters, and what waking costs.

Expected times are those of a second drive of the same profile, asked when the first one is awake.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nvme_spec.features import FeatureId, PowerManagement
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import Op
from support.controllers import controllers
from support.modelled_time import PROFILE, completions, modelled, timing_of
from support.nvme_host import DATA, PAGE, Host, Queue

MS = 10**6
TO_FIRST, TO_SECOND = 100, 400


@pytest.fixture
def host() -> Iterator[Host]:
    with Host(settings=replace(modelled(), power_states=True)) as host:
        host.enable()
        yield host


def set_feature(host: Host, fid: FeatureId, value: int, data: bytes = b"") -> int:
    host.put(data)
    command = (fid, value)
    return host.command(host.admin, AdminOpcode.SET_FEATURES, prp1=DATA, cdws=command).status


def transitions(*entries: tuple[int, int]) -> bytes:
    """The data of the feature: for each state, milliseconds and the state that is entered."""
    words = [milliseconds << 8 | state << 3 for milliseconds, state in entries]
    return struct.pack("<32Q", *words, *[0] * (32 - len(words)))


def allow(host: Host, *entries: tuple[int, int]) -> int:
    fid = FeatureId.AUTONOMOUS_POWER_STATE_TRANSITION
    return set_feature(host, fid, 1, transitions(*entries))


def state(host: Host) -> int:
    done = host.command(host.admin, AdminOpcode.GET_FEATURES, cdws=(FeatureId.POWER_MANAGEMENT,))
    return PowerManagement(done.dw0).ps


def read(host: Host, queue: Queue, model: Drive, at: int, awake: int) -> int:
    """Read a page `at` a time, when the drive is awake at a time. Returns the completion."""
    host.now = at / 1e9
    host.place(queue, IoOpcode.READ, 1, nsid=1, prp2=DATA + PAGE, cdws=(0, 0, 0))
    host.ring(queue)
    host.service()
    done = completions(host, queue)[1]
    assert done == model.submit(awake, Op.READ, 0, 1)
    return done


def test_an_idle_drive_enters_states_and_wakes_up(host: Host) -> None:
    queue, model = host.create_io_queue(), Drive(PROFILE)
    assert allow(host, (TO_FIRST, 1), (TO_SECOND, 2)) == 0
    done = read(host, queue, model, MS, MS)
    at = done + TO_FIRST * MS - 1
    done = read(host, queue, model, at, at)
    # While it enters the state, it has to do that first.
    done = read(host, queue, model, done + TO_FIRST * MS, done + (TO_FIRST + 1 + 1) * MS)
    at = done + (TO_FIRST + 300) * MS
    host.now = at / 1e9
    assert state(host) == 1
    done = read(host, queue, model, at, at + MS)
    assert state(host) == 0
    at = done + 2000 * MS
    host.now = at / 1e9
    assert state(host) == 2
    read(host, queue, model, at, at + 25 * MS)
    power = host.rpu.controller.power
    assert power is not None and power.transitions == 2 + 2 + 3


def test_a_host_selects_a_state(host: Host) -> None:
    queue, model = host.create_io_queue(), Drive(PROFILE)
    host.now = 1.0
    assert set_feature(host, FeatureId.POWER_MANAGEMENT, 2) == 0
    assert state(host) == 2
    read(host, queue, model, 10**9 + 7, 10**9 + 7 + 25 * MS)
    assert state(host) == 0


def test_what_makes_no_sense_is_refused(host: Host) -> None:
    assert set_feature(host, FeatureId.POWER_MANAGEMENT, 3) != 0
    for entries in ([(100, 0)], [(100, 3)], [(0, 0), (100, 1)], [(0, 0), (0, 0), (100, 1)]):
        assert allow(host, *entries) != 0
    assert allow(host, (0, 0), (100, 2)) == 0


def test_a_reset_takes_the_states_back(host: Host) -> None:
    assert allow(host, (TO_FIRST, 1)) == 0
    host.now = 1.0
    assert state(host) == 1
    host.disable()
    host.enable()
    host.now = 2.0
    assert state(host) == 0


def test_each_controller_has_a_state_of_its_own() -> None:
    settings = replace(modelled(), power_states=True)
    with controllers(2, settings=settings) as (first, second):
        queues, model = [host.create_io_queue() for host in (first, second)], Drive(PROFILE)
        first.now = 1.0
        assert set_feature(first, FeatureId.POWER_MANAGEMENT, 2) == 0
        assert allow(second, (TO_FIRST, 1)) == 0
        assert (state(first), state(second)) == (2, 0)
        done = read(second, queues[1], model, at := 10**9 + 5, at)
        assert (state(first), state(second)) == (2, 0)
        # It waits until its own controller is awake, whatever the other one does.
        done = read(first, queues[0], model, at := done + 5, at + 25 * MS)
        assert (state(first), state(second)) == (0, 0)
        # What one controller does leaves the other one idle.
        for _ in range(2):
            done = read(first, queues[0], model, at := done + (TO_FIRST - 1) * MS, at)
        assert (state(first), state(second)) == (0, 1)
        read(second, queues[1], model, at := done + 5, at + MS)


def test_no_state_is_entered_during_a_sanitize_operation(host: Host) -> None:
    assert allow(host, (TO_FIRST, 1)) == 0
    host.place(host.admin, AdminOpcode.SANITIZE, 1, cdws=(2,))
    host.ring(host.admin)
    host.service()
    host.executor.run_next()
    host.service()
    assert [each.status for each in host.reap(host.admin)] == [0]

    def current() -> int:
        """The state; the operation does not go on meanwhile."""
        host.place(host.admin, AdminOpcode.GET_FEATURES, 2, cdws=(FeatureId.POWER_MANAGEMENT,))
        host.ring(host.admin)
        host.service()
        (done,) = host.reap(host.admin)
        return PowerManagement(done.dw0).ps

    host.now = 1.0
    assert current() == 0
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    host.now = 2.0
    assert current() == 1


def test_other_drives_have_one_state() -> None:
    with Host(settings=modelled()) as host:
        host.enable()
        assert set_feature(host, FeatureId.POWER_MANAGEMENT, 1) != 0
        assert allow(host, (TO_FIRST, 1)) != 0
        assert timing_of(host).wake(7) == 7

"""Faults that a host arms, lists and clears by commands."""

import struct
from typing import NamedTuple

import pytest

from csd_spec.faults import ANY, MOST_FAULTS, Fault, FaultFlags, FaultKind
from potash_firmware.rpu.settings import RpuSettings
from support.namespaces import log_page
from support.nvme_host import Host, Queue
from support.rpu_faults import (
    FAULT_RECEIVE,
    FAULT_SEND,
    IDENTIFY,
    READ,
    WRITE,
    arm,
    host,
    on,
    queue,
    reads,
    status,
)

__all__ = ["host", "queue"]


def send(host: Host, fault: Fault) -> tuple[int, int]:
    host.put(fault.encode())
    done = host.command(host.admin, FAULT_SEND, cdws=(16,))
    return done.status, done.dw0


class Listed(NamedTuple):
    identifier: int
    kind: int
    triggered: int


def received(host: Host) -> list[Listed]:
    assert host.command(host.admin, FAULT_RECEIVE, cdws=(1024,)).status == 0
    length, count = struct.unpack_from("<II", host.data(8))
    assert length == 16 + 64 * count
    data = host.data(length)
    found = []
    for at in range(16, length, 64):
        identifier, kind = struct.unpack_from("<HB", data, at)
        (triggered,) = struct.unpack_from("<I", data, at + 44)
        found.append(Listed(identifier, kind, triggered))
    return found


def test_faults_are_sent_listed_and_cleared(host: Host, queue: Queue) -> None:
    assert send(host, status(opcode=READ, times=1)) == (0, 1)
    assert send(host, status(opcode=WRITE)) == (0, 2)
    assert [on(host, queue, READ), on(host, queue, READ), on(host, queue, WRITE)] == [6, 0, 6]
    assert received(host) == [(1, 1, 1), (2, 1, 1)]
    assert host.command(host.admin, FAULT_SEND, cdws=(0, 0, 1, 2)).status == 0
    assert on(host, queue, WRITE) == 0
    assert host.command(host.admin, FAULT_SEND, cdws=(0, 0, 1, 2)).status == 0x002
    assert host.command(host.admin, FAULT_SEND, cdws=(0, 0, 1, 0)).status == 0
    assert received(host) == []


def test_no_fault_keeps_a_host_from_clearing_it(host: Host) -> None:
    assert send(host, status(FaultFlags.ADMIN))[0] == 0
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0x006
    assert host.command(host.admin, FAULT_SEND, cdws=(0, 0, 1, 0)).status == 0
    assert host.command(host.admin, IDENTIFY, cdws=(1,)).status == 0


@pytest.mark.parametrize(
    "at_and_value",
    [
        (2, "<B", 0), (2, "<B", 11), (12, "<H", 0), (12, "<H", 0x800), (16, "<Q", 1),
    ],
)  # fmt: skip
def test_what_is_no_fault_is_refused(host: Host, at_and_value: tuple[int, str, int]) -> None:
    at, form, value = at_and_value
    data = bytearray(status().encode())
    struct.pack_into(form, data, at, value)
    host.put(bytes(data))
    assert host.command(host.admin, FAULT_SEND, cdws=(16,)).status == 0x002
    assert received(host) == []


def test_commands_of_a_wrong_shape_are_refused(host: Host) -> None:
    host.put(status().encode())
    for cdws in ((15,), (17,), (0,), (16, 0, 2)):
        assert host.command(host.admin, FAULT_SEND, cdws=cdws).status == 0x002
    assert host.command(host.admin, FAULT_RECEIVE, cdws=(1 << 20,)).status == 0x002
    assert host.command(host.admin, FAULT_RECEIVE, cdws=(0,)).status == 0


def test_the_list_has_an_end_and_what_is_spent_makes_room(host: Host, queue: Queue) -> None:
    faults = host.rpu.controller.faults
    faults.add(status(opcode=READ, times=1))
    for _ in range(MOST_FAULTS - 1):
        faults.add(status(opcode=0x7F))
    assert send(host, status())[0] == 0x081
    assert on(host, queue, READ) == 0x006
    assert send(host, status()) == (0, MOST_FAULTS + 1)
    assert len(received(host)) == MOST_FAULTS
    assert received(host)[0].identifier == 2


def test_faults_outlive_a_reset(host: Host) -> None:
    assert send(host, status(opcode=READ))[0] == 0
    host.disable()
    host.enable()
    assert on(host, host.create_io_queue(), READ) == 0x006


def test_a_device_that_does_not_take_faults_does_not_know_the_commands() -> None:
    with Host(settings=RpuSettings(faults=(status(opcode=READ),))) as host:
        host.enable()
        queue = host.create_io_queue()
        assert on(host, queue, READ) == 0x006, "what it was started with it has"
        for opcode in (FAULT_SEND, FAULT_RECEIVE):
            completion = host.command(host.admin, opcode, cdws=(16,))
            assert (completion.status, completion.dnr) == (0x001, True)
        effects = log_page(host, 5, 4096)
        assert not any(effects[4 * opcode] & 1 for opcode in (FAULT_SEND, FAULT_RECEIVE))


def test_a_device_that_takes_faults_says_so(host: Host) -> None:
    effects = log_page(host, 5, 4096)
    assert all(effects[4 * opcode] & 1 for opcode in (FAULT_SEND, FAULT_RECEIVE))


def test_reads_take_the_fast_path_again_when_the_last_fault_is_spent(
    host: Host, queue: Queue
) -> None:
    fast: list[int] = []
    path = host.rpu.arbiter.fast_path
    run = path.run

    def noted(queue: object, limit: int) -> int:
        done = run(queue, limit)  # type: ignore[arg-type]  # as it came
        fast.append(done)
        return done

    path.run = noted  # type: ignore[method-assign]  # looks at what it does
    arm(host, FaultKind.STATUS, opcode=READ, status=0x006, times=2)
    assert reads(host, queue, 2) == [0x006] * 2
    assert fast == []
    assert reads(host, queue, 2) == [0, 0]
    assert fast == [1, 1]


def test_any_is_what_no_opcode_and_no_queue_can_be() -> None:
    assert ANY > 0xFF
    assert status().encode()[4:8] == b"\xff" * 4

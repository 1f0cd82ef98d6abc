"""Accelerators, memory and compute namespaces of several controllers: each belongs to one."""

import errno
import struct
from collections.abc import Iterator

import pytest

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_firmware.mailbox.messages import (
    CONTROLLER_RESET,
    NEXT_HOST,
    Alive,
    ReadCheck,
    ReadChecked,
    Reset,
    ResetDone,
)
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from support.controllers import active, attach, controllers
from support.nvme_host import BAR4, Host

MEMORY_WRITE, GET_LOG, SET_FEATURES, DETACH = 0x05, 0x02, 0x09, 1
PAGE = 4096


@pytest.fixture
def owners() -> Iterator[list[Host]]:
    """Two controllers, each with a memory namespace and a compute namespace of its own."""
    shapes = (
        NamespaceShape(1 << 20),
        NamespaceShape.memory(PAGE),
        NamespaceShape.memory(PAGE)._replace(controllers=(1,)),
        NamespaceShape.compute(),
        NamespaceShape.compute()._replace(controllers=(1,)),
    )
    with controllers(2, drive=Drive.open(None, shapes)) as hosts:
        yield hosts


def memories(host: Host) -> list[bytes]:
    every = host.rpu.subsystem.inventory.every
    found = [every[nsid] for nsid in (2, 3)]
    assert all(isinstance(each, MemoryNamespace) for each in found)
    return [bytes(each.memory.bytes[:4]) for each in found if isinstance(each, MemoryNamespace)]


def test_memory_and_compute_namespaces_are_their_controller_s_alone(owners: list[Host]) -> None:
    first, second = owners
    for host in owners:  # enable the combination with all command sets
        assert host.command(host.admin, SET_FEATURES, cdws=(0x19, 0)).status == 0
    assert (active(first), active(second)) == ([1, 2, 4], [1, 3, 5])
    assert attach(first, 0, nsid=3) == 0x119, "Namespace Is Private"
    assert attach(second, 1, nsid=3, sel=DETACH) == 0
    assert attach(first, 0, nsid=3) == 0x119, "even then"
    assert attach(second, 1, nsid=3) == 0 and active(second) == [1, 3, 5]


def test_a_host_that_leaves_leaves_no_memory_behind_and_others_keep_theirs(
    owners: list[Host],
) -> None:
    for host, nsid in zip(owners, (2, 3), strict=True):
        queue = host.create_io_queue(1)
        host.put(b"ours")
        assert host.command(queue, MEMORY_WRITE, nsid=nsid, cdws=(0, 0, 8)).status == 0
    first, second = owners
    assert memories(first) == [b"ours", b"ours"]
    second.disable()
    assert memories(first) == [b"ours", b"ours"]
    second.board.reset()
    second.service()
    first.executor.run_all()
    assert memories(first) == [b"ours", bytes(4)]


def test_the_first_memory_of_each_controller_is_in_its_bar() -> None:
    shapes = (
        NamespaceShape(1 << 20),
        NamespaceShape.memory(2 * PAGE),
        NamespaceShape.memory(4 * PAGE)._replace(controllers=(1,)),
        NamespaceShape.memory(PAGE),
    )
    with controllers(2, drive=Drive.open(None, shapes), memory_bar=2) as hosts:
        for host, nsid, pages in zip(hosts, (2, 3), (2, 4), strict=True):
            assert host.board.regions[BAR4].size == pages * PAGE
            host.board.region_write(BAR4, 0, b"by %d" % nsid)
            assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | 0x85,)).status == 0
            count, listed = struct.unpack_from("<H14xI", host.data(64))
            assert (count, listed) == (1, nsid), "and no memory of the other's"
        first, second = hosts
        assert memories(first) == [b"by 2", b"by 3"]
        second.board.function_reset()
        second.service()
        assert memories(first) == [b"by 2", bytes(4)]


def test_a_reset_reaches_the_accelerators_of_its_controller_alone(owners: list[Host]) -> None:
    first, second = owners
    apu = first.connect_apu()
    apu.send(Alive())
    first.service()
    while apu.receive() is not None:
        pass
    second.disable()
    reset = apu.receive()
    assert isinstance(reset, Reset) and (reset.scope, reset.only) == (CONTROLLER_RESET, (1, 5))
    link = first.link
    assert link.is_resetting(1) and not link.is_resetting(0)
    first.board.reset()
    first.service()
    after = apu.receive()
    assert isinstance(after, Reset) and (after.scope, after.only) == (NEXT_HOST, (0, 4))
    apu.send(ResetDone(reset.tag))
    first.service()
    assert link.is_resetting(0) and not link.is_resetting(1)


def test_what_the_apu_asks_for_a_job_is_done_for_its_accelerator_s_controller(
    owners: list[Host],
) -> None:
    """The first controller, which has accelerator 0, has lost the namespace."""
    first, second = owners
    assert attach(second, 0, sel=DETACH) == 0
    apu = first.connect_apu()
    apu.send(Alive())
    apu.send(ReadCheck(7, 1, ((0, PAGE),), 0))
    first.service()
    answers = [message for message in iter(apu.receive, None) if isinstance(message, ReadChecked)]
    assert [each.error for each in answers] == [errno.ENODEV]

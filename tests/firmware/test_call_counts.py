"""How many calls a command takes from its doorbell until the firmware waits again.

`pytest -s` shows the counts, and `-vv` every function. A limit is what a flow takes now: lower it
with the flow, and raise it only for what a host gets in return.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from enum import EnumMeta

import pytest

from support.call_counts import Calls, counted
from support.memory import BLOCKS, COPY, MEMORY, powered, words
from support.modelled_time import modelled
from support.nvme_host import Host, Queue, SlowMedia, SteppedExecutor

READ, WRITE = 0x02, 0x01
FUA = 1 << 30
SHADOW, EVENTS = 0x30_0000, 0x30_1000


@pytest.fixture
def host() -> Iterator[Host]:
    with Host({1: SlowMedia.create(1 << 20)}) as host:
        host.enable()
        yield host


def passes(host: Host) -> None:
    """What the device's loop calls until it waits."""
    while host.rpu.service():
        pass
    assert host.rpu.timeout != 0.0


def measured(host: Host, queue: Queue, opcode: int, dword12: int = 0) -> Calls:
    """The calls of one command of 4 KiB, the second of its kind."""
    for cid in (1, 2):
        host.place(queue, opcode, cid, nsid=1, cdws=(0, 0, dword12))
        with counted() as calls:
            host.ring(queue)
            passes(host)
            while isinstance(host.executor, SteppedExecutor) and host.executor.waiting:
                host.executor.run_next()
                passes(host)
        (completion,) = host.reap(queue)
        assert (completion.cid, completion.status) == (cid, 0)
    return calls


def within(calls: Calls, limit: int, request: pytest.FixtureRequest) -> None:
    print(f"\n{request.node.name}: {calls}")
    if request.config.getoption("verbose") > 1:
        print(calls.listed())
    assert calls.total <= limit, calls.listed()


def test_a_read_on_the_fast_path(request: pytest.FixtureRequest) -> None:
    with Host() as host:
        host.enable()
        within(measured(host, host.create_io_queue(), READ), 43, request)


def test_a_read_while_the_doorbells_are_polled(request: pytest.FixtureRequest) -> None:
    with Host() as host:
        host.enable()
        queue = host.create_io_queue()
        host.command(host.admin, 0x7C, prp1=SHADOW, prp2=EVENTS)
        with counted() as in_vain:
            host.rpu.spin()
        for cid in (1, 2):
            host.place(queue, READ, cid, nsid=1)
            with counted() as calls:
                struct.pack_into("<I", host.memory.view, SHADOW + 8 * queue.qid, queue.tail)
                host.rpu.spin()
            assert [(each.cid, each.status) for each in host.reap(queue, ring=False)] == [(cid, 0)]
        calls.by_function -= in_vain.by_function
        within(calls, 35, request)
    # Python 3.11 takes longer to look a member up than for a call.
    modules = {
        module.__file__: vars(module)
        for name, module in sys.modules.items()
        if name.startswith(("potash_", "pyvfio_user."))
    }
    for code in calls.by_function:
        for name in code.co_names:
            value = modules[code.co_filename].get(name)
            assert not isinstance(value, EnumMeta), f"{code.co_qualname} looks in {name}"


def test_a_read_on_the_fast_path_in_modelled_time(request: pytest.FixtureRequest) -> None:
    with Host(settings=modelled()) as host:
        host.enable()
        queue = host.create_io_queue()
        for cid in (1, 2):
            host.place(queue, READ, cid, nsid=1)
            with counted() as calls:
                host.ring(queue)
                host.rpu.service()
                host.now += 1
                host.rpu.service()
            assert [(one.cid, one.status) for one in host.reap(queue)] == [(cid, 0)]
        within(calls, 84, request)


@pytest.mark.parametrize("opcode", [READ, WRITE])
def test_a_command_that_the_executor_carries_out(
    host: Host, opcode: int, request: pytest.FixtureRequest
) -> None:
    queue = host.create_io_queue()
    within(measured(host, queue, opcode, FUA), 112, request)


def test_a_memory_copy_that_nothing_delays(request: pytest.FixtureRequest) -> None:
    with powered() as host:
        queue = host.io[1]
        host.put(struct.pack("<I4xQH4xH8x", BLOCKS, 0, 0, 0))  # format 2h: one block
        for cid in (1, 2):
            host.place(queue, COPY, cid, nsid=MEMORY, first=words(4096), cdws=(*words(0), 2 << 8))
            with counted() as calls:
                host.ring(queue)
                passes(host)
            assert [(each.cid, each.status) for each in host.reap(queue)] == [(cid, 0)]
        within(calls, 99, request)

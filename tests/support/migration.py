"""Drives whose state is saved, and taken by others."""

from __future__ import annotations

from concurrent.futures import Future

from pyvfio_user.migration import State
from support.nvme_host import DATA, PAGE, Host, Queue

WRITE = 0x01


def stop(host: Host) -> Future[None]:
    pending = host.rpu.migration.change(State.RUNNING, State.STOP)
    assert pending is not None
    finish(host)
    assert host.rpu.migration.stopped
    return pending


def finish(host: Host) -> None:
    """Have the media do all that they are asked."""
    host.service()
    while host.executor.waiting:
        host.executor.run_all()
        host.service()


def save(host: Host) -> bytes:
    stop(host)
    host.rpu.migration.change(State.STOP, State.STOP_COPY)
    state = b"".join(iter(lambda: host.rpu.migration.read(1000), b""))
    host.rpu.migration.change(State.STOP_COPY, State.STOP)
    return state


def load(host: Host, state: bytes) -> None:
    migration = host.rpu.migration
    migration.change(State.RUNNING, State.STOP)
    finish(host)
    migration.change(State.STOP, State.RESUMING)
    for at in range(0, len(state), 4099):
        migration.write(state[at : at + 4099])
    migration.change(State.RESUMING, State.STOP)
    migration.change(State.STOP, State.RUNNING)
    host.service()


def moved(source: Host, target: Host) -> Host:
    """The state of `source`, and its host's memory, in `target`."""
    state = save(source)
    target.memory.view[:] = source.memory.view
    target.admin, target.io = source.admin, source.io
    load(target, state)
    return target


def write(host: Host, queue: Queue, cid: int, lba: int, content: bytes) -> None:
    host.put(content.ljust(PAGE, b"\0"), DATA + cid * PAGE)
    host.place(queue, WRITE, cid, nsid=1, prp1=DATA + cid * PAGE, cdws=(lba, 0, 0))

"""Zones that are reset while other commands are on their way, and resets that fail.

Source: NVM Express Zoned Namespace Command Set Specification 1.1, section 2.1.1.2.
"""

import errno
from collections.abc import Iterator

import pytest

from potash_device.media.errors import MediaError
from potash_firmware.rpu.namespaces.zoned import ZonedNamespace
from support.nvme_host import DATA, Host
from support.zones import (
    BLOCK,
    CAPACITY,
    EMPTY,
    FULL,
    INVALID_WRITE,
    IS_FULL,
    NO_POINTER,
    READ,
    RESET,
    SEND,
    WRITE,
    Zone,
    powered,
    read,
    send,
    write,
    zone,
)


@pytest.fixture
def host() -> Iterator[Host]:
    with powered() as found:
        yield found


def zoned(host: Host) -> ZonedNamespace:
    (namespace,) = host.rpu.controller.namespaces.zoned
    return namespace


@pytest.fixture
def slow(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything passes the executor, which has to be told to do it."""
    for name in ("read_at_once", "write_at_once"):
        monkeypatch.setattr(zoned(host).media, name, lambda *_: False)


def begin(host: Host, cid: int, opcode: int, *cdws: int) -> None:
    host.place(host.io[1], opcode, cid, nsid=1, prp1=DATA, prp2=DATA + BLOCK, cdws=cdws)
    host.ring(host.io[1])
    host.service()


def statuses(host: Host) -> list[tuple[int, int]]:
    """Identifiers and statuses of the commands, which end now, in their order."""
    while host.executor.waiting:
        host.executor.run_next()
        host.service()
    return [(one.cid, one.status) for one in host.reap(host.io[1])]


@pytest.mark.usefixtures("slow")
def test_a_write_whose_zone_is_reset_before_it_begins_fails(host: Host) -> None:
    host.put(b"\1" * BLOCK)
    begin(host, 1, WRITE, 0, 0, 0)  # its zone's record is being stored
    begin(host, 2, SEND, 0, 0, 0, RESET)
    assert sorted(statuses(host)) == [(1, INVALID_WRITE), (2, 0)]
    assert zone(host, 0) == Zone(EMPTY, CAPACITY, 0, 0, 0)
    assert read(host, 0) == bytes(BLOCK)
    assert write(host, 0, fill=2).status == 0
    assert read(host, 0) == b"\2" * BLOCK


@pytest.mark.usefixtures("slow")
def test_a_write_that_waits_behind_a_read_comes_before_a_reset(host: Host) -> None:
    host.put(b"\1" * 2 * BLOCK)
    begin(host, 1, READ, 1, 0, 0)
    begin(host, 2, WRITE, 0, 0, 1)
    host.executor.run_next(1)  # the record; the write waits behind the read now
    host.service()
    begin(host, 3, SEND, 0, 0, 0, RESET)
    assert statuses(host) == [(1, 0), (2, 0), (3, 0)]
    assert zone(host, 0) == Zone(EMPTY, CAPACITY, 0, 0, 0)
    assert read(host, 0) == read(host, 1) == bytes(BLOCK)


def test_a_zone_whose_reset_fails_is_full_until_it_is_reset_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(first: int, length: int) -> None:
        raise MediaError(errno.EIO, "no")

    assert write(host, 0, fill=7).status == 0
    with monkeypatch.context() as patch:
        patch.setattr(zoned(host).media, "punch", fails)
        assert send(host, RESET) == 0x280
    assert zone(host, 0) == Zone(FULL, CAPACITY, 0, NO_POINTER, 0)
    assert not zoned(host).zones.unsaved
    assert write(host, 0).status == IS_FULL
    assert read(host, 0) == b"\7" * BLOCK
    assert send(host, RESET) == 0
    assert zone(host, 0) == Zone(EMPTY, CAPACITY, 0, 0, 0)
    assert read(host, 0) == bytes(BLOCK)


@pytest.mark.usefixtures("slow")
def test_the_deletion_of_a_queue_sees_the_next_step_of_a_write_that_has_just_ended(
    host: Host,
) -> None:
    begin(host, 1, WRITE, 0, 0, 0)
    begin(host, 2, READ, CAPACITY, 0, 0)
    host.place(host.admin, 0, 3, cdws=(1,))  # Delete I/O Submission Queue
    host.ring(host.admin)
    host.service()
    host.executor.run_next()  # the record of the zone; the write itself is the next step
    host.service()
    host.executor.run_next()
    host.executor.run_next()
    host.service()
    assert [(one.cid, one.status) for one in host.reap(host.io[1])] == [(2, 0), (1, 0)]
    assert [(one.cid, one.status) for one in host.reap(host.admin)] == [(3, 0)]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("opcode", [WRITE, 0x7D, SEND], ids=["write", "append", "reset"])
def test_a_command_that_was_held_over_a_format_does_not_use_the_zones_of_before(
    host: Host, opcode: int
) -> None:
    host.put(b"\1" * BLOCK)
    assert write(host, 16).status == 0
    begin(host, 2, SEND, 16, 0, 0, RESET)
    begin(host, 3, opcode, 16, 0, 0, RESET if opcode == SEND else 0)
    host.place(host.admin, 0x80, 4, nsid=1, cdws=(0,))  # Format: 512 bytes
    host.ring(host.admin)
    host.service()
    host.master(False)
    while host.executor.waiting:
        host.executor.run_next()
        host.service()
    host.master()
    host.service()
    assert not host.executor.waiting
    assert [one.status for one in host.reap(host.admin)] == [0]
    assert statuses(host)[-2:] == [(2, 0), (3, 0x084)]

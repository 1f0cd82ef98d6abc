"""Memory in BARs that drives of one guest share, by the addresses of the BARs."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest

from potash_device.pcie.peers import Peers, Shared

SIZE = 8192
BASE = 0xE5_8000_0000


@pytest.fixture
def shared() -> Iterator[Shared]:
    """Drives 0 and 2 share their memory, 1 does not."""
    made = Shared([True, False, True])
    yield made
    for fd in made.descriptors:
        os.close(fd)


def peers(shared: Shared, own: int) -> Peers:
    return Peers(shared.table, shared.memories, own)


def placed(shared: Shared, own: int = 2) -> Peers:
    """A drive whose memory is at `BASE`, and begins with "here"."""
    drive = peers(shared, own)
    fd = drive.claim(SIZE)
    assert fd is not None
    with mmap.mmap(fd, SIZE) as memory:
        memory[:4] = b"here"
    os.close(fd)
    drive.publish(BASE)
    return drive


def content(drive: Peers, address: int) -> bytes | None:
    found = drive.find(address, 4)
    return None if found is None else bytes(found)


def test_a_drive_finds_the_memory_of_another_one_where_its_host_has_placed_it(
    shared: Shared,
) -> None:
    other, drive = peers(shared, 1), placed(shared)
    for address, length, there in [
        (BASE, 4, True),
        (BASE, SIZE, True),
        (BASE + SIZE - 4, 4, True),
        (BASE - 4, 8, False),
        (BASE + SIZE - 4, 8, False),
        (BASE + SIZE, 4, False),
        (0, 4, False),
        ((1 << 64) - 4, 4, False),
    ]:
        assert (other.find(address, length) is not None) is there, hex(address)
    assert content(other, BASE) == b"here"
    found = other.find(BASE, 4)
    assert found is not None
    assert found.readonly
    assert drive.find(BASE, 4) is None
    drive.publish(BASE + 0x10000)
    assert other.find(BASE, 4) is None
    assert content(other, BASE + 0x10000) == b"here"


def test_a_drive_shares_nothing_unless_its_user_says_so(shared: Shared) -> None:
    other, drive = peers(shared, 0), peers(shared, 1)
    assert drive.claim(SIZE) is None
    drive.publish(BASE)
    assert other.find(BASE, 4) is None


def test_memory_that_was_shared_can_not_shrink(shared: Shared) -> None:
    placed(shared)
    seals = fcntl.fcntl(shared.memories[2], fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(shared.memories[2], 0)


def test_a_drive_that_has_a_new_host_or_has_ended_shares_nothing(shared: Shared) -> None:
    other, drive = peers(shared, 0), placed(shared)
    held = other.find(BASE, 4)
    drive.withdraw()
    drive.publish(BASE)
    assert other.find(BASE, 4) is None
    assert held is not None
    assert bytes(held) == b"here"
    third = peers(shared, 1)
    placed(shared, 0)
    assert content(third, BASE) == b"here"
    shared.withdraw(0)
    assert third.find(BASE, 4) is None

"""The host of most tests of the RPU, and its I/O queue where it has made one; the hosts of a drive
with two controllers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from potash_device.media.store import MemoryMedia
from support.controllers import controllers
from support.nvme_host import Host, Queue, SlowMedia


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.io[1]


@pytest.fixture
def pair() -> Iterator[list[Host]]:
    with controllers(2, media={1: MemoryMedia.create(1 << 20)}) as hosts:
        yield hosts


@pytest.fixture
def slow_pair() -> Iterator[list[Host]]:
    """On media that always have to be waited for."""
    with controllers(2, media={1: SlowMedia.create(1 << 20)}) as hosts:
        yield hosts

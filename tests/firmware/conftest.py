"""The host of most tests of the RPU, and its I/O queue where it has made one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.nvme_host import Host, Queue


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        yield host


@pytest.fixture
def queue(host: Host) -> Queue:
    return host.io[1]

"""A server that tests step by hand, the device behind it, and a client's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyvfio_user.memory import AddressSpace
from pyvfio_user.sealed_memory import SealedMemory
from pyvfio_user.server import Server
from support.vfio_user import Recorder, socket_path


@pytest.fixture
def device() -> Recorder:
    return Recorder()


@pytest.fixture
def ended() -> list[str]:
    """Why connections ended."""
    return []


@pytest.fixture
def server(tmp_path: Path, device: Recorder, ended: list[str]) -> Iterator[Server]:
    with Server(socket_path(tmp_path), device, on_disconnect=ended.append) as server:
        yield server


@pytest.fixture
def space() -> AddressSpace:
    """A client's addresses, of which none is mapped."""
    return AddressSpace()


@pytest.fixture
def memory() -> Iterator[SealedMemory]:
    """Sixteen pages of a client, each filled with its number."""
    with SealedMemory(16 * 4096) as sealed:
        sealed.view[:] = b"".join(bytes([page]) * 4096 for page in range(16))
        yield sealed

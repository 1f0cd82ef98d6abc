"""A server that tests step by hand, and the device behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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

"""The package's docstring: its example runs, it is short, and the package knows no device."""

from __future__ import annotations

import errno
import importlib.util
import os
import select
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pyvfio_user
from pyvfio_user import Client, SealedMemory, VfioUserError
from support.vfio_user import socket_path

PAGE = 4096


def _example() -> str:
    """The indented lines of the docstring."""
    lines = (pyvfio_user.__doc__ or "").split("\n")
    code = [line for line in lines if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(code)).strip()


def test_the_example_is_a_whole_device_of_about_thirty_lines() -> None:
    code = [line for line in _example().split("\n") if line]
    assert code[0].startswith("import")
    assert len(code) <= 33


class _Stop(Exception):
    """Ends the example's endless loop."""


class _Select:
    """The example's `select`, which tells when its loop has begun to wait."""

    def __init__(self) -> None:
        self.waiting = threading.Event()

    def select(self, *lists: Any) -> Any:
        self.waiting.set()
        return select.select(*lists)


def _module(folder: Path) -> ModuleType:
    """The example, written to a file and imported."""
    file = folder / "shouter.py"
    file.write_text(_example())
    spec = importlib.util.spec_from_file_location("shouter", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_serves_one_client_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shouter, loop = _module(tmp_path), _Select()
    reasons: list[str] = []

    def on_disconnect(reason: str) -> None:
        reasons.append(reason)
        if len(reasons) == 2:
            raise _Stop

    def serve() -> None:
        with pytest.raises(_Stop):
            shouter.serve(path)

    monkeypatch.setattr(shouter, "select", loop)
    monkeypatch.setattr(shouter, "print", on_disconnect, raising=False)
    path = socket_path(tmp_path)
    thread = threading.Thread(target=serve)
    thread.start()
    assert loop.waiting.wait(10)
    eventfd = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        for text, shouted in [(b"hello world", b"HELLO world"), (b"again", b"AGAIN")]:
            with Client(path) as client, SealedMemory(PAGE) as memory:
                client.negotiate()
                memory.view[100 : 100 + len(text)] = text
                client.dma_map(0x8000, PAGE, memory.fd)
                client.set_irqs(0, 0, [eventfd])
                client.region_write(0, 0, bytes.fromhex("6480000000000000 0500000000000000"))
                assert os.eventfd_read(eventfd) == 1
                assert bytes(memory.view[99:112]) == b"\0" + shouted.ljust(12, b"\0")
                for data, number in [
                    ("64800000", errno.EINVAL),
                    ("0010000000000000 0500000000000000", errno.EFAULT),
                ]:
                    with pytest.raises(VfioUserError) as caught:
                        client.region_write(0, 0, bytes.fromhex(data))
                    assert caught.value.errno == number
    finally:
        os.close(eventfd)
    thread.join(10)
    assert not thread.is_alive()
    assert reasons == ["the client closed the connection"] * 2
    assert not path.exists()


def test_the_package_knows_nothing_of_any_device() -> None:
    for file in Path(pyvfio_user.__file__).parent.glob("*.py"):
        assert "nvme" not in file.read_text().lower(), file

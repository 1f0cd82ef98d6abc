"""The package's example, in its docstring and on its page: it is short, it runs, and so does the
page's client. The package itself knows no device."""

from __future__ import annotations

import ast
import errno
import importlib.util
import os
import select
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pyvfio_user
from pyvfio_user import Client, PciRegion, SealedMemory, VfioUserError
from support.docs import blocks, run_python, running
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
    assert len(code) <= 35


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


@contextmanager
def _served(folder: Path, monkeypatch: pytest.MonkeyPatch, clients: int) -> Iterator[Path]:
    """The example serves `clients` clients at the path that is given, and no more."""
    shouter, loop = _module(folder), _Select()
    reasons: list[str] = []

    def on_disconnect(reason: str) -> None:
        reasons.append(reason)
        if len(reasons) == clients:
            raise _Stop

    def serve() -> None:
        with pytest.raises(_Stop):
            shouter.serve(path)

    monkeypatch.setattr(shouter, "select", loop)
    monkeypatch.setattr(shouter, "print", on_disconnect, raising=False)
    path = socket_path(folder)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert loop.waiting.wait(10)
    yield path
    thread.join(10)
    assert not thread.is_alive()
    assert reasons == ["the client closed the connection"] * clients
    assert not path.exists()


def test_the_page_shows_the_same_device_and_a_client_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, client, *_ = blocks("vfio-user.md", "python")
    shown = ast.parse(device.partition('\n\n\nif __name__ == "__main__":')[0])
    assert ast.dump(shown) == ast.dump(ast.parse(_example()))
    assert len([line for line in client.split("\n") if line]) <= 16
    with _served(tmp_path, monkeypatch, clients=1) as path:
        said = run_python(client, replace={"/tmp/shouter.sock": str(path)})
    assert said == "HELLO, WORLD\n"


def test_the_page_s_pci_device_and_its_client(tmp_path: Path) -> None:
    *_, device, client = blocks("vfio-user.md", "python")
    path = str(socket_path(tmp_path))
    with running(device.replace("/tmp/adder.sock", path), path):
        for _ in range(2):
            assert run_python(client, replace={"/tmp/adder.sock": path}) == "6\n"
        with Client(path) as other:
            other.negotiate()
            assert other.region_read(PciRegion.BAR2, 0, 16) == bytes(16)
            assert other.region_read(PciRegion.CONFIG, 0, 4) == bytes.fromhex("3412dd0a")
            with pytest.raises(VfioUserError) as caught:
                other.region_write(PciRegion.BAR0, 0, (1 << 14 | 1).to_bytes(4, "little"))
            assert caught.value.errno == errno.EINVAL


def test_the_example_serves_one_client_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eventfd = os.eventfd(0, os.EFD_CLOEXEC)
    with _served(tmp_path, monkeypatch, clients=3) as path:
        for text, shouted, fd in [
            (b"hello world", b"HELLO world", True),
            (b"again", b"AGAIN", True),
            (b"and by messages", b"AND By messages", False),
        ]:
            with Client(path) as client, SealedMemory(PAGE) as memory:
                client.negotiate()
                memory.view[100 : 100 + len(text)] = text
                client.dma_map(0x8000, PAGE, memory.fd if fd else None, memory=memory.view)
                client.set_irqs(0, 0, [eventfd])
                client.region_write(0, 0, bytes.fromhex("6480000000000000 0500000000000000"))
                assert os.eventfd_read(eventfd) == 1
                assert bytes(memory.view[99:115]) == b"\0" + shouted.ljust(15, b"\0")
                for data, number in [
                    ("64800000", errno.EINVAL),
                    ("0010000000000000 0500000000000000", errno.EFAULT),
                ]:
                    with pytest.raises(VfioUserError) as caught:
                        client.region_write(0, 0, bytes.fromhex(data))
                    assert caught.value.errno == number
    os.close(eventfd)


def test_the_package_knows_nothing_of_any_device() -> None:
    for file in Path(pyvfio_user.__file__).parent.glob("*.py"):
        assert "nvme" not in file.read_text().lower(), file

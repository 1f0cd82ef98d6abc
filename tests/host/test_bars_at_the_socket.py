"""BARs that a client maps over the socket: a host without memory of its own, and the next host."""

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from potash.vm.drive import serving
from pyvfio_user.client import Client
from pyvfio_user.mapped import MappedRegion

BAR0, BAR2, BAR4, CONFIG = 0, 2, 4, 7
CC, CSTS, AQA, ASQ, ACQ, CMBMSC, DOORBELL = 0x14, 0x1C, 0x24, 0x28, 0x30, 0x50, 0x1000
AT = 1 << 40
"""Where commands name the buffer."""
QUEUE, COMPLETIONS, DATA = 0, 0x1000, 0x2000
CMB, MEMORY = 1 << 20, 1 << 16
LIMIT = 30.0


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    options = ("--cmb", str(CMB), "--memory-namespace", str(MEMORY), "--memory-bar")
    with serving("--size", "1M", *options) as path:
        yield path


@contextmanager
def attached(socket: Path) -> Iterator[Client]:
    with Client(socket) as client:
        client.negotiate()
        yield client


def wait_for(client: Client, ready: int) -> None:
    until = time.monotonic() + LIMIT
    while client.region_read(BAR0, CSTS, 1)[0] & 1 != ready:
        assert time.monotonic() < until


def identify(client: Client, cmb: MappedRegion) -> bytes:
    """Identify Controller, where the client has mapped no memory for DMA at all."""
    client.region_write(CONFIG, 4, b"\x06\0")
    client.region_write(BAR0, CMBMSC, struct.pack("<Q", AT | 3))
    cmb.view(COMPLETIONS, 256)[:] = bytes(256)
    cmb.view(QUEUE, 64)[:] = struct.pack("<BBHI16xQQ6I", 6, 0, 1, 0, AT + DATA, 0, 1, *[0] * 5)
    client.region_write(BAR0, AQA, struct.pack("<I", 15 << 16 | 15))
    client.region_write(BAR0, ASQ, struct.pack("<QQ", AT + QUEUE, AT + COMPLETIONS))
    client.region_write(BAR0, CC, struct.pack("<I", 4 << 20 | 6 << 16 | 1))
    wait_for(client, 1)
    client.region_write(BAR0, DOORBELL, struct.pack("<I", 1))
    status = cmb.view(COMPLETIONS + 14, 2)
    until = time.monotonic() + LIMIT
    while not status[0] & 1:
        assert time.monotonic() < until
    assert bytes(status) == b"\1\0"
    return bytes(cmb.view(DATA, 4096))


def test_a_host_needs_no_other_memory(socket: Path) -> None:
    with attached(socket) as client, client.map_region(BAR2) as cmb:
        assert cmb.size == CMB
        assert identify(client, cmb)[:2] == b"\x96\x1b"
        cmb.view(DATA, 4)[:] = b"mine"
        assert client.region_read(BAR2, DATA, 4) == b"mine"
        client.region_write(BAR2, DATA, b"also")
        assert bytes(cmb.view(DATA, 4)) == b"also"


def test_the_next_host_gets_other_memory(socket: Path) -> None:
    with attached(socket) as client:
        kept = [client.map_region(bar) for bar in (BAR2, BAR4)]
        for one in kept:
            one.view(0, 4)[:] = b"mine"
        client.device_reset()
        assert [bytes(one.view(0, 4)) for one in kept] == [bytes(4)] * 2, "the same, but empty"
        for one in kept:
            one.view(0, 4)[:] = b"mine"
    with attached(socket) as client, client.map_region(BAR2) as cmb, client.map_region(BAR4) as bar:
        assert bytes(cmb.view(0, CMB)) == bytes(CMB)
        assert bytes(bar.view(0, MEMORY)) == bytes(MEMORY)
        identify(client, cmb)
        bar.view(0, 6)[:] = b"secret"
        assert client.region_read(BAR4, 0, 6) == b"secret"
        assert [bytes(one.view(0, 4)) for one in kept] == [b"mine"] * 2
    for one in kept:
        one.close()


def test_each_controller_has_its_first_memory_in_a_bar(tmp_path: Path) -> None:
    described = tmp_path / "potash.toml"
    described.write_text(
        '[memory]\nnamespaces = ["64K", "128K", "4K"]\ncontrollers = [0, 1, 1]\nbar = true\n'
    )
    other = tmp_path / "other"
    with serving("--size=1M", f"--config={described}", f"--socket={other}") as path:
        for socket, size in ((path, 64 << 10), (other, 128 << 10)):
            with attached(socket) as client, client.map_region(BAR4) as bar:
                assert bar.size == size and not any(bar.view(0, size))
                bar.view(0, 6)[:] = b"secret"
                assert client.region_read(BAR4, 0, 6) == b"secret"

"""A host of a drive with a memory and a compute namespace: commands by literal numbers."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_device.pcie.peers import Peers
from potash_firmware.rpu.compute.engine import ProgramEngine
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import DATA, Cqe, Host

FLUSH, COPY, READ, FILL, WRITE = 0, 1, 2, 4, 5
GET_LOG, IDENTIFY, SET_FEATURES, GET_FEATURES = 2, 6, 9, 0xA
MIB = 1 << 20
BLOCKS, MEMORY, COMPUTE = 1, 2, 3
"""The namespaces, of command sets 0, 3 and 4."""
SHAPES = (NamespaceShape(MIB), NamespaceShape.memory(2 * MIB), NamespaceShape.compute())

INVALID_FIELD, INVALID_NAMESPACE = 2, 0xB


@contextmanager
def powered(
    path: Path | None = None,
    *wanted: NamespaceShape,
    memory_capacity: int | None = None,
    engine: ProgramEngine | None = None,
    memory_bar: int = 0,
    peers: Peers | None = None,
    settings: RpuSettings | None = None,
) -> Iterator[Host]:
    """A drive, enabled with all of its command sets (CC.CSS 110b), and I/O queue 1.

    It is new, unless its folder remembers one.
    """
    known = path is not None and (path / "namespaces.toml").exists()
    shapes = wanted or (() if known else SHAPES)
    opened = Drive.open(path, shapes, capacity=4 * MIB, memory_capacity=memory_capacity)
    with (
        opened as drive,
        Host(
            settings=settings, drive=drive, engine=engine, memory_bar=memory_bar, peers=peers
        ) as host,
    ):
        host.css = 6
        host.enable()
        host.create_io_queue()
        yield host


def words(value: int) -> tuple[int, int]:
    return value & 0xFFFF_FFFF, value >> 32


def move(
    host: Host, opcode: int, start: int, length: int, nsid: int = MEMORY, prp2: int = DATA + 4096
) -> Cqe:
    """Memory Read, Write or Fill; the data of Read and Write are at DATA."""
    return host.command(
        host.io[1], opcode, nsid=nsid, prp1=DATA, prp2=prp2, cdws=(*words(start), length)
    )


def write(host: Host, content: bytes, start: int = 0, nsid: int = MEMORY) -> None:
    host.put(content)
    assert move(host, WRITE, start, len(content), nsid).status == 0


def read(host: Host, length: int, start: int = 0, nsid: int = MEMORY) -> bytes:
    host.clear(DATA, length)
    assert move(host, READ, start, length, nsid).status == 0
    return host.data(length)


def identify(host: Host, cns: int, nsid: int = 0, csi: int = 0) -> bytes:
    done = host.command(host.admin, IDENTIFY, nsid=nsid, cdws=(cns, csi << 24))
    assert done.status == 0, hex(done.status)
    return host.data(4096)


def asked(host: Host, cns: int, nsid: int = 0, csi: int = 0) -> int:
    """The status of an Identify."""
    return host.command(host.admin, IDENTIFY, nsid=nsid, cdws=(cns, csi << 24)).status


def nsids(host: Host, cns: int, csi: int = 0) -> list[int]:
    return [one for one in struct.unpack("<1024I", identify(host, cns, csi=csi)) if one]


def log_page(host: Host, lid: int, size: int, csi: int = 0, lsp: int = 0) -> bytes:
    cdws = ((size // 4 - 1) << 16 | lsp << 8 | lid, 0, 0, 0, csi << 24)
    done = host.command(host.admin, GET_LOG, cdws=cdws)
    assert done.status == 0, hex(done.status)
    return host.data(size)

"""A host that manages its namespaces: commands and structures by literal numbers and offsets."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue

WRITE, READ = 1, 2
GET_LOG, IDENTIFY, SET_FEATURES, EVENT_REQUEST = 2, 6, 9, 0xC
MANAGE, SELF_TEST, ATTACH, FORMAT, SANITIZE = 0x0D, 0x14, 0x15, 0x80, 0x84
ALL = 0xFFFF_FFFF

MIB = 1 << 20
TWO = (NamespaceShape(MIB), NamespaceShape(MIB, 512))


@contextmanager
def powered(path: Path | None = None, *, capacity: int | None = 4 * MIB) -> Iterator[Host]:
    """A device with two namespaces of 1 MiB, or with what its folder remembers; enabled."""
    new = path is None or not (path / "namespaces.toml").exists()
    if path is not None:
        path.mkdir(exist_ok=True)
    opened = Drive.open(path, TWO if new else (), capacity=capacity if new else None)
    with opened as drive, Host(drive=drive) as host:
        host.enable()
        yield host


class Namespace(NamedTuple):
    """What Identify says of one."""

    blocks: int
    format: int
    nmic: int
    progress: int
    bytes: int
    formats: tuple[int, int]


def identify(host: Host, cns: int, nsid: int = 0, cntid: int = 0) -> bytes:
    done = host.command(host.admin, IDENTIFY, nsid=nsid, cdws=(cntid << 16 | cns,))
    assert done.status == 0, hex(done.status)
    return host.data(PAGE)


def namespace(host: Host, nsid: int, cns: int = 0x11) -> Namespace | None:
    """None for one that is not there."""
    page = identify(host, cns, nsid)
    if not any(page):
        return None
    size, capacity, _ = struct.unpack_from("<QQQ", page)
    assert size == capacity
    assert page[25] == 13
    return Namespace(
        size,
        page[26],
        page[30],
        page[32],
        int.from_bytes(page[48:64], "little"),
        (page[130], page[134]),
    )


def nsids(host: Host, cns: int) -> list[int]:
    """02h: the active ones; 10h: all that there are."""
    return [one for one in struct.unpack("<1024I", identify(host, cns)) if one]


def capacity(host: Host) -> tuple[int, int]:
    """Total and unallocated bytes."""
    page = identify(host, 1)
    return int.from_bytes(page[280:296], "little"), int.from_bytes(page[296:312], "little")


def uuid(host: Host, nsid: int) -> bytes:
    page = identify(host, 3, nsid)
    assert page[:2] == b"\x03\x10"
    return page[4:20]


def create(host: Host, blocks: int, format: int = 1, csi: int = 0, **fields: int) -> Cqe:
    """Create a namespace; `fields` are ncap, nmic, dps, anagrpid, nvmsetid, endgid."""
    page = bytearray(PAGE)
    struct.pack_into("<QQ", page, 0, blocks, fields.get("ncap", blocks))
    page[26], page[29], page[30] = format, fields.get("dps", 0), fields.get("nmic", 0)
    struct.pack_into("<I", page, 92, fields.get("anagrpid", 0))
    struct.pack_into("<HH", page, 100, fields.get("nvmsetid", 0), fields.get("endgid", 0))
    host.put(bytes(page))
    return host.command(host.admin, MANAGE, cdws=(0, csi << 24))


def delete(host: Host, nsid: int) -> Cqe:
    return host.command(host.admin, MANAGE, nsid=nsid, cdws=(1,))


def attach(host: Host, nsid: int, *controllers: int, sel: int = 0) -> Cqe:
    """Attach (`sel` 0) or detach (1); the one controller where none is named."""
    listed = controllers or (0,)
    host.put(struct.pack(f"<{len(listed) + 1}H", len(listed), *listed).ljust(PAGE, b"\0"))
    return host.command(host.admin, ATTACH, nsid=nsid, cdws=(sel,))


def format_(host: Host, nsid: int, lbaf: int, ses: int = 0, more: int = 0) -> Cqe:
    return host.command(host.admin, FORMAT, nsid=nsid, cdws=(lbaf | ses << 9 | more,))


def begin(host: Host, queue: Queue, opcode: int, cid: int = 1, **fields: object) -> None:
    """Give a command, and let the media do nothing."""
    host.place(queue, opcode, cid, **fields)  # type: ignore[arg-type]  # passed on as they are
    host.ring(queue)
    host.service()


def finish(host: Host) -> None:
    """Let the media do all that it is asked."""
    while host.goes_on():
        if host.executor.waiting:
            host.executor.run_next()
            host.service()


def steps(host: Host) -> Iterator[int]:
    """Let the media do one thing after the other; how many it has done."""
    done = 0
    while host.executor.waiting:
        host.executor.run_next()
        host.service()
        done += 1
        yield done


def io(host: Host, opcode: int, nsid: int, lba: int = 0, content: bytes = b"") -> int:
    """Write or read a block; the status."""
    if content:
        host.put(content)
    done = host.command(host.io[1], opcode, nsid=nsid, prp1=DATA, cdws=(lba, 0, 0))
    return done.status


def log_page(host: Host, lid: int, size: int) -> bytes:
    done = host.command(host.admin, GET_LOG, cdws=((size // 4 - 1) << 16 | lid,))
    assert done.status == 0, hex(done.status)
    return host.data(size)

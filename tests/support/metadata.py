"""A host of a drive whose blocks have metadata: commands and their tags by literal offsets."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from support.namespaces import FORMAT, READ, SET_FEATURES, WRITE
from support.nvme_host import DATA, Cqe, Host
from support.protection import Format

COMPARE, WRITE_ZEROES, DSM, VERIFY, COPY = 5, 8, 9, 0x0C, 0x19
BLOCKS = 128
BUFFER = 0x30_0000
"""Where the host's separate metadata is."""

PRACT, GUARD, APP, REF = 1 << 29, 1 << 28, 1 << 27, 1 << 26
STC = 1 << 24
ALL_CHECKS = GUARD | APP | REF
GUARD_ERROR, APP_ERROR, REF_ERROR, STORAGE_ERROR = 0x282, 0x283, 0x284, 0x288
INVALID_PI = 0x181

PLAIN_512_8 = Format(2, 512, 8)
FORMATS = [
    Format(2, 512, 8),
    Format(3, 512, 16),
    Format(4, 512, 64),
    Format(5, 4096, 8),
    Format(6, 4096, 16, first=True),
    Format(7, 4096, 64),
    Format(8, 4096, 16, 64),
    Format(9, 4096, 64, 64),
    Format(9, 4096, 64, 64, first=True),
    Format(10, 4096, 16, 64, 16),
    Format(11, 4096, 16, 32, 16),
    Format(12, 4096, 64, 32, 32),
    Format(13, 4096, 8, 16, 16),
]


def noise(size: int, seed: int = 1) -> bytes:
    return bytes(b * (b + seed) + (b >> 8) & 0xFF for b in range(size))


@contextmanager
def formatted(kind: Format, protection: int, *, extended: bool = False) -> Iterator[Host]:
    """A drive whose namespace has been given the format; or made with it, for a storage tag."""
    with (
        Drive.open(None, [NamespaceShape(BLOCKS * kind.block)], capacity=1 << 20) as drive,
        Host(drive=drive) as host,
    ):
        host.enable()
        host.create_io_queue()
        host.put(bytes([0, 0, 1]).ljust(512, b"\0"))
        assert host.command(host.admin, SET_FEATURES, cdws=(0x16,)).status == 0
        if kind.tag_bits:
            made_anew(host, kind, protection, extended)
        else:
            dword = kind.index | extended << 4 | protection << 5 | kind.first << 8
            assert host.command(host.admin, FORMAT, nsid=1, cdws=(dword,)).status == 0
        yield host


def made_anew(host: Host, kind: Format, protection: int, extended: bool) -> None:
    assert host.command(host.admin, 0x0D, nsid=1, cdws=(1,)).status == 0
    page = bytearray(4096)
    struct.pack_into("<QQ", page, 0, BLOCKS, BLOCKS)
    page[26], page[29] = kind.index | extended << 4, protection | kind.first << 3
    host.put(bytes(page))
    made = host.command(host.admin, 0x0D, cdws=(0,))
    assert (made.status, made.dw0) == (0, 1)
    host.put(struct.pack("<HH", 1, 0).ljust(4096, b"\0"))
    assert host.command(host.admin, 0x15, nsid=1, cdws=(0,)).status == 0


def io(
    host: Host,
    opcode: int,
    kind: Format,
    lba: int,
    blocks: int = 1,
    *,
    flags: int = 0,
    space: int = 0,
    app: int = 0,
    mask: int = 0xFFFF,
    mptr: int = BUFFER,
) -> Cqe:
    """A command on blocks, with the tags where the standard has them."""
    cdw2, cdw3, cdw14 = kind.dwords(space)
    return host.command(
        host.io[1],
        opcode,
        nsid=1,
        prp2=DATA + 4096,
        first=(cdw2, cdw3, mptr & 0xFFFF_FFFF, mptr >> 32),
        cdws=(lba & 0xFFFF_FFFF, lba >> 32, blocks - 1 | flags, 0, cdw14, mask << 16 | app),
    )


def write(host: Host, kind: Format, lba: int, data: bytes, metadata: bytes, **more: int) -> int:
    host.put(data)
    host.put(metadata, BUFFER)
    return io(host, WRITE, kind, lba, len(data) // kind.block, **more).status


def read(host: Host, kind: Format, lba: int, blocks: int = 1, **more: int) -> tuple[bytes, bytes]:
    host.clear(DATA, 8192)
    host.clear(BUFFER, 1024)
    done = io(host, READ, kind, lba, blocks, **more)
    assert done.status == 0, hex(done.status)
    return host.data(blocks * kind.block), host.data(blocks * kind.metadata, BUFFER)

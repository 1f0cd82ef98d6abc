"""Commands of the Key Value Command Set by literal numbers.

Source: NVM Express Key Value Command Set Specification 1.0d, section 3.
"""

import struct

from potash_device.media.shapes import NamespaceShape
from support.memory import MIB
from support.nvme_host import DATA, Cqe, Host

FLUSH, STORE, RETRIEVE, LIST, DELETE, EXIST = 0, 1, 2, 6, 0x10, 0x14
KV = 2
"""The namespace, of command set 1."""
SIZE, LONGEST = 2 * MIB, 512 << 10
SHAPES = (NamespaceShape(MIB), NamespaceShape.key_value(SIZE))
INVALID_FIELD, INVALID_NAMESPACE, INVALID_FORMAT = 0x02, 0x0B, 0x10A
FULL, VALUE_SIZE, KEY_SIZE, ABSENT, EXISTS = 0x81, 0x85, 0x86, 0x87, 0x89
WRITE_PROTECTED = 0x20
MUST_EXIST, MUST_NOT_EXIST, UNCOMPRESSED = 1 << 8, 1 << 9, 1 << 10
PAGE = 4096
LISTS = DATA - PAGE


def command(
    host: Host,
    opcode: int,
    key: bytes,
    size: int = 0,
    options: int = 0,
    *,
    nsid: int = KV,
    length: int | None = None,
    sgl: bool = False,
) -> Cqe:
    """A command with the data pointer at DATA: PRPs with a list, or one SGL data block."""
    words = struct.unpack("<4I", key.ljust(16, b"\0"))
    prp1, prp2 = DATA, DATA + PAGE
    if sgl:
        prp2 = size
    elif size > 2 * PAGE:
        pages = range(DATA + PAGE, DATA + size, PAGE)
        host.put(struct.pack(f"<{len(pages)}Q", *pages), LISTS)
        prp2 = LISTS
    kl = len(key) if length is None else length
    return host.command(
        host.io[1],
        opcode,
        nsid=nsid,
        prp1=prp1,
        prp2=prp2,
        flags=0x40 if sgl else 0,
        first=words[:2],
        cdws=(size, options | kl, 0, 0, *words[2:]),
    )


def store(host: Host, key: bytes, value: bytes, options: int = 0, *, sgl: bool = False) -> int:
    host.put(value)
    return command(host, STORE, key, len(value), options, sgl=sgl).status


def retrieve(host: Host, key: bytes, size: int = LONGEST, *, sgl: bool = False) -> bytes | int:
    """The value, of which the buffer has the first `size` bytes; or the status."""
    host.clear(DATA, size + 1)
    done = command(host, RETRIEVE, key, size, sgl=sgl)
    return done.status or host.data(min(size, done.dw0))


def keys(host: Host, first: bytes = b"", size: int = PAGE) -> list[bytes]:
    """The keys that List returns (figures 15 and 16)."""
    host.clear(DATA, size)
    assert command(host, LIST, first, size).status == 0
    data, found, at = host.data(size), [], 4
    for _ in range(int.from_bytes(data[:4], "little")):
        length = int.from_bytes(data[at : at + 2], "little")
        found.append(data[at + 2 : at + 2 + length])
        at += (2 + length + 3) // 4 * 4
    return found

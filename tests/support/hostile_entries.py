"""Submission entries of an untrusted guest: fields near their edges, pointers into everything."""

import logging
import random
import struct

from nvme_spec.identify.capabilities import CommandSet
from potash_firmware.rpu.admin import ADMIN_COMMANDS
from potash_firmware.rpu.command_sets import COMMANDS
from support.nvme_host import ADMIN_CQ, ADMIN_SQ, DATA, IO_QUEUES, MEMORY, PAGE

READ_ONLY, WRITE_ONLY, HOLE = 0x80_0000, 0x90_0000, 0xA0_0000
"""A window that may only be read, one that may only be written, one without memory."""

COPY = 0x01
"""The opcode of Memory Copy."""

HIDDEN = 1 << 18
"""Bytes at the end of the guest's memory that it never gives to the device."""

SHADOW, EVENTS = 0x30_0000, 0x30_1000
LISTS = 0x31_0000
MEMORY_SIZE = 1 << 16
"""Bytes of namespace 2, which is memory. Namespace 3 is a compute namespace."""
QUEUE_PAIRS = 4

PLACES = (
    (ADMIN_SQ, ADMIN_CQ, SHADOW, EVENTS, LISTS, LISTS + PAGE, DATA, DATA + PAGE)
    + tuple(IO_QUEUES + 0x1_0000 * number for number in range(2 * QUEUE_PAIRS))
    + (
        READ_ONLY,
        WRITE_ONLY,
        HOLE,
        MEMORY - HIDDEN - PAGE,
        MEMORY - HIDDEN,
        1 << 63,
        (1 << 64) - PAGE,
    )
)


class Mistakes(logging.Handler):
    """Keeps what is logged with a traceback: an exception that nobody expected."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(self.format(record))


def address(rng: random.Random) -> int:
    """A place that means something, at its beginning or anywhere in it."""
    return (
        rng.choice(PLACES) + rng.choice((0, 0, 0, 8, 64, 512, 4092, 1, rng.randrange(PAGE)))
    ) % (1 << 64)


def descriptor(rng: random.Random) -> bytes:
    """An SGL descriptor; its kinds are sub types in the low, types in the high digit."""
    kind = rng.choice((0x00, 0x00, 0x10, 0x20, 0x30, 0x30, 0x01, 0x5A, rng.getrandbits(8)))
    length = rng.choice((0, 16, 32, 64, 512, PAGE, 2 * PAGE, 0x8_0000, 17, rng.getrandbits(32)))
    return struct.pack("<QI3xB", address(rng), length, kind)


def source_range(rng: random.Random) -> bytes:
    """A source range of Memory Copy, or of Copy: of blocks or of bytes."""
    nsid = rng.choice((1, 1, 2, 2, 3, 0, 4, 0xFFFF_FFFF))
    at = rng.choice((0, 1, 4, PAGE, MEMORY_SIZE - PAGE, 255, 256, 1 << 63, rng.getrandbits(64)))
    size = rng.choice((0, 0, 1, 4, 512, PAGE, 0xFFFF_FFFF))
    return struct.pack("<I4xQI2xH8x", nsid, at, size, rng.choice((0, 0, 0, 1 << 15)))


def dwords(rng: random.Random, admin: bool, opcode: int, nsid: int) -> list[int]:
    """Command dwords: what the command could mean, with one of them changed now and then."""
    csi = rng.choice((0, 0, 3, 4, 5)) << 24
    qid, size = rng.randrange(QUEUE_PAIRS + 2), rng.choice((1, 3, 15, 63, 1023, 4095, 4096, 0xFFFF))
    plausible: dict[tuple[bool, int], list[int]] = {
        (True, 0x00): [qid],
        (True, 0x01): [size << 16 | qid, rng.randrange(QUEUE_PAIRS + 2) << 16 | 1],
        (True, 0x02): [
            rng.choice((15, 1023)) << 16 | rng.choice((1, 2, 3, 5, 0x1A, 0x1B, 0x82, 0x84, 0xC0)),
            0,
            0,
            0,
            csi,
        ],
        (True, 0x04): [qid],
        (True, 0x05): [size << 16 | qid, rng.randrange(QUEUE_PAIRS + 2) << 16 | 3],
        (True, 0x06): [rng.choice((0, 1, 2, 3, 5, 6, 7, 8, 0x1A, 0x1B, 0x1C, 0x1F)), csi],
        (True, 0x08): [rng.randrange(64) << 16 | qid],
        (True, 0x09): [rng.randrange(0x20), rng.getrandbits(32)],
        (True, 0x0A): [rng.randrange(0x20)],
        (True, 0x10): [rng.randrange(64)],
        (True, 0x11): [rng.choice((0, 1023)), rng.randrange(4) * 1024],
        (True, 0x0D): [rng.randrange(3), csi],
        (True, 0x14): [rng.choice((1, 2, 14, 15))],
        (True, 0x15): [rng.randrange(3)],
        (True, 0x80): [rng.choice((0, 1, 2, 0x200, 0x201, 0x10))],
        (True, 0x85): [
            rng.choice((1, 9, 10, 11, 1 << 24 | 10)) | 0xC0 << 16,
            64,
            0,
            0,
            rng.choice((8, 32, 64)),
            rng.choice((0, 32)),
        ],
        (True, 0x88): [rng.choice((0, 1, 9, 10, 11)) | rng.choice((0, 1, 1, 1, 2)) << 16],
        (True, 0x89): [rng.choice((0, 0, 0, 1 << 16 | 1, 2 << 16 | 1)), rng.choice((1, 1, 2, 255))],
        (True, 0x84): [rng.choice((1, 2, 4, 0x13, 0x2B, 0x202)), rng.getrandbits(32)],
        (False, 0x01): [rng.randrange(260), 0, rng.randrange(130) | rng.getrandbits(1) << 30],
        (False, 0x02): [rng.randrange(260), 0, rng.randrange(130)],
        (False, 0x19): [rng.randrange(260), 0, rng.choice((0, 4)) << 8 | rng.choice((0, 1, 127))],
    }
    if nsid == 2 and not admin:
        start = rng.choice((0, 4, 512, PAGE, MEMORY_SIZE - PAGE, MEMORY_SIZE, 2))
        length = rng.choice((0, 4, 512, PAGE, 3 * PAGE, MEMORY_SIZE, rng.getrandbits(32)))
        last = rng.choice((2, 3, 4)) << 8 | rng.choice((0, 1, 127)) if opcode == COPY else length
        plausible[admin, opcode] = [start, rng.choice((0, 0, 0, 1 << 31)), last]
    words = plausible.get((admin, opcode), [rng.choice((0, 8, 64, 1024, 0x2_0000, 0x2_0001))])
    words += [0] * (6 - len(words))
    if rng.random() < 0.2:
        words[rng.randrange(6)] = rng.choice((0, 1, 0xFFFF_FFFF, rng.getrandbits(32)))
    return words


def entry(rng: random.Random, admin: bool) -> bytes:
    """A submission entry."""
    nsid = rng.choice((1, 1, 1, 2, 2, 2, 3, 3, 3, 0, 4, 0xFFFF_FFFF))
    csi = {2: CommandSet.MEMORY, 3: CommandSet.COMPUTE}.get(nsid, CommandSet.NVM)
    opcodes = ADMIN_COMMANDS if admin else COMMANDS[csi]
    opcode = rng.choice(sorted(opcodes)) if rng.random() < 0.95 else rng.getrandbits(8)
    flags = rng.choice((0, 0, 0, 0x40, 0x40, 0x80)) if not admin else 0
    if rng.random() < 0.03:
        flags = rng.getrandbits(8)
    # Of Execute Program: index and range set, ranges, bytes of data.
    words = (rng.choice((0, 1, 2, 3, 1 << 16, 1 << 16 | 3)), rng.choice((0, 0, 0, 1, 2, 1 << 27)))
    length = rng.choice((0, 0, 32, 64, 100, PAGE, 3 * PAGE, rng.getrandbits(32)))
    first = (*words, length, 0) if nsid == 3 else (0,) * 4
    if nsid == 2:  # of Memory Copy: the bytes of all ranges
        first = (rng.choice((0, 4, 512, PAGE, 2 * PAGE)), rng.choice((0, 0, 0, 1)), 0, 0)
    head = struct.pack("<BBHI4I", opcode, flags, rng.getrandbits(7), nsid, *first)
    if flags & 0xC0:
        pointers = descriptor(rng)
    else:
        pointers = struct.pack("<QQ", address(rng) & ~3, address(rng))
    return head + pointers + struct.pack("<6I", *dwords(rng, admin, opcode, nsid))

"""The fast path of memory namespaces does what the slow path does, and so does plain Python.

Three drives get the same random commands: with both paths, with the slow path alone, and one that
is a bytearray. Sizes, addresses and flags are often wrong.
"""

import random
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from potash_device.media.shapes import NamespaceShape
from support.memory import FILL, INVALID_FIELD, READ, WRITE, powered
from support.modelled_time import modelled, timing_of
from support.nvme_host import DATA, PAGE, Cqe, Host

SIZE = 64 << 10
SGL, SGL_TYPE = 0x40, 0x11
"""The flags of a command with an SGL, and the status of one that is not supported."""
BUFFER = 32 << 10
"""Bytes of guest memory that commands move from and to."""


def memory_of(host: Host) -> bytes:
    return bytes(host.rpu.controller.namespaces.every[2].memory.bytes)  # type: ignore[union-attr]  # it is one of memory


class Given(NamedTuple):
    """A command."""

    opcode: int
    nsid: int
    flags: int
    prp1: int
    prp2: int
    cdws: tuple[int, int, int]


def command(chosen: random.Random) -> Given:
    start = chosen.choice([chosen.randrange(SIZE // 4) * 4] * 8 + [0, SIZE, 2, (1 << 64) - 4])
    length = chosen.choice([4096, 512, 4, 8192, chosen.randrange(2048) * 4, 0, 6])
    offset = chosen.choice([0, 0, 0, 4, 512])
    page = DATA + chosen.randrange(4) * PAGE
    opcode = chosen.choice([READ, READ, WRITE, WRITE, FILL, 0x0C])
    flags = chosen.choice([0] * 6 + [SGL] * 6 + [0xC0]) if opcode != FILL else 0
    described = chosen.choice([length] * 8 + [length + 4, length | 1 << 56])
    return Given(
        opcode=opcode,
        nsid=chosen.choice([2] * 12 + [3, 9]),
        flags=flags,
        prp1=page + offset if length <= 4096 else page,
        prp2=described if flags == SGL else page + PAGE,
        cdws=(start & 0xFFFF_FFFF, start >> 32, length),
    )


def outcome(one: Cqe) -> tuple[int, int, bool]:
    return one.cid, one.status, one.dnr


def expected(model: bytearray, guest: bytearray, given: Given) -> int | None:
    """What a bytearray answers to Memory Read, Write and Fill; None where it does not know."""
    low, high, length = given.cdws
    start, at = high << 32 | low, given.prp1 - DATA
    if given.nsid != 2 or given.flags not in (0, SGL) or given.opcode == 0x0C:
        return None
    if start % 4 or length % 4 or start + length > SIZE:
        return INVALID_FIELD
    if given.flags == SGL and given.prp2 >> 56 and length:
        return SGL_TYPE
    if given.opcode == FILL:
        model[start : start + length] = bytes(length)
    elif not given.flags and at % PAGE + length > 2 * PAGE:
        return None
    elif given.opcode == READ:
        guest[at : at + length] = model[start : start + length]
    else:
        model[start : start + length] = guest[at : at + length]
    return 0


@pytest.mark.parametrize("is_modelled", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_both_paths_and_a_bytearray_agree(seed: int, is_modelled: bool) -> None:
    chosen = random.Random(seed)
    shapes = (NamespaceShape(1 << 20), NamespaceShape.memory(SIZE), NamespaceShape.compute())
    with ExitStack() as stack:
        settings = [modelled() if is_modelled else None for _ in range(2)]
        hosts = [stack.enter_context(powered(None, *shapes, settings=one)) for one in settings]
        slow = hosts[1].rpu.arbiter
        slow.fast_path.run = lambda queue, limit: 0  # type: ignore[method-assign]  # there is none
        guest, model = bytearray(chosen.randbytes(BUFFER)), bytearray(SIZE)
        for host in hosts:
            host.put(bytes(guest))
        for _ in range(150):
            burst = [command(chosen) for _ in range(chosen.randint(1, 10))]
            for host in hosts:
                for cid, one in enumerate(burst):
                    host.place(host.io[1], cid=cid, **one._asdict())
                host.ring(host.io[1])
                host.service()
                while host.goes_on():
                    host.executor.run_all()
                    host.service()
            assert hosts[0].now == hosts[1].now
            answers = [sorted(outcome(one) for one in host.reap(host.io[1])) for host in hosts]
            assert answers[0] == answers[1]
            for (_, status, _), one in zip(answers[0], burst, strict=True):
                known = expected(model, guest, one)
                assert known in (None, status)
            assert memory_of(hosts[0]) == memory_of(hosts[1]) == bytes(model)
            assert hosts[0].data(BUFFER) == hosts[1].data(BUFFER) == bytes(guest)
        counted = [host.rpu.controller.statistics.commands for host in hosts]
        assert counted[0] == counted[1]
        assert counted[0][1, 3, READ] > 200
        if is_modelled:
            completions = [list(timing_of(host).completions) for host in hosts]
            assert completions[0] == completions[1]

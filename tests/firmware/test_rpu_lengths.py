"""No command allocates by a length of the host before the length is checked against MDTS.

Every opcode of the dispatch tables is tried with huge numbers in its dwords, alone and in pairs, so
a new command is covered without an edit here. Admin commands that have been tried on one namespace
get no pairs on the others, except in the slow test.
"""

import itertools
import tracemalloc
from collections.abc import Iterator

import pytest

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.status import NvmeError
from potash_device.media.drive import Drive
from potash_device.media.shapes import Metadata, NamespaceShape
from potash_firmware.rpu.admin import ADMIN_COMMANDS, FAULT_COMMANDS
from potash_firmware.rpu.admin.placement import PLACEMENT_ADMIN, PLACEMENT_IO
from potash_firmware.rpu.command_sets import COMMANDS
from potash_firmware.rpu.dispatch import Table
from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import DATA, PAGE, Host
from support.zones import shape

LIMIT = 8 << 20
"""Bytes: MDTS is 512 KiB, and Verify reads 4 MiB at a time."""

ENDS_THE_TEST = {0x00, 0x04, 0x0C, 0x0D, 0x15, 0x7C, 0x80, 0x84}
"""Delete a queue, wait for an event, move the doorbells, erase or delete namespaces: none of these
has a length."""

ADMIN = ADMIN_COMMANDS | FAULT_COMMANDS | PLACEMENT_ADMIN
IO = {**COMMANDS, CommandSet.NVM: COMMANDS[CommandSet.NVM] | PLACEMENT_IO}
NAMESPACES = (
    (1, CommandSet.NVM),
    (2, CommandSet.NVM),
    (3, CommandSet.ZONED),
    (4, CommandSet.MEMORY),
    (5, CommandSet.COMPUTE),
)

DWORDS = (2, 3, *range(10, 16))
PAIRS = tuple(itertools.combinations(range(10, 16), 2))


@pytest.fixture
def host() -> Iterator[Host]:
    shapes = (
        NamespaceShape(4 << 20),
        NamespaceShape(4 << 20, metadata=Metadata(8, protection=1)),
        shape(),
        NamespaceShape(1 << 20, csi=CommandSet.MEMORY),
        NamespaceShape(0, csi=CommandSet.COMPUTE),
    )
    settings = RpuSettings(allow_faults=True, placement=PlacementSettings(4, 1 << 20))
    with Drive.open(None, shapes) as drive, Host(settings=settings, drive=drive) as host:
        host.css = 6
        host.enable()
        host.create_io_queue()
        yield host


def fields(pairs: tuple[tuple[int, int], ...]) -> Iterator[dict[int, int]]:
    """Dwords by number: the others are 0, or 1, which many commands take for an operation."""
    for rest in (0, 1):
        for huge, chosen in (
            *((0xFFFF_FFFF, (one,)) for one in DWORDS),
            *((0x0FFF_FFFF, some) for some in (*((one,) for one in DWORDS), *pairs)),
        ):
            yield {one: rest if one > 3 else 0 for one in DWORDS} | dict.fromkeys(chosen, huge)


def allocated(host: Host, opcode: int, nsid: int, dwords: dict[int, int], *, admin: bool) -> int:
    """Bytes that a command has taken at its most."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    host.command(
        host.admin if admin else host.io[1],
        opcode,
        nsid=nsid,
        prp1=DATA,
        prp2=DATA + PAGE,
        first=(dwords[2], dwords[3]),
        cdws=tuple(dwords[one] for one in range(10, 16)),
    )
    return tracemalloc.get_traced_memory()[1] - before


def tried(table: Table, *, in_pairs: bool) -> Iterator[tuple[int, dict[int, int]]]:
    for opcode in table:
        yield from ((opcode, one) for one in fields(PAIRS if in_pairs else ()))


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_command_allocates_by_a_number_of_the_host(host: Host, thorough: bool) -> None:
    greedy = set()
    tracemalloc.start(1)
    try:
        for nsid, csi in NAMESPACES:
            admin = {opcode: row for opcode, row in ADMIN.items() if opcode not in ENDS_THE_TEST}
            for table, is_admin in ((admin, True), (IO[csi], False)):
                in_pairs = thorough or nsid == 1 or not is_admin
                for opcode, dwords in tried(table, in_pairs=in_pairs):
                    if allocated(host, opcode, nsid, dwords, admin=is_admin) > LIMIT:
                        greedy.add((is_admin, hex(opcode), nsid))
    finally:
        tracemalloc.stop()
    assert not greedy


def test_buffers_are_no_longer_than_a_command_may_move(host: Host) -> None:
    transfer = host.rpu.controller.transfer
    assert len(transfer.buffer(512 << 10)) == 512 << 10
    with pytest.raises(NvmeError):
        transfer.buffer((512 << 10) + 1)

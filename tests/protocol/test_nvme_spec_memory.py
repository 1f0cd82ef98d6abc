"""Memory commands, source ranges that name a namespace, reachability: byte by byte."""

import struct

import pytest

from nvme_spec.features import AsyncEventConfiguration, HostBehavior
from nvme_spec.identify.structures import (
    CommandSetCombinations,
    IdentifyController,
    IndependentNamespace,
)
from nvme_spec.memory_commands import MemoryAccess, MemoryCopy, MemoryNamespace
from nvme_spec.queues import SubmissionEntry
from nvme_spec.ranges import BlockSourceRange, CopyFormat, MemorySourceRange
from nvme_spec.reachability import (
    Association,
    Characteristic,
    Group,
    encode_associations,
    encode_groups,
)


def test_memory_read_write_and_fill() -> None:
    cdws = (0x5566_7788, 0x1122_3344, 0x1000, 0, 0, 0)
    assert MemoryAccess.decode(cdws) == MemoryAccess(0x1122_3344_5566_7788, 0x1000)
    assert MemoryAccess(0x1122_3344_5566_7788, 0x1000).encode() == cdws
    with pytest.raises(ValueError, match="does not fit"):
        MemoryAccess(0, 1 << 32).encode()


@pytest.mark.parametrize(("desfmt", "size"), [(2, 32), (3, 40), (4, 32)])
def test_memory_copy(desfmt: int, size: int) -> None:
    dwords = {"cdw2": 0x2000, "cdw3": 1, "cdw10": 0x5566_7788, "cdw11": 0x1122_3344}
    dwords["cdw12"] = desfmt << 8 | 2
    fields = MemoryCopy.decode(SubmissionEntry(1, **dwords))
    assert fields == (0x1_0000_2000, 0x1122_3344_5566_7788, 2, desfmt)
    assert fields.data_length == 3 * size
    assert fields.fields() == dwords
    for unfit in ((1 << 64, 0, 0, 2), (0, -1, 0, 2), (0, 0, 256, 2), (0, 0, 0, 16)):
        with pytest.raises(ValueError, match="does not fit"):
            MemoryCopy(*unfit).fields()


def test_memory_copy_of_an_unknown_format() -> None:
    with pytest.raises(KeyError):
        _ = MemoryCopy(0, 0, 0, 0).data_length


@pytest.mark.parametrize(("kind", "size"), [(CopyFormat.BLOCKS, 32), (CopyFormat.BLOCKS_64, 40)])
def test_block_source_ranges(kind: CopyFormat, size: int) -> None:
    entry = bytearray(b"\xff" * size)
    struct.pack_into("<I", entry, 0, 7)
    struct.pack_into("<Q", entry, 8, 1 << 40)
    struct.pack_into("<H", entry, 16, 9)
    struct.pack_into("<H", entry, 22, 0x8000)
    assert (
        list(BlockSourceRange.decode_list(bytes(entry) * 2, kind)) == [(7, 1 << 40, 9, 0x8000)] * 2
    )
    assert BlockSourceRange(7, 1 << 40, 9).blocks == 10
    assert len(BlockSourceRange(7, 1, 9).encode(kind)) == size


def test_memory_source_ranges() -> None:
    entry = bytearray(b"\xff" * 32)
    struct.pack_into("<I", entry, 0, 2)
    struct.pack_into("<QI", entry, 8, 0x1_0000_0004, 0x1000)
    struct.pack_into("<H", entry, 22, 0)
    assert list(MemorySourceRange.decode_list(bytes(entry))) == [(2, 0x1_0000_0004, 0x1000, 0)]
    assert MemorySourceRange(2, 4, 8).encode().hex() == (
        "02000000" "00000000" "0400000000000000" "08000000" "0000" "0000" "0000000000000000"
    )  # fmt: skip


def test_structures() -> None:
    assert bytes(MemoryNamespace(nsze=1 << 28, ncap=1 << 28))[:24].hex() == (
        "0000001000000000" "0000001000000000" "0000000000000000"
    )  # fmt: skip
    assert bytes(IdentifyController(crcap=3))[134] == 3
    assert bytes(IndependentNamespace(rgrpid=0x0403_0201))[20:24] == b"\x01\x02\x03\x04"
    assert bytes(HostBehavior(copy_formats=0x1C))[:6] == b"\0\0\0\0\x1c\0"
    vectors = bytes(CommandSetCombinations(combinations=(0x19, 1)))
    assert (vectors[:24], len(vectors)) == (struct.pack("<QQQ", 0x19, 1, 0), 4096)
    bits = AsyncEventConfiguration(
        reachability_associations=1, reachability_groups=1, allocated_namespace_attributes=1
    )
    assert bits.encode() == 0xE_0000


def test_reachability_groups() -> None:
    log = encode_groups(5, [Group(1, 4, (3, 1))])
    assert log.hex() == (
        "0500000000000000" "0100" "000000000000"
        "01000000" "02000000" "0400000000000000" "00000000000000000000000000000000"
        "01000000" "03000000"
    )  # fmt: skip
    log = encode_groups(5, [Group(1, 4, (3, 1))], namespaces=False)
    assert (len(log), log[20:24]) == (48, bytes(4))


def test_reachability_associations() -> None:
    log = encode_associations(2, [Association(1, 2, Characteristic.REACHABLE, (1,))])
    assert log.hex() == (
        "0200000000000000" "0100" "000000000000"
        "01000000" "01000000" "0200000000000000" "01" "000000000000000000000000000000"
        "01000000"
    )  # fmt: skip
    log = encode_associations(2, [Association(1, 2, Characteristic.REACHABLE, (1,))], groups=False)
    assert (len(log), log[20:24]) == (48, bytes(4))

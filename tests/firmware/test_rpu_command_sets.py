"""Several command sets on one controller: what a host finds, and what it can have."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.memory import (
    BLOCKS,
    COMPUTE,
    GET_FEATURES,
    GET_LOG,
    INVALID_FIELD,
    INVALID_NAMESPACE,
    MEMORY,
    MIB,
    SET_FEATURES,
    asked,
    identify,
    log_page,
    nsids,
    powered,
    read,
    write,
)
from support.nvme_host import Host

INVALID_IO_COMMAND_SET, COMBINATION_REJECTED = 0x12C, 0x12B
ALL = 0xFFFF_FFFF


@pytest.fixture
def host() -> Iterator[Host]:
    with powered() as found:
        yield found


def test_lists_by_command_set(host: Host) -> None:
    assert nsids(host, 0x02) == nsids(host, 0x10) == [1, 2, 3]
    for cns in (0x07, 0x1A):
        assert [nsids(host, cns, csi) for csi in (0, 3, 4)] == [[BLOCKS], [MEMORY], [COMPUTE]]
        assert asked(host, cns, csi=2) == INVALID_FIELD
        assert asked(host, cns, ALL - 1, 3) == INVALID_NAMESPACE
    assert struct.unpack_from("<QQQ", identify(host, 0x1C)) == (0b11001, 0b1, 0)


def test_descriptors_have_the_command_set_and_a_uuid(host: Host) -> None:
    for nsid, csi in ((BLOCKS, 0), (MEMORY, 3), (COMPUTE, 4)):
        page = identify(host, 0x03, nsid)
        assert page[:2] == b"\x03\x10"
        assert any(page[4:20])
        assert page[20:28] == bytes([4, 1, 0, 0, csi, 0, 0, 0])


@pytest.mark.parametrize("cns", [0x05, 0x1B])
def test_the_structure_of_a_memory_namespace_is_its_size(host: Host, cns: int) -> None:
    page = identify(host, cns, MEMORY, 3)
    assert page == struct.pack("<QQ", 2 * MIB, 2 * MIB).ljust(4096, b"\0")
    assert identify(host, cns, ALL, 3) == bytes(4096)
    assert identify(host, cns, 9, 3) == bytes(4096)
    assert asked(host, cns, MEMORY, 0) == asked(host, cns, MEMORY, 4) == INVALID_FIELD
    assert asked(host, cns, MEMORY, 2) == INVALID_FIELD


@pytest.mark.parametrize("nsid", [COMPUTE, ALL])
def test_the_structure_of_a_compute_namespace_is_its_limits(host: Host, nsid: int) -> None:
    page = identify(host, 0x05, nsid, 4)
    fields = struct.unpack_from("<HHHBBQB", page)
    assert fields == (16, 64, 12, 16, 0, 16, 3)
    assert not any(page[17:])


def test_structures_of_blocks_are_of_no_other_command_set(host: Host) -> None:
    assert asked(host, 0x00, MEMORY) == asked(host, 0x11, COMPUTE) == INVALID_IO_COMMAND_SET
    for csi in (3, 4):
        assert identify(host, 0x06, csi=csi) == bytes(4096)


@pytest.mark.parametrize("cns", [0x08, 0x1F])
def test_every_namespace_is_ready(host: Host, cns: int) -> None:
    for nsid in (BLOCKS, MEMORY, COMPUTE):
        page = identify(host, cns, nsid)
        assert page[14] == 1
        assert page[0] == (0 if nsid == BLOCKS else 1 << 5)
    assert identify(host, cns, 9) == bytes(4096)


def test_effects_are_those_of_the_command_set(host: Host) -> None:
    def opcodes(csi: int) -> set[int]:
        entries = struct.unpack_from("<256I", log_page(host, 0x05, 4096, csi), 1024)
        return {opcode for opcode, entry in enumerate(entries) if entry & 1}

    assert {0, 1, 2, 0x19} <= opcodes(0)
    assert opcodes(3) >= {0, 2, 4, 5}
    assert opcodes(4) >= {0}
    cdws = (1023 << 16 | 5, 0, 0, 0, 2 << 24)
    assert host.command(host.admin, GET_LOG, cdws=cdws).status == INVALID_FIELD


def test_a_host_of_the_nvm_command_set_alone_sees_a_plain_drive(host: Host) -> None:
    write(host, b"A" * 4096)
    host.disable()
    host.css = 0
    host.enable()
    queue = host.create_io_queue()
    assert nsids(host, 0x02) == nsids(host, 0x10) == [BLOCKS]
    assert asked(host, 0x07, csi=3) == INVALID_FIELD
    assert identify(host, 0x08, MEMORY) == bytes(4096)
    done = host.command(queue, 2, nsid=MEMORY, cdws=(0, 0, 4096))
    assert done.status == INVALID_FIELD
    assert log_page(host, 0x05, 4096, csi=3) == log_page(host, 0x05, 4096)
    created = host.command(host.admin, 0x0D, cdws=(0, 3 << 24))
    assert created.status == 0x129
    host.disable()
    host.css = 6
    host.enable()
    host.create_io_queue()
    assert nsids(host, 0x02) == [1, 2, 3]
    assert read(host, 4096) == b"A" * 4096


def test_the_profile_leaves_out_no_attached_namespace(host: Host) -> None:
    def put(index: int) -> int:
        return host.command(host.admin, SET_FEATURES, cdws=(0x19, index)).status

    assert host.command(host.admin, GET_FEATURES, cdws=(0x19,)).dw0 == 0
    assert put(0) == 0
    assert [put(index) for index in (1, 2, 511)] == [COMBINATION_REJECTED] * 3


def test_a_drive_without_such_namespaces_has_one_command_set() -> None:
    with Host() as host:
        host.css = 6
        host.enable()
        assert struct.unpack_from("<QQ", identify(host, 0x1C)) == (1, 0)
        assert asked(host, 0x07, csi=3) == asked(host, 0x05, 1, 4) == INVALID_FIELD


def test_the_drive_remembers_its_namespaces_and_no_byte_of_memory(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    folder.mkdir()
    with powered(folder) as host:
        write(host, b"A" * 4096)
        before = identify(host, 0x03, MEMORY)
    with powered(folder) as host:
        assert nsids(host, 0x02) == [1, 2, 3]
        assert identify(host, 0x03, MEMORY) == before
        assert read(host, 4096) == bytes(4096)

"""Several command sets on one controller: what a host finds, and what it can have."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_spec.faults import Fault, FaultKind
from nvme_spec.identify.lists import NamespaceIdentificationDescriptor, NamespaceIdType
from potash_device.media.store import MemoryMedia
from potash_firmware.rpu.settings import RpuSettings
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


def identifiers(host: Host, nsid: int) -> dict[int, bytes]:
    listed = NamespaceIdentificationDescriptor.decode_list(identify(host, 0x03, nsid))
    return {each.type: each.identifier for each in listed}


def test_a_namespace_has_an_nguid_and_an_eui64_if_that_is_asked_for() -> None:
    with Host({1: MemoryMedia.create(1 << 20), 2: MemoryMedia.create(1 << 20)}) as host:
        host.enable()
        plain = identifiers(host, 1)
        assert set(plain) == {NamespaceIdType.UUID, NamespaceIdType.CSI}
        assert not any(identify(host, 0x00, 1)[104:128])
    settings = RpuSettings(nguid=True)
    with Host({1: MemoryMedia.create(1 << 20), 2: MemoryMedia.create(1 << 20)}, settings) as host:
        host.enable()
        found = []
        for nsid in (1, 2):
            listed = identifiers(host, nsid)
            nguid, eui64 = listed[NamespaceIdType.NGUID], listed[NamespaceIdType.EUI64]
            assert identify(host, 0x00, nsid)[104:128] == nguid + eui64
            assert (len(nguid), nguid[8:], eui64[0] & 3) == (16, eui64, 2)
            found += [nguid, eui64]
        assert len(set(found)) == 4
        assert plain.items() <= identifiers(host, 1).items()


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
    assert fields == (64, 64, 12, 16, 0, 16, 3)
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
    # nvme-cli asks for the zoned command set of every drive that has CAP.CSS bit 6.
    assert opcodes(1) == opcodes(2) == opcodes(255) == set()
    assert log_page(host, 0x05, 1024, 2) == log_page(host, 0x05, 1024, 0)  # Admin commands


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


# Reachability.


def test_one_group_and_one_association(host: Host) -> None:
    header = struct.pack("<QH6x", 0, 1)
    group = struct.pack("<IIQ16x", 1, 3, 0) + struct.pack("<3I", 1, 2, 3)
    association = struct.pack("<IIQB15x", 1, 1, 0, 1) + struct.pack("<I", 1)
    assert log_page(host, 0x1A, 60) == header + group
    assert log_page(host, 0x1B, 52) == header + association
    assert log_page(host, 0x1A, 48, lsp=1)[16:24] == struct.pack("<II", 1, 0)
    assert log_page(host, 0x1B, 48, lsp=1)[16:24] == struct.pack("<II", 1, 0)
    for nsid in (BLOCKS, MEMORY, COMPUTE):
        assert identify(host, 0x08, nsid)[20:24] == b"\x01\0\0\0"
    page = identify(host, 0x01)
    assert page[134] == 0b11
    assert page[94] >> 1 & 1


def test_namespaces_without_their_association(host: Host) -> None:
    """The event (notice 08h, log page 1Bh), the log, and what does not reach what."""

    def told() -> list[int]:
        host.service()
        return [done.dw0 for done in host.reap(host.admin) if done.cid == 77]

    def ask() -> None:
        host.place(host.admin, 0x0C, 77)
        host.ring(host.admin)
        host.service()

    host.command(host.admin, SET_FEATURES, cdws=(0x0B, 1 << 17))
    ask()
    faults = host.rpu.controller.faults
    fault = faults.add(Fault(FaultKind.UNREACHABLE))
    assert told() == [0x1B << 16 | 0x08 << 8 | 2]
    assert log_page(host, 0x1B, 16) == struct.pack("<QH6x", 1, 0)
    host.put(struct.pack("<I4xQI2xH8x", MEMORY, 0, 4, 0))
    done = host.command(host.io[1], 0x19, nsid=BLOCKS, cdws=(0, 0, 0x400))
    assert done.status == INVALID_FIELD
    host.put(struct.pack("<I4xQI2xH8x", MEMORY, 0, 4096, 0))
    done = host.command(host.io[1], 0x19, nsid=BLOCKS, cdws=(0, 0, 0x400))
    assert done.status == 0x188
    host.put(struct.pack("<IIQ16x", MEMORY, 4096, 0))
    done = host.command(host.admin, 0x89, nsid=COMPUTE, cdws=(0, 1))
    assert done.status == 0x18B
    ask()
    faults.clear(fault)
    assert told() == [0x1B << 16 | 0x08 << 8 | 2]
    assert log_page(host, 0x1B, 16) == struct.pack("<QH6x", 2, 1)
    host.put(struct.pack("<IIQ16x", MEMORY, 4096, 0))
    assert host.command(host.admin, 0x89, nsid=COMPUTE, cdws=(0, 1)).status == 0


def test_a_plain_drive_reports_no_reachability() -> None:
    with Host() as host:
        host.css = 6
        host.enable()
        page = identify(host, 0x01)
        assert (page[134], page[94]) == (0, 0)
        assert identify(host, 0x08, 1)[20:24] == bytes(4)
        for lid in (0x1A, 0x1B):
            assert host.command(host.admin, GET_LOG, cdws=(15 << 16 | lid,)).status == 0x109


# Namespace management.

MANAGE, ATTACH = 0x0D, 0x15
NOT_SUPPORTED, NOT_ENABLED = 0x129, 0x12A


def create(host: Host, csi: int, size: int = 0, capacity: int | None = None) -> tuple[int, int]:
    """Status and dword 0; size and capacity in what the command set counts."""
    more = size if capacity is None else capacity
    host.put(struct.pack("<QQ", size, more).ljust(4096, b"\0"))
    done = host.command(host.admin, MANAGE, cdws=(0, csi << 24))
    return done.status, done.dw0


def delete(host: Host, nsid: int) -> int:
    return host.command(host.admin, MANAGE, nsid=nsid, cdws=(1,)).status


def attach(host: Host, nsid: int, sel: int = 0) -> int:
    host.put(struct.pack("<HH", 1, 0).ljust(4096, b"\0"))
    return host.command(host.admin, ATTACH, nsid=nsid, cdws=(sel,)).status


def test_namespaces_of_every_command_set_are_made_and_deleted(host: Host) -> None:
    assert delete(host, MEMORY) == 0
    assert create(host, 3, MIB) == (0, MEMORY)
    assert create(host, 3, MIB, 0) == (0, 4)
    assert create(host, 4) == (0, 5)
    assert nsids(host, 0x02) == [BLOCKS, COMPUTE]
    assert nsids(host, 0x1A, 3) == [MEMORY, 4]
    assert identify(host, 0x1B, 4, 3)[:16] == struct.pack("<QQ", MIB, MIB)
    assert identify(host, 0x05, 4, 3) == bytes(4096)
    assert [attach(host, nsid) for nsid in (MEMORY, 4, 5)] == [0, 0, 0]
    write(host, b"A" * 4096, nsid=4)
    assert attach(host, 4, sel=1) == 0
    assert attach(host, 4) == 0
    assert read(host, 4096, nsid=4) == b"A" * 4096, "detaching keeps the bytes"
    assert delete(host, ALL) == 0
    assert nsids(host, 0x10) == []


@pytest.mark.parametrize(
    ("csi", "size", "capacity", "status"),
    [
        (3, 0, 0, INVALID_FIELD),
        (3, 4096, 8192, INVALID_FIELD),
        (3, 4100, 4100, INVALID_FIELD),
        (3, 8192, 4096, 0x11B),
        (3, 4096, 4096, 0x115),
        (3, 1 << 63, 1 << 63, 0x115),
        (1, 4096, 4096, NOT_SUPPORTED),
        (2, 4096, 4096, NOT_SUPPORTED),
        (5, 4096, 4096, NOT_SUPPORTED),
        (0xFF, 4096, 4096, NOT_SUPPORTED),
    ],
)
def test_a_namespace_that_cannot_be(
    host: Host, csi: int, size: int, capacity: int, status: int
) -> None:
    assert create(host, csi, size, capacity) == (status, 0)
    assert nsids(host, 0x10) == [1, 2, 3]


def test_there_are_so_many_identifiers(host: Host) -> None:
    assert [create(host, 4)[0] for _ in range(62)] == [0] * 61 + [0x116]


def test_more_memory_than_there_is_at_first(tmp_path: Path) -> None:
    folder = tmp_path / "drive"
    folder.mkdir()
    with powered(folder, memory_capacity=3 * MIB) as host:
        assert create(host, 3, MIB) == (0, 4)
        assert attach(host, 4) == 0
        assert create(host, 3, 4096) == (0x115, 0)
        uuid = identify(host, 0x03, 4)
    with powered(folder) as host:
        assert nsids(host, 0x07, 3) == [MEMORY, 4]
        assert identify(host, 0x03, 4) == uuid
        assert delete(host, 4) == 0
    with powered(folder) as host:
        assert nsids(host, 0x10) == [1, 2, 3]
        assert create(host, 3, MIB) == (0, 4)


def test_a_command_set_that_the_profile_leaves_out(host: Host) -> None:
    def profile(index: int) -> int:
        return host.command(host.admin, SET_FEATURES, cdws=(0x19, index)).status

    assert [attach(host, nsid, sel=1) for nsid in (MEMORY, COMPUTE)] == [0, 0]
    assert profile(1) == 0
    host.disable()
    host.enable()
    assert host.command(host.admin, GET_FEATURES, cdws=(0x19,)).dw0 == 1
    assert asked(host, 0x07, csi=3) == INVALID_FIELD
    assert create(host, 3, 4096)[0] == NOT_SUPPORTED
    assert [attach(host, nsid) for nsid in (MEMORY, COMPUTE)] == [NOT_ENABLED] * 2
    assert delete(host, MEMORY) == NOT_ENABLED
    assert host.command(host.admin, 0x88, nsid=COMPUTE).status == 1
    assert profile(0) == 0
    assert [attach(host, nsid) for nsid in (MEMORY, COMPUTE)] == [0, 0]
    assert nsids(host, 0x02) == [1, 2, 3]


def test_a_host_is_told_of_namespaces_of_every_command_set(host: Host) -> None:
    host.command(host.admin, SET_FEATURES, cdws=(0x0B, 1 << 8))
    host.place(host.admin, 0x0C, 77)
    host.ring(host.admin)
    host.service()
    host.put(struct.pack("<HH", 1, 0).ljust(4096, b"\0"))
    host.place(host.admin, ATTACH, 78, nsid=MEMORY, cdws=(1,))
    host.ring(host.admin)
    host.service()
    while host.executor.waiting:
        host.executor.run_all()
        host.service()
    told = {done.cid: done for done in host.reap(host.admin)}
    assert (told[78].status, told[77].dw0) == (0, 4 << 16 | 2)
    assert struct.unpack_from("<II", log_page(host, 4, 4096)) == (MEMORY, 0)

"""What the SDK sends to memory and compute namespaces: dwords and descriptors, written out."""

from __future__ import annotations

import struct

import pytest

from potash.sdk import Completion, Device, DeviceNotFound, InvalidRequest
from potash.sdk.compute_namespace import ComputeNamespace, Program
from potash.sdk.memory_namespace import Blocks, Bytes, MemoryNamespace
from potash.sdk.transport import Request
from support.sdk import RecordingTransport, data

ADMIN, IO = True, False
MEMORY = {"csi": 3}
COMPUTE = {"csi": 4}
MDTS_OF_8_KIB = bytes(77) + b"\x01" + bytes(4096 - 78)


def memory(*answers: object) -> tuple[MemoryNamespace, RecordingTransport]:
    transport = RecordingTransport(answers)  # type: ignore[arg-type]  # test's shorthand
    return MemoryNamespace(Device(transport), 2), transport


def compute(*answers: object) -> tuple[ComputeNamespace, RecordingTransport]:
    transport = RecordingTransport(answers)  # type: ignore[arg-type]  # test's shorthand
    return ComputeNamespace(Device(transport), 3), transport


def limits(maxmemrs: int = 4, maxmemr: int = 2, lpg: int = 3) -> bytes:
    return struct.pack("<HHHBxQB", 8, maxmemrs, 12, maxmemr, 1, lpg).ljust(4096, b"\0")


def range_descriptor(nsid: int, length: int, start: int) -> bytes:
    return struct.pack("<IIQ", nsid, length, start) + bytes(16)


def test_namespaces_are_found_by_their_command_set() -> None:
    transport = RecordingTransport([data(struct.pack("<I", 5)), data(struct.pack("<II", 6, 9))])
    device = Device(transport)
    assert device.memory_namespace().nsid == 5
    assert device.compute_namespace(9).nsid == 9
    assert transport.requests == [
        Request(ADMIN, 0x06, 0, (0x07, 0x0300_0000, 0, 0, 0, 0), None, 4096),
        Request(ADMIN, 0x06, 0, (0x07, 0x0400_0000, 0, 0, 0, 0), None, 4096),
    ]
    with pytest.raises(DeviceNotFound, match="no memory namespace 7"):
        device.memory_namespace(7)


def test_memory_is_read_and_written_in_pieces() -> None:
    content = bytes(range(256)) * 48
    opened, transport = memory(data(MDTS_OF_8_KIB), data(content[:8192]), data(content[8192:]))
    assert opened.read((1 << 32) + 1, 12285) == content[1:12286]
    opened.write(8192, content)
    low, high = 0x0000_2000, 0x0000_4000
    assert transport.requests[1:] == [
        Request(IO, 0x02, 2, (0, 1, 8192, 0, 0, 0), None, 8192, **MEMORY),
        Request(IO, 0x02, 2, (8192, 1, 4096, 0, 0, 0), None, 4096, **MEMORY),
        Request(IO, 0x05, 2, (low, 0, 8192, 0, 0, 0), content[:8192], **MEMORY),
        Request(IO, 0x05, 2, (high, 0, 4096, 0, 0, 0), content[8192:], **MEMORY),
    ]


def test_memory_is_filled_and_copied_by_the_drive() -> None:
    namespace = struct.pack("<QQQ", 9, 9, 9) + bytes(106) + bytes([9, 0])
    opened, transport = memory(Completion(0), data(namespace), data(MDTS_OF_8_KIB))
    opened.fill(4, 8)
    assert opened.copy(1 << 33, [Blocks(1, 7, 4), Bytes(6, 16, 32)]) == 4 * 512 + 32
    blocks = struct.pack("<I4xQH14x", 1, 7, 3)
    other = struct.pack("<I4xQI12x", 6, 16, 32)
    assert [one for one in transport.requests if not one.admin] == [
        Request(IO, 0x04, 2, (4, 0, 8, 0, 0, 0), None, 0, **MEMORY),
        Request(IO, 0x01, 2, (0, 2, 0x200, 0, 0, 0), blocks, 0, 2048, 0, **MEMORY),
        Request(IO, 0x01, 2, (2048, 2, 0x400, 0, 0, 0), other, 0, 32, 0, **MEMORY),
    ]


def test_the_drive_moves_whole_dwords() -> None:
    opened, transport = memory()
    for start, length in ((2, 4), (4, 2)):
        with pytest.raises(InvalidRequest, match="multiples of 4"):
            opened.write(start, bytes(length))
        with pytest.raises(InvalidRequest, match="multiples of 4"):
            opened.fill(start, length)
    assert transport.requests == []


def test_a_program_is_loaded_in_pieces_and_activated() -> None:
    opened, transport = compute(data(limits()), data(MDTS_OF_8_KIB))
    image = bytes(range(250)) * 40
    opened.load(5, image, identifier=0x1122_3344_5566_7788)
    padded, size, pid = image + bytes(-len(image) % 8), 10_000, (0x5566_7788, 0x1122_3344)
    assert transport.requests[2:] == [
        Request(ADMIN, 0x85, 3, (0x02C0_0005, size, *pid, 8192, 0), padded[:8192]),
        Request(ADMIN, 0x85, 3, (0x02C0_0005, size, *pid, 1808, 8192), padded[8192:]),
        Request(ADMIN, 0x88, 3, (0x0001_0005, 0, 0, 0, 0, 0)),
    ]
    transport.requests.clear()
    opened.deactivate(5)
    opened.unload(5)
    assert transport.requests == [
        Request(ADMIN, 0x88, 3, (0x0000_0005, 0, 0, 0, 0, 0)),
        Request(ADMIN, 0x85, 3, (0x0100_0005, 0, 0, 0, 0, 0)),
    ]


def test_programs_are_listed_by_their_index() -> None:
    built_in, empty = bytes([0b110, 0]) + bytes(62), bytes(64)
    loaded = bytes([0b1001, 0xC0]) + bytes(6) + struct.pack("<Q", 77) + bytes(48)
    page = struct.pack("<I", 3) + bytes(60) + built_in + empty + loaded
    opened, transport = compute(data(MDTS_OF_8_KIB))
    assert opened.device.max_transfer == 8192
    transport.answers = [data(page), data(page)]
    assert opened.programs() == [
        Program(0, built_in=True, active=True, type=0, identifier=0),
        Program(2, built_in=False, active=False, type=0xC0, identifier=77),
    ]
    last = transport.requests[-1]
    assert (last.nsid, last.cdws[0], last.cdws[4]) == (3, 63 << 16 | 0x82, 4 << 24)


def test_range_sets_are_created_listed_and_deleted() -> None:
    ranges = [Bytes(2, 4096, 8192), Bytes(5, 0, 4096)]
    descriptors = range_descriptor(2, 8192, 4096) + range_descriptor(5, 4096, 0)
    opened, transport = compute(Completion(0xABCD_0007))
    assert opened.create_ranges(ranges) == 7
    opened.delete_ranges(7)
    assert transport.requests == [
        Request(ADMIN, 0x89, 3, (0, 2, 0, 0, 0, 0), descriptors),
        Request(ADMIN, 0x89, 3, (0x0007_0001, 0, 0, 0, 0, 0)),
    ]
    page = struct.pack("<I", 1) + bytes(28) + struct.pack("<HB", 7, 2) + bytes(29) + descriptors
    transport.answers = [data(limits()), data(MDTS_OF_8_KIB), data(page)]
    assert opened.range_sets() == {7: ranges}
    assert transport.requests[-1].nsid == 3 and transport.requests[-1].cdws[4] == 4 << 24


def test_execute_carries_ranges_parameters_and_data() -> None:
    opened, transport = compute(Completion(0x1234_5678_9ABC_DEF0), Completion(2))
    assert opened.execute(9, 4, parameters=(1 << 40 | 2, 3), timeout=5) == 0x1234_5678_9ABC_DEF0
    assert opened.execute(9, [Bytes(2, 0, 4096)], data=b"grep") == 2
    inline = range_descriptor(2, 4096, 0) + b"grep"
    assert transport.requests == [
        Request(IO, 0x01, 3, (2, 256, 3, 0, 0, 0), None, 0, 4 << 16 | 9, 0, 0, **COMPUTE),
        Request(IO, 0x01, 3, (0, 0, 0, 0, 0, 0), inline, 0, 9, 1, 36, **COMPUTE),
    ]
    assert transport.timeouts[0] == 5


def test_linux_gets_no_length_of_data_and_no_data() -> None:
    opened, transport = compute()
    transport.carries_cdw4 = False
    with pytest.raises(InvalidRequest, match="put it into a memory range"):
        opened.execute(0, data=b"x")
    opened.execute(0, [Bytes(2, 0, 4096)])
    assert transport.requests == [
        Request(
            IO, 0x01, 3, (0, 0, 0, 0, 0, 0), range_descriptor(2, 4096, 0), 0, 0, 1, 0, **COMPUTE
        )
    ]

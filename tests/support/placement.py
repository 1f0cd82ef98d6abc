"""What a host asks and is told of flexible data placement, by the bytes."""

from __future__ import annotations

import struct

from potash_firmware.rpu.placement import PlacementSettings
from potash_firmware.rpu.settings import RpuSettings
from support.nvme_host import DATA, PAGE, Cqe, Host, Queue

WRITE, READ, WRITE_UNCORRECTABLE, COMPARE, WRITE_ZEROES = 1, 2, 4, 5, 8
VERIFY, COPY, ZONE_APPEND = 0xC, 0x19, 0x7D
MANAGEMENT_RECEIVE, MANAGEMENT_SEND = 0x12, 0x1D
GET_LOG, IDENTIFY, SET_FEATURES, GET_FEATURES, MANAGE = 2, 6, 9, 0xA, 0xD
DIRECTIVE_SEND, DIRECTIVE_RECEIVE = 0x19, 0x1A
CONFIGURATIONS, USAGE, STATISTICS, EVENTS, HANDLES = 0x20, 0x21, 0x22, 0x23, 0xCE
PLACEMENT, PLACEMENT_EVENTS = 0x1D, 0x1E
NOT_FULLY_WRITTEN, INVALID_IDENTIFIER = 0, 3
INVALID_OPCODE, INVALID_FIELD, SEQUENCE_ERROR, INVALID_LIST = 0x01, 0x02, 0x0C, 0x2A
INVALID_LOG_PAGE = 0x109
UNIT = 1 << 20
SETTINGS = RpuSettings(placement=PlacementSettings(3, UNIT))


def write(host: Host, queue: Queue, lba: int, identifier: int | None = None, count: int = 1) -> Cqe:
    cdw12, cdw13 = count - 1, 0
    if identifier is not None:
        cdw12, cdw13 = cdw12 | 2 << 20, identifier << 16
    prp2 = DATA + PAGE if count == 2 else 0
    return host.command(queue, WRITE, nsid=1, prp2=prp2, cdws=(lba, 0, cdw12, cdw13))


def status(host: Host, queue: Queue, nsid: int = 1) -> list[tuple[int, int, int, int]]:
    """Placement identifier, handle, time and blocks of each descriptor."""
    answer = host.command(queue, MANAGEMENT_RECEIVE, nsid=nsid, cdws=(1, 127))
    assert answer.status == 0
    data = host.data(512)
    (count,) = struct.unpack_from("<H", data, 14)
    return [struct.unpack_from("<HHIQ", data, 16 + 32 * one) for one in range(count)]


def update(host: Host, queue: Queue, *identifiers: int) -> int:
    host.put(struct.pack(f"<{len(identifiers)}H", *identifiers))
    mos = len(identifiers) - 1
    return host.command(queue, MANAGEMENT_SEND, nsid=1, cdws=(mos << 16 | 1,)).status


def log(host: Host, lid: int, size: int, group: int = 1, lsp: int = 0) -> bytes:
    numd = size // 4 - 1
    cdws = (numd << 16 | lsp << 8 | lid, group << 16)
    assert host.command(host.admin, GET_LOG, cdws=cdws).status == 0
    return host.data(size)


def statistics(host: Host) -> tuple[int, int, int]:
    page = log(host, STATISTICS, 64)
    return tuple(int.from_bytes(page[at : at + 16], "little") for at in (0, 16, 32))  # type: ignore[return-value]  # three


def enable(host: Host, identifier: int, *events: int, on: bool = True) -> int:
    host.put(bytes(events))
    cdws = (PLACEMENT_EVENTS, len(events) << 16 | identifier, int(on))
    return host.command(host.admin, SET_FEATURES, nsid=1, cdws=cdws).status


def events(host: Host) -> list[tuple[int, int, int, int, int]]:
    """Type, flags, placement identifier, namespace and handle of each of the host's."""
    page = log(host, EVENTS, 4096, lsp=1)
    (count,) = struct.unpack_from("<I", page)
    found = []
    for at in range(64, 64 + 64 * count, 64):
        kind, flags, identifier, _, nsid = struct.unpack_from("<BBHQI", page, at)
        found.append((kind, flags, identifier, nsid, page[at + 34]))
    return found

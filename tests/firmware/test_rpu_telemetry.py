"""Telemetry: captures by the host and by the firmware, and what holds them still."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from potash_device.media.file import FileMedia
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_firmware.rpu.transfer import Transfer
from support.nvme_host import DATA, Host

GET_LOG, IDENTIFY, EVENT_REQUEST, SET_FEATURES = 0x02, 0x06, 0x0C, 0x09
HOST_LOG, CONTROLLER_LOG = 7, 8
RETAIN = 1 << 15
CREATE = 1 << 8

Start = Callable[[], Host]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start() -> Host:
        return Host(sidecar=FileMedia.open(tmp_path / "sidecar", SIDECAR_SIZE))

    return start


def read(host: Host, lid: int, size: int, offset: int = 0, flags: int = RETAIN) -> bytes:
    assert status(host, lid, size, offset, flags) == 0
    return host.data(size)


def status(host: Host, lid: int, size: int, offset: int = 0, flags: int = RETAIN) -> int:
    cdws = ((size // 4 - 1) << 16 | flags | lid, 0, offset)
    return host.command(host.admin, GET_LOG, cdws=cdws).status


def areas(host: Host, lid: int) -> list[dict[str, object]]:
    """What is in each area alone, read block by block as the header says."""
    last_blocks = struct.unpack_from("<HHH", read(host, lid, 512), 8)
    found, before = [], 0
    for last in last_blocks:
        content = b"".join(
            read(host, lid, 512, 512 * block) for block in range(before + 1, last + 1)
        )
        found.append(json.loads(content.rstrip(b"\0")))
        before = last
    assert status(host, lid, 512, 512 * (before + 2)) == 0x002
    return found


def break_something(host: Host, cid: int = 1) -> None:
    """A handler with a mistake in it: Internal Error for the host, and a capture."""
    with patch.object(Transfer, "send", side_effect=ZeroDivisionError("a mistake")):
        assert host.command(host.admin, IDENTIFY, cid, cdws=(1,)).status == 0x006


def test_without_a_capture_there_is_only_a_header(host: Host) -> None:
    for lid in (HOST_LOG, CONTROLLER_LOG):
        header = read(host, lid, 512)
        assert header[0] == lid
        assert header[1:] == bytes(511)


def test_a_host_captures_what_the_device_is_and_was_asked(host: Host) -> None:
    queue = host.create_io_queue()
    assert host.command(queue, 0x02, 0x77, nsid=1, cdws=(1 << 30,)).status == 0x080
    header = read(host, HOST_LOG, 512, flags=RETAIN | CREATE)
    assert (header[0], header[381], header[382]) == (7, 1, 0)
    configuration, state, recent = areas(host, HOST_LOG)
    assert configuration["identity"]["serial"] == "POTASH0001"  # type: ignore[index]
    assert configuration["namespaces"] == {"1": {"blocks": 256, "block_size": 4096}}
    assert state["health"]["errors"] == 1  # type: ignore[index]
    assert [one["qid"] for one in state["submission_queues"]] == [0, 1]  # type: ignore[attr-defined]
    notes = [
        (one["point"], one["what"][0])
        for one in recent["recent"]  # type: ignore[attr-defined]
        if (one["qid"], one["cid"]) == (1, 0x77)
    ]
    assert notes == [("rpu.fetch", 0x02), ("rpu.complete", 0x080)]


def test_a_capture_stays_as_it_is_until_the_next_one(host: Host) -> None:
    first = read(host, HOST_LOG, 2048, flags=CREATE)
    for _ in range(5):
        host.command(host.admin, IDENTIFY, cdws=(1,))
    assert read(host, HOST_LOG, 2048) == first
    second = read(host, HOST_LOG, 2048, flags=CREATE)
    assert second[381] == 2
    assert second != first


@pytest.mark.parametrize(("size", "offset"), [(508, 0), (516, 0), (512, 4), (512, 256)])
def test_telemetry_comes_in_blocks(host: Host, size: int, offset: int) -> None:
    for lid in (HOST_LOG, CONTROLLER_LOG):
        assert status(host, lid, size, offset, RETAIN | CREATE) == 0x002
    assert read(host, HOST_LOG, 512)[381] == 0  # nothing was captured for it


def test_a_mistake_in_the_firmware_is_captured_and_told_once(host: Host) -> None:
    assert host.command(host.admin, SET_FEATURES, cdws=(0x0B, 1 << 10)).status == 0
    for cid in (0x30, 0x31, 0x32):
        host.place(host.admin, EVENT_REQUEST, cid)
    host.ring(host.admin)
    host.service()
    with patch.object(Transfer, "send", side_effect=ZeroDivisionError("a mistake")):
        host.place(host.admin, IDENTIFY, 1, cdws=(1,))
        host.place(host.admin, IDENTIFY, 2, cdws=(1,))
        host.ring(host.admin)
        host.service()
    answers = {one.cid: (one.status, one.dw0) for one in host.reap(host.admin)}
    assert answers == {
        1: (6, 0),
        2: (6, 0),
        0x30: (0, 8 << 16 | 2 << 8 | 2),  # the telemetry log has changed
        0x31: (0, 1 << 16 | 4 << 8 | 0),  # a transient internal error
    }
    header = read(host, CONTROLLER_LOG, 512)
    assert (header[0], header[382], header[383]) == (8, 1, 1)
    assert header[384:].rstrip(b"\0") == b"opcode 0x06: ZeroDivisionError('a mistake')"
    assert read(host, HOST_LOG, 512)[382:384] == b"\x01\x01"
    read(host, CONTROLLER_LOG, 512, flags=0)
    assert read(host, CONTROLLER_LOG, 512)[382:384] == b"\x00\x01"
    with patch.object(Transfer, "send", side_effect=ZeroDivisionError("a mistake")):
        host.place(host.admin, IDENTIFY, 3, cdws=(1,))
        host.ring(host.admin)
        host.service()
    assert {one.cid for one in host.reap(host.admin)} == {3, 0x32}
    assert read(host, CONTROLLER_LOG, 512)[382:384] == b"\x01\x02"


def test_an_unread_capture_outlives_a_power_cycle_and_generations_go_on(start: Start) -> None:
    with start() as host:
        host.enable()
        read(host, HOST_LOG, 512, flags=CREATE)
        break_something(host)
        captured = areas(host, CONTROLLER_LOG)
        host.now += 2
        host.service()
        host.executor.run_all()
    with start() as host:
        host.enable()
        assert areas(host, CONTROLLER_LOG) == captured
        assert read(host, CONTROLLER_LOG, 512)[382:384] == b"\x01\x01"
        header = read(host, HOST_LOG, 512, flags=CREATE)
        assert header[381:384] == b"\x02\x01\x01"


@pytest.mark.parametrize(
    "section",
    [
        17,
        {"host": -1, "controller": "x", "capture": []},
        {"host": 1, "controller": 2, "capture": ["AAAA", [1, 1, 1], "why"]},
        # 1 GiB of zeroes would be unpacked from this, were there no limit.
        {"host": 1, "controller": 2, "capture": ["eJztwTEBAAAAwqD1T20ND6AAAAAAAAAA", [1, 2, 3], "why"]},
    ],
)  # fmt: skip
def test_a_sidecar_with_nonsense_is_one_without_telemetry(section: object) -> None:
    with Host() as host:
        host.sidecar.put("telemetry", section)
        host.rpu.controller.telemetry.restore()
        host.enable()
        assert read(host, CONTROLLER_LOG, 512)[382] == 0


def test_many_commands_fit_in_bounded_telemetry(host: Host) -> None:
    for _ in range(300):
        host.command(host.admin, IDENTIFY, cdws=(1,))
    header = read(host, HOST_LOG, 512, flags=CREATE)
    area1, area2, area3 = struct.unpack_from("<HHH", header, 8)
    assert 0 < area1 < area2 < area3 <= 128
    assert host.data(4, DATA) == b"\x07\0\0\0"

"""Log pages of the Open Compute Project: extended SMART, and the latency monitor."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from nvme_spec.commands import GetLogPage
from nvme_spec.identify.structures import Cns
from nvme_spec.ocp import (
    LATENCY_MONITOR_FEATURE,
    NO_TIME,
    LatencyMonitorLog,
    LatencyMonitorSettings,
    OcpLogPage,
    SmartExtended,
)
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from potash.sdk import CommandFailed, PotashError
from potash.sdk.commands import encoded
from potash.testing.booting import BootedDevice, booted_device

PAGE = 4096
OPERATIONS = {IoOpcode.DATASET_MANAGEMENT: 1, IoOpcode.WRITE: 2, IoOpcode.READ: 3}
MODELLED: dict[str, Any] = {"time": "modelled", "ocp": True}


def page(device: BootedDevice, lid: int, uuid_index: int = 1) -> bytes:
    dwords = encoded(GetLogPage(lid, 127, uuid_index=uuid_index))
    return device.admin(AdminOpcode.GET_LOG_PAGE, data_in_length=512, **dwords).data


def monitor(device: BootedDevice, **fields: Any) -> None:
    settings = LatencyMonitorSettings(thresholds=(0, 1, 3, 7), **fields)
    device.admin(AdminOpcode.SET_FEATURES, cdw10=LATENCY_MONITOR_FEATURE, data_out=bytes(settings))


def test_a_host_selects_the_pages_by_the_uuid() -> None:
    with booted_device(size="64M", **MODELLED) as device:
        data = device.identify_data(Cns.UUID_LIST)
        assert UUID(bytes=data[48:64]) == UUID("c194d55b-e094-4794-a21d-29998f56be6f")
        assert not any(data[64:])
        assert device.identify().ctratt & 1 << 9
        assert SmartExtended(page(device, OcpLogPage.SMART_EXTENDED)).guid == SmartExtended.GUID
        assert page(device, OcpLogPage.SMART_EXTENDED, 0)[496:] != SmartExtended.GUID
        for uuid_index in (0, 1):
            found = LatencyMonitorLog(page(device, OcpLogPage.LATENCY_MONITOR, uuid_index))
            assert (found.guid, found.status) == (LatencyMonitorLog.GUID, 0)
        # Pages of the standard are the same by any index.
        assert page(device, 0x03) == page(device, 0x03, 0)
        for lid, uuid_index in ((OcpLogPage.SMART_EXTENDED, 2), (0xC2, 1)):
            with pytest.raises(CommandFailed):
                page(device, lid, uuid_index)


def test_other_drives_have_none_of_it() -> None:
    with booted_device(size="64M", time="modelled") as device:
        for uuid_index in (0, 1):
            with pytest.raises(CommandFailed):
                page(device, OcpLogPage.LATENCY_MONITOR, uuid_index)
        with pytest.raises(CommandFailed):
            monitor(device)
        with pytest.raises(CommandFailed):
            device.identify_data(Cns.UUID_LIST)
    with pytest.raises(PotashError, match="--ocp is for modelled time; add --time modelled"):
        booted_device(size="64M", ocp=True).__enter__()


def test_bytes_of_the_flash_are_counted_over_its_life(tmp_path: Path) -> None:
    options: dict[str, Any] = {"media": str(tmp_path / "drive"), "size": "64M", **MODELLED}
    written = 0
    for _ in range(2):
        with booted_device(**options) as device:
            device.write(0, bytes(64 * PAGE))
            device.flush()
            found = SmartExtended(page(device, OcpLogPage.SMART_EXTENDED))
            programmed = 4096 * (device.timing_log().host + device.timing_log().padding)
            written += programmed
            assert found.physical_media_units_written == written >= 64 * PAGE
            assert found.total_nuse == 64 << 20 >> 12
            assert found.bad_user_blocks == 0 and found.bad_user_blocks_normalized == 100


def test_slow_commands_are_counted_by_their_modelled_durations() -> None:
    with booted_device(size="64M", time_factor=100, **MODELLED) as device:
        monitor(device, enable=1, configuration=0b000_111_000_000)
        before = device.traffic()
        device.write(0, bytes(128 * PAGE))
        device.flush()
        pending = [
            device.submit(IoOpcode.READ, cdw10=at, cdw12=7, data_in_length=8 * PAGE)
            for at in range(0, 128, 8)
        ]
        for command in pending:
            command.result()
        ranges = struct.pack("<IIQ", 0, 8, 0)
        device.io(IoOpcode.DATASET_MANAGEMENT, cdw10=0, cdw11=4, data_out=ranges)
        completions = [
            each for each in device.traffic(before).completions if each.opcode in OPERATIONS
        ]
        expected, largest = Counter[int](), Counter[int]()
        for each in completions:
            milliseconds = each.modelled // 10**6
            if milliseconds >= 5:
                bucket = sum(milliseconds >= bound for bound in (10, 20, 40))
                expected[4 * bucket + OPERATIONS[IoOpcode(each.opcode)]] += 1
                place = 3 * (3 - bucket) + OPERATIONS[IoOpcode(each.opcode)] - 1
                # The third bucket keeps the largest latency, the others keep the first one.
                if bucket == 2:
                    largest[place] = max(largest[place], milliseconds)
                else:
                    largest.setdefault(place, milliseconds)
        found = LatencyMonitorLog(page(device, OcpLogPage.LATENCY_MONITOR))
        assert found.status == 1 and sum(expected.values()) > 10
        assert found.counters == tuple(expected[at] for at in range(16))
        assert found.latencies == tuple(largest[at] for at in range(12))
        assert [time == NO_TIME for time in found.times] == [not largest[at] for at in range(12)]
        with pytest.raises(CommandFailed):
            device.admin(
                AdminOpcode.SET_FEATURES,
                cdw10=LATENCY_MONITOR_FEATURE,
                data_out=bytes(LatencyMonitorSettings(thresholds=(1, 0, 2, 3))),
            )
        monitor(device)
        assert not any(LatencyMonitorLog(page(device, OcpLogPage.LATENCY_MONITOR)).counters)

"""What nvme-cli shows of the log pages in a guest, plain and as JSON."""

import json
import struct
from typing import Any

import pytest

from potash import __version__
from potash.vm.guest import Guest

DEVICE = "/dev/nvme0"


def nvme(guest: Guest, *arguments: str) -> str:
    done = guest.capture(["nvme", *arguments])
    assert done.code == 0, (arguments, done)
    return done.stdout.decode()


def as_json(guest: Guest, *arguments: str) -> Any:
    return json.loads(nvme(guest, *arguments, "-o", "json"))


def raw(guest: Guest, script: str) -> bytes:
    done = guest.capture(["sh", "-c", script])
    assert done.code == 0, (script, done)
    return done.stdout


def test_a_failed_read_is_in_the_error_log_with_its_block(linux: Guest) -> None:
    before = as_json(linux, "smart-log", DEVICE)["num_err_log_entries"]
    read = ["nvme", "read", "/dev/nvme0n1", "--start-block=0xffffffffff", "--data-size=4096"]
    assert linux.capture(read).code != 0
    entry = as_json(linux, "error-log", DEVICE, "-e", "1")["errors"][0]
    assert (entry["status_field"] & 0x7FF, entry["lba"], entry["nsid"]) == (0x080, (1 << 40) - 1, 1)
    assert (entry["sqid"] > 0, entry["parm_error_location"]) == (True, 40)
    assert as_json(linux, "smart-log", DEVICE)["num_err_log_entries"] == before + 1


def test_health_counts_what_the_guest_reads_and_writes(linux: Guest) -> None:
    before = as_json(linux, "smart-log", DEVICE)
    raw(linux, "dd if=/dev/zero of=/dev/nvme0n1 bs=1M count=4 oflag=direct 2>/dev/null")
    raw(linux, "dd if=/dev/nvme0n1 of=/dev/null bs=1M count=2 iflag=direct 2>/dev/null")
    after = as_json(linux, "smart-log", DEVICE)
    # In units of 1000 blocks of 512 bytes, rounded up.
    assert 7 <= after["data_units_written"] - before["data_units_written"] <= 10
    assert 3 <= after["data_units_read"] - before["data_units_read"] <= 6
    assert after["host_write_commands"] > before["host_write_commands"]
    assert (after["power_cycles"], after["avail_spare"]) == (1, 100)
    assert after["media_errors"] == before["media_errors"]
    assert "temperature" in nvme(linux, "smart-log", DEVICE)


def test_firmware_slots_and_changed_namespaces(linux: Guest) -> None:
    assert as_json(linux, "fw-log", DEVICE)["nvme0"]["Active Firmware Slot (afi)"] == 1
    assert f"({__version__}...)" in nvme(linux, "fw-log", DEVICE)
    assert as_json(linux, "changed-ns-list-log", DEVICE)["nvme0"] == {}
    assert "no ns changed" in nvme(linux, "changed-ns-list-log", DEVICE)


def test_effects_are_told(linux: Guest) -> None:
    # Without --csi nvme-cli wants the registers, which this kernel gives to no program.
    (said,) = as_json(linux, "effects-log", DEVICE, "--csi=0")
    assert said["admin_cmd_set"]["ACS_6 (Identify)"] == 1 << 21 | 1
    assert said["io_cmd_set"]["IOCS_1 (Write)"] == 3
    assert "IOCS2    [Read" in nvme(linux, "effects-log", DEVICE, "--csi=0", "-H")
    features = as_json(linux, "fid-support-effects-log", DEVICE)["fid_support"]
    assert {"fid_6": 1 << 21 | 1} in features


def test_tools_that_open_the_namespace_read_logs_of_the_controller(linux: Guest) -> None:
    for lid, size in ((0x02, 512), (0x06, 564), (0x81, 512)):
        page = f"nvme get-log /dev/nvme0n1 --namespace-id=1 --log-id={lid} --log-len={size} -b"
        assert len(raw(linux, page)) == size


def test_supported_log_pages_are_named(linux: Guest) -> None:
    plain = nvme(linux, "supported-log-pages", DEVICE)
    for name in ("Error Information", "Telemetry Host-Initiated", "Persistent Event Log"):
        assert name in plain
    said = as_json(linux, "supported-log-pages", DEVICE)["supported_logs"]
    assert {"lid_0xd ": 0x10001} in said


def test_telemetry_is_created_and_read_to_its_end(linux: Guest) -> None:
    file = "/tmp/telemetry"
    script = f"nvme telemetry-log {DEVICE} --output-file={file} --host-generate=1 && cat {file}"
    said = raw(linux, script)
    area1, area2, area3 = struct.unpack_from("<HHH", said, 8)
    assert said[0] == 7
    assert len(said) == 512 * (1 + area3)
    for first, last in ((1, area1), (area1 + 1, area2), (area2 + 1, area3)):
        json.loads(said[512 * first : 512 * (last + 1)].rstrip(b"\0"))
    configuration = json.loads(said[512 : 512 * (area1 + 1)].rstrip(b"\0"))
    assert configuration["identity"]["model"] == "Potash computational storage"


def test_the_persistent_event_log_is_established_read_and_released(linux: Guest) -> None:
    log = ["persistent-event-log", DEVICE]
    assert linux.capture(["nvme", *log, "--action=0"]).code != 0
    assert "Establishing" in nvme(linux, *log, "--action=1")
    said = nvme(linux, *log, "--action=0")
    # It leaves out the event that ends where the log does, and so the power-on as long as there is
    # no reset.
    assert "Event Type: SMART/Health Log Snapshot Event(0x1)" in said
    assert "Supported Events Bitmap" in said
    # Its JSON ends nvme-cli 2.13 itself with SIGSEGV at the first reset: it swaps two lengths.
    binary = raw(linux, f"nvme {' '.join(log)} --action=0 -o binary")
    assert binary[0] == 0x0D
    assert struct.unpack_from("<Q", binary, 8) == (len(binary),)
    types, at = set(), 512
    while at < len(binary):
        types.add(binary[at])
        at += 3 + binary[at + 2] + int.from_bytes(binary[at + 22 : at + 24], "little")
    assert at == len(binary)
    assert types >= {1, 4}
    assert "Releasing" in nvme(linux, *log, "--action=2")
    assert linux.capture(["nvme", *log, "--action=0"]).code != 0


def test_lba_status_names_blocks_that_cannot_be_read(linux: Guest) -> None:
    before = as_json(linux, "lba-status-log", DEVICE)
    assert before["nlslne"] == 0
    where = ["/dev/nvme0n1", "--start-block=77", "--block-count=2"]
    nvme(linux, "write-uncor", *where)
    said = as_json(linux, "lba-status-log", DEVICE)
    assert (said["nlslne"], said["estulb"], said["lsgc"]) == (1, 3, before["lsgc"] + 1)
    (element,) = said["ns_elements"]
    assert element["neid"] == 1
    assert "Estimate of Unrecoverable Logical Blocks: 3" in nvme(linux, "lba-status-log", DEVICE)
    nvme(linux, "write-zeroes", *where)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--log-id=0x7f", "--log-len=64"], "0x4109"),
        (["--log-id=2", "--log-len=512", "--lpo=2"], "0x4002"),
        (["--log-id=2", "--log-len=512", "--lpo=1024"], "0x4002"),
        (["--log-id=2", "--log-len=512", "--namespace-id=2"], "0x4002"),
        (["--log-id=2", "--log-len=512", "--uuid-index=3"], "0x4002"),
        (["--log-id=2", "--log-len=512", "--ot"], "0x4002"),
    ],
)
def test_what_cannot_be_asked_has_its_status(
    linux: Guest, arguments: list[str], status: str
) -> None:
    before = as_json(linux, "smart-log", DEVICE)["num_err_log_entries"]
    done = linux.capture(["nvme", "get-log", DEVICE, *arguments])
    assert done.code != 0
    assert status in done.stderr.decode()
    assert as_json(linux, "smart-log", DEVICE)["num_err_log_entries"] == before

"""nvme-cli's verbs for Identify, features and events, in a guest that these tests share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from potash.vm.guest import Guest
from support.vm import said

SIZE = 64 << 20
DRIVE, NAMESPACE = "/dev/nvme0", "/dev/nvme0n1"


def nvme(guest: Guest, *arguments: str) -> Any:
    """nvme-cli's answer as it gives it to programs."""
    return json.loads(said(guest, "nvme", *arguments, "-o", "json"))


def refused(guest: Guest, *arguments: str) -> str:
    done = guest.capture(["nvme", *arguments])
    assert done.code == 1, (arguments, done)
    return (done.stdout + done.stderr).decode()


def feature(guest: Guest, fid: int, *options: str) -> dict[str, Any]:
    """A feature's fields by their names."""
    answer = nvme(guest, "get-feature", DRIVE, "-f", hex(fid), *options)
    (fields,) = answer[f"Feature: {fid:#04x}"]
    assert isinstance(fields, dict)
    return fields


def test_the_identify_verbs_agree(linux: Guest) -> None:
    controller = nvme(linux, "id-ctrl", DRIVE)
    assert (controller["ver"], controller["cntrltype"], controller["kas"]) == (0x20000, 1, 1)
    assert (controller["ctratt"] & 1, controller["oaes"] >> 9 & 1, controller["hctma"]) == (1, 1, 1)
    assert controller["mntmt"] < controller["wctemp"] < controller["cctemp"] == controller["mxtmt"]
    independent = nvme(linux, "cmdset-ind-id-ns", NAMESPACE)
    assert (independent["nstat"], independent["nsattr"]) == (1, 0)
    assert nvme(linux, "nvm-id-ctrl", DRIVE)["vsl"] >= 0
    assert nvme(linux, "nvm-id-ns", NAMESPACE)["pic"] == 3
    assert "0x1" in said(linux, "nvme", "id-iocs", DRIVE, "-v")
    assert nvme(linux, "list-ns", DRIVE, "--csi=0")["nsid_list"] == [{"nsid": 1}]
    described = nvme(linux, "ns-descs", NAMESPACE)["ns-descs"]
    assert [one["Type"] for one in described] == ["uuid", "csi"]
    assert described[1]["csi"] == "0"


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list-subsys",),
        ("id-ns", NAMESPACE),
        ("list-ns", DRIVE, "--all"),
        ("list-ctrl", DRIVE),
        ("get-lba-status", NAMESPACE, "-n", "1", "-s", "0", "-m", "64", "-a", "17", "-l", "0"),
        ("self-test-log", DRIVE),
        ("sanitize-log", DRIVE),
        ("smart-log", DRIVE),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_verb_answers_programs_too(linux: Guest, arguments: tuple[str, ...]) -> None:
    """Those that other tests here ask in words alone; id-iocs and get-ns-id answer nothing else."""
    assert nvme(linux, *arguments)


def test_a_structure_that_is_not_there_says_so(linux: Guest) -> None:
    for arguments in (("id-nvmset", DRIVE), ("id-uuid", DRIVE), ("id-domain", DRIVE)):
        assert "Invalid" in refused(linux, *arguments)


FIELDS = {
    0x01: ("Arbitration Burst (AB)", "16"),
    0x02: ("Power State (PS)", 0),
    0x04: ("TMPTH kelvin", "343 K"),
    0x06: ("Volatile Write Cache Enable (WCE)", "Enabled"),
    0x0A: ("Disable Normal (DN)", "False"),
    0x0F: ("Keep Alive Timeout (KATO) in milliseconds", 0),
    0x16: ("Advanced Command Retry Enable (ACRE)", "False"),
    0x80: ("Pre-boot Software Load Count (PBSLC)", 0),
}


def test_features_are_shown_by_their_fields(linux: Guest) -> None:
    for fid in (*FIELDS, 0x07, 0x08, 0x09, 0x0B, 0x10, 0x19):
        found = feature(linux, fid)
        if fid in FIELDS:
            name, value = FIELDS[fid]
            assert str(found[name]) == str(value), (hex(fid), found)
    for fid in (0x03, 0x05):
        assert feature(linux, fid, "-n", "1")


def test_what_can_be_done_with_a_feature_is_said(linux: Guest) -> None:
    for fid, words in ((4, ("saveable", "changeable")), (0x81, ("changeable",))):
        answer = said(linux, "nvme", "get-feature", DRIVE, "-f", hex(fid), "-s", "3", "-H")
        assert [word for word in ("saveable", "changeable") if f"is {word}" in answer] == [*words]


def test_features_that_do_not_apply_are_refused(linux: Guest) -> None:
    for fid in (0x0C, 0x0D, 0x11, 0x12, 0x18, 0x1D, 0x82):
        assert "Invalid Field" in refused(linux, "get-feature", DRIVE, "-f", hex(fid))
    assert "Invalid Namespace" in refused(linux, "get-feature", DRIVE, "-f", "0x84")
    set_feature = ("set-feature", DRIVE, "-f")
    assert "(0x410d)" in refused(linux, *set_feature, "2", "-V", "0", "-s")
    on_namespace = ("set-feature", NAMESPACE, "-n", "1", "-f", "6", "-V", "1")
    assert "(0x410f)" in refused(linux, *on_namespace)
    assert "(0x412b)" in refused(linux, *set_feature, "0x19", "-V", "1")


def test_a_structure_that_is_set_is_read_back(linux: Guest) -> None:
    identifier = os.urandom(16)
    extended = ("-f", "0x81", "-l", "16")
    said(linux, "nvme", "set-feature", DRIVE, *extended, "-V", "1", stdin=identifier)
    done = linux.capture(["nvme", "get-feature", DRIVE, *extended, "--cdw11=1", "-b"])
    assert done.stdout == identifier
    assert "(0x4018)" in refused(linux, "get-feature", DRIVE, "-f", "0x81")


def test_the_guest_has_set_its_clock(linux: Guest) -> None:
    """The driver sets the timestamp where Identify Controller says that there is one."""
    told = said(linux, "nvme", "get-feature", DRIVE, "-f", "0xe", "-H")
    assert "initialized with a Timestamp value using a Set Features command" in told


def test_a_threshold_below_the_temperature_is_a_warning(linux: Guest) -> None:
    threshold = ("nvme", "set-feature", DRIVE, "-f", "4", "-V")
    said(linux, *threshold, "0x12c")
    assert nvme(linux, "smart-log", DRIVE)["critical_warning"] == 2
    said(linux, *threshold, "0x157")
    assert nvme(linux, "smart-log", DRIVE)["critical_warning"] == 0


def test_firmware_is_activated_without_a_reset(linux: Guest, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"PTSHFW1\09.9.9\0\0\0".ljust(4096, b"x"))
    linux.copy_in(tmp_path / "image", "/tmp/image")
    said(linux, "nvme", "fw-download", DRIVE, "--fw=/tmp/image")
    said(linux, "nvme", "fw-commit", DRIVE, "--slot=2", "--action=3")
    assert nvme(linux, "id-ctrl", DRIVE)["fr"].strip() == "9.9.9"
    assert said(linux, "cat", "/sys/class/nvme/nvme0/state") == "live\n"
    said(linux, "nvme", "fw-commit", DRIVE, "--slot=1", "--action=2")
    said(linux, "nvme", "reset", DRIVE)
    assert nvme(linux, "id-ctrl", DRIVE)["fr"].strip() != "9.9.9"


def test_keep_alive_and_abort_are_commands(linux: Guest) -> None:
    said(linux, "nvme", "admin-passthru", DRIVE, "--opcode=0x18")
    done = linux.capture(["nvme", "admin-passthru", DRIVE, "--opcode=8", "--cdw10=0xfff00001"])
    assert done.code == 0 and b"1" in (done.stdout + done.stderr).split(b"result:")[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("dir-receive", NAMESPACE, "-n", "1", "-D", "0", "-O", "1", "-l", "4096"),
        ("security-recv", DRIVE, "-p", "0", "-s", "0", "-x", "16"),
        ("virt-mgmt", DRIVE, "-c", "0", "-r", "0", "-n", "0", "-a", "1"),
        ("lockdown", DRIVE, "-o", "6", "-s", "0", "-p", "1"),
    ],
    ids=["directives", "security", "virtualization", "lockdown"],
)
def test_what_the_drive_does_not_do_it_refuses(linux: Guest, arguments: tuple[str, ...]) -> None:
    assert "Invalid Command Opcode" in refused(linux, *arguments)


def test_the_kernel_found_nothing_to_complain_about(linux: Guest) -> None:
    complaints = said(linux, "sh", "-c", "dmesg -r | grep '^<[0-3]>' | grep -i nvme || true")
    assert complaints == ""

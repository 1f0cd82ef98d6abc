"""What nvme-cli sees of a drive with an extension (`support.extended.GUEST`)."""

from __future__ import annotations

import json

from potash.vm.guest import Guest

DEVICE, NAMESPACE = "/dev/nvme0", "/dev/nvme0n1"


def nvme(guest: Guest, *arguments: str, code: int = 0) -> str:
    done = guest.capture(["nvme", *arguments])
    assert done.code == code, (arguments, done)
    return (done.stdout + done.stderr).decode()


def counts(guest: Guest) -> list[int]:
    """The bytes of the log page."""
    page = ("--log-id=0xca", "--log-len=8", "--raw-binary")
    return list(guest.capture(["nvme", "get-log", DEVICE, *page]).stdout)


def test_commands_and_a_log_page(linux: Guest) -> None:
    nvme(linux, "admin-passthru", DEVICE, "--opcode=0xd0")
    assert counts(linux) == [0] * 8
    fields = ("--namespace-id=1", "--cdw12=7")
    assert "0x00000008" in nvme(linux, "io-passthru", NAMESPACE, "--opcode=0xb0", *fields)
    assert counts(linux)[0] == 1
    beyond = ("--namespace-id=1", "--cdw10=0xffffff0")
    said = nvme(linux, "io-passthru", NAMESPACE, "--opcode=0xb0", *beyond, code=1)
    assert "LBA Out of Range" in said
    sent = ["nvme", "admin-passthru", DEVICE, "--opcode=0xd1", "--cdw10=2", "--data-len=8", "-w"]
    assert linux.capture(sent, b"engineer").code == 0
    received = ["--opcode=0xd2", "--cdw10=2", "--data-len=8", "-r", "-b"]
    assert linux.capture(["nvme", "admin-passthru", DEVICE, *received]).stdout == b"reenigne"
    failed = nvme(linux, "admin-passthru", DEVICE, "--opcode=0xd4", code=1)
    assert "Internal Error" in failed


LISTEN = """
from socket import AF_NETLINK, SOCK_DGRAM, socket
from subprocess import run

with socket(AF_NETLINK, SOCK_DGRAM, 15) as events:  # NETLINK_KOBJECT_UEVENT
    events.bind((0, 1))
    events.settimeout(30)
    run(["nvme", "admin-passthru", "/dev/nvme0", "--opcode=0xd8"], check=True)
    while b"NVME_AEN" not in (event := events.recv(65536)):
        pass
print(event.decode().replace(chr(0), " "))
"""


def test_an_event(linux: Guest) -> None:
    done = linux.capture(["python3", "-c", LISTEN])
    assert b"NVME_AEN=0xca0007" in done.stdout, done
    assert len(counts(linux)) == 8


def test_a_feature_and_the_tables(linux: Guest) -> None:
    set_to = ("set-feature", DEVICE, "--feature-id=0xd0")
    nvme(linux, *set_to, "--value=2")
    assert "0x00000002" in nvme(linux, "get-feature", DEVICE, "--feature-id=0xd0")
    assert "Invalid Field" in nvme(linux, *set_to, "--value=3", code=1)
    (log,) = json.loads(nvme(linux, "effects-log", DEVICE, "--csi=0", "-o", "json"))
    assert any(one.startswith("ACS_208 ") for one in log["admin_cmd_set"])
    assert any(one.startswith("IOCS_176 ") for one in log["io_cmd_set"])
    assert "0xca" in nvme(linux, "supported-log-pages", DEVICE, "-v").lower()

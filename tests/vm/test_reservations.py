"""Reservations as nvme-cli and Linux's ioctls see them, and what is left of them after a kill
(docs/reservations.md)."""

import json
from pathlib import Path
from typing import Any

from potash.devices import serving_guest
from potash.options import parse
from potash.vm.drive import device_process
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.docs import blocks
from support.vm import shell

DRIVE = "/dev/nvme0n1"
PERSISTENT = """
import errno, fcntl, struct, sys
name, *numbers = sys.argv[1:]
requests = {
    "register": (0x401870C8, "QQII"),
    "reserve": (0x401070C9, "QII"),
    "release": (0x401070CA, "QII"),
    "preempt": (0x401870CB, "QQII"),
    "preempt-abort": (0x401870CC, "QQII"),
    "clear": (0x401070CD, "QII"),
}
request, layout = requests[name]
with open("/dev/nvme0n1", "r+b", buffering=0) as drive:
    try:
        given = bytearray(struct.pack(layout, *map(int, numbers)))
        print(fcntl.ioctl(drive, request, given))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
"""The ioctls of linux/pr.h."""
WRITE = f"dd if=/dev/zero of={DRIVE} bs=4k count=1 oflag=direct"
READ = f"dd if={DRIVE} of=/dev/null bs=4k count=1 iflag=direct"


def report(guest: Guest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell(guest, f"nvme resv-report {DRIVE} --eds -o json"))
    return found


def become(guest: Guest, number: int) -> None:
    """Have the drive take the guest for another host, after a reset."""
    shell(guest, "nvme reset /dev/nvme0")
    shell(
        guest,
        f"printf '\\00{number}%015d' 0 > /tmp/host;"
        " nvme set-feature /dev/nvme0 -f 0x81 --value=1 -l 16 -d /tmp/host",
    )


def test_hosts_reserve_a_namespace(images: GuestImages, tmp_path: Path) -> None:
    media, socket = tmp_path / "drive", tmp_path / "socket"
    options = ("--media", str(media), "--namespace", "64M")
    with device_process(socket, *options) as process, Guest(images, socket) as guest:
        guest.await_drive(DRIVE)
        the_page(guest)
        shell(guest, f"cat > /tmp/pr.py <<'END'\n{PERSISTENT}\nEND")
        nvme_cli(guest)
        ioctls(guest)
        process.kill()
        process.wait()
    # Linux has had the namespace persist through power loss, as it registered keys.
    with device_process(socket, *options), Guest(images, socket) as guest:
        guest.await_drive(DRIVE)
        become(guest, 1)
        found = report(guest)
        assert (found["rtype"], found["ptpls"], found["regctl"]) == (2, 1, 1)
        assert found["regctlext"][0]["rkey"] == 6 and found["regctlext"][0]["rcsts"] == 1
        assert fails(guest, READ) and fails(guest, WRITE)
        become(guest, 2)
        shell(guest, f"{WRITE}; {READ}; nvme resv-release {DRIVE} --crkey=6 --rrela=1")
        become(guest, 1)
        shell(guest, f"{WRITE}; {READ}")


def test_a_host_has_its_reservation_on_all_paths(images: GuestImages) -> None:
    script = blocks("reservations.md", "sh")[1]
    identify = f"cd /tmp; printf 'host of %07d paths' 2 | head -c 16 > identifier; {script}"
    with (
        serving_guest([parse(["--size", "64M"])], paths=2) as (sockets, _),
        Guest(images, sockets[0], more=sockets[1:]) as guest,
    ):
        guest.await_drive(DRIVE)
        shell(guest, "echo round-robin | tee /sys/class/nvme-subsystem/*/iopolicy")
        shell(guest, identify)
        shell(guest, f"nvme resv-register {DRIVE} --nrkey=1")
        shell(guest, f"nvme resv-acquire {DRIVE} --crkey=1 --rtype=2")
        listed = report(guest)["regctlext"]
        assert [(each["cntlid"], each["rcsts"], each["rkey"]) for each in listed] == [
            (0, 1, 1),
            (1, 1, 1),
        ]
        both = f"for _ in 1 2 3 4; do {WRITE} && {READ} || exit; done"
        shell(guest, both)
        shell(guest, "nvme reset /dev/nvme1")
        assert fails(guest, both)
        shell(guest, f"{identify}; {both}")


def fails(guest: Guest, command: str) -> bool:
    """A command fails because of a reservation."""
    said = shell(guest, f"({command}) 2>&1 || echo failed")
    return "failed" in said and "Invalid exchange" in said


def the_page(guest: Guest) -> None:
    script = blocks("reservations.md", "sh")[0]
    said = shell(guest, f"cd /tmp; set -e\n{script}")
    assert "rtype" in said
    found = report(guest)
    assert (found["gen"], found["rtype"], found["regctl"]) == (2, 0, 0)


def nvme_cli(guest: Guest) -> None:
    """Two hosts, one after another."""
    become(guest, 1)
    shell(guest, f"nvme resv-register {DRIVE} --nrkey=1")
    shell(guest, f"nvme resv-acquire {DRIVE} --crkey=1 --rtype=1")
    shell(guest, f"{WRITE}; {READ}")
    become(guest, 2)
    assert fails(guest, WRITE)
    shell(guest, READ)
    said = shell(guest, f"nvme resv-acquire {DRIVE} --crkey=2 --rtype=1 2>&1 || true")
    assert "onflict" in said
    shell(guest, f"nvme resv-register {DRIVE} --nrkey=2")
    assert fails(guest, WRITE)
    shell(guest, f"nvme resv-acquire {DRIVE} --crkey=2 --prkey=1 --racqa=2 --rtype=2")
    found = report(guest)
    assert (found["rtype"], [each["rkey"] for each in found["regctlext"]]) == (2, [2])
    become(guest, 1)
    assert fails(guest, READ)
    become(guest, 2)
    shell(guest, f"nvme resv-release {DRIVE} --crkey=2 --rrela=1")
    assert report(guest)["regctl"] == 0


def ioctls(guest: Guest) -> None:
    """Linux's interface for cluster software."""

    def pr(*arguments: object) -> str:
        return shell(guest, f"python3 -S /tmp/pr.py {' '.join(map(str, arguments))}").strip()

    become(guest, 1)
    assert pr("register", 0, 5, 0, 0) == "0"
    assert pr("reserve", 5, 1, 0) == "0"
    become(guest, 2)
    assert fails(guest, WRITE)
    assert pr("reserve", 6, 1, 0) != "0"
    assert pr("register", 0, 6, 0, 0) == "0"
    assert fails(guest, WRITE)
    # The driver takes the first key for the host's own, and the second for the preempted one.
    assert pr("preempt-abort", 6, 5, 2, 0) == "0"
    shell(guest, f"{WRITE}; {READ}")

"""Linux's native multipath follows the states of asymmetric namespace access, as docs/ana.md says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.control import change_access
from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages

TIMEOUT = 120
STATE = "cat /sys/class/nvme/nvme0/nvme0c0n1/ana_state"
FIO = (
    "fio --name=paths --filename=/dev/nvme0n1 --direct=1 --ioengine=io_uring --iodepth=8 "
    "--rw=randrw --bs=4k --size=16M --verify=crc32c --verify_backlog=64 --time_based "
    "--runtime={seconds} --output-format=json --output=/tmp/fio.json"
)


@pytest.fixture(scope="module")
def path(images: GuestImages) -> Iterator[tuple[Guest, Path]]:
    """A guest with one path to a drive, and the socket of it."""
    with serving("--size", "64M", "--ana") as socket, Guest(images, socket) as guest:
        yield guest, Path(socket)


def said(guest: Guest, script: str) -> str:
    done = guest.capture(["sh", "-c", script])
    assert done.code == 0, done
    return done.stdout.decode()


def wait_for(guest: Guest, state: str) -> None:
    """Until Linux has read the log page, of which it is notified by an event."""
    until = time.monotonic() + TIMEOUT
    while (found := said(guest, STATE).strip()) != state:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def verified(guest: Guest, socket: Path, seconds: int, states: list[str]) -> None:
    """Change states while fio writes and verifies; the path is optimized at the end."""
    said(guest, f"({FIO.format(seconds=seconds)}; echo $? > /tmp/code) > /dev/null 2>&1 &")
    for number, state in enumerate(states):
        change_access(socket, state, transition=0.02 * (number % 3))
        time.sleep(seconds / len(states) / 2)
        change_access(socket, "optimized", transition=0.02 * (number % 2))
        time.sleep(seconds / len(states) / 2)
    until = time.monotonic() + TIMEOUT
    while not said(guest, "cat /tmp/code 2> /dev/null || true"):
        assert time.monotonic() < until, said(guest, "dmesg | tail")
        time.sleep(0.2)
    assert said(guest, "cat /tmp/code; rm /tmp/code") == "0\n", said(guest, "cat /tmp/fio.json")
    (job,) = json.loads(said(guest, "cat /tmp/fio.json"))["jobs"]
    assert job["error"] == 0
    assert job["write"]["total_ios"] > 0


def test_linux_follows_each_state(path: tuple[Guest, Path]) -> None:
    guest, socket = path
    assert "live" in said(guest, "nvme list-subsys")
    assert said(guest, "cat /sys/class/nvme/nvme0/nvme0c0n1/ana_state") == "optimized\n"
    for state in ("inaccessible", "non-optimized", "inaccessible", "optimized"):
        change_access(socket, state)
        wait_for(guest, state)
        log = json.loads(said(guest, "nvme ana-log /dev/nvme0 -o json"))
        (group,) = next(found for found in log.values() if isinstance(found, list))
        assert group["state"] == state
    change_access(socket, "non-optimized", transition=0.1)
    wait_for(guest, "non-optimized")
    change_access(socket, "optimized")
    wait_for(guest, "optimized")


def test_what_fio_writes_verifies_while_a_path_comes_and_goes(path: tuple[Guest, Path]) -> None:
    verified(*path, 3, ["inaccessible", "non-optimized"] * 3)


@pytest.mark.slow
def test_what_fio_writes_verifies_through_100_changes(path: tuple[Guest, Path]) -> None:
    verified(*path, 60, ["inaccessible", "non-optimized"] * 50)

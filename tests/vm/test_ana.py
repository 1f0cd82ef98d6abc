"""Linux's native multipath follows the states of asymmetric namespace access, as docs/ana.md says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from potash.control import change_access
from potash.devices import serving
from potash.options import parse
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.vm import await_access, shell

LIMIT = 120
FIO = (
    "fio", "--name=paths", "--filename=/dev/nvme0n1", "--direct=1", "--ioengine=io_uring",
    "--iodepth=8", "--rw=randrw", "--bs=4k", "--size=16M", "--verify=crc32c", "--verify_backlog=64",
    "--time_based", "--runtime=10m", "--output-format=json",
)  # fmt: skip
HOLD = 0.1
"""Seconds for which a state lasts: Linux reads of it meanwhile, on an idle machine."""


@pytest.fixture(scope="module")
def paths(images: GuestImages) -> Iterator[tuple[Guest, Sequence[Path]]]:
    """A guest with two paths to a drive, and the sockets of these."""
    with (
        serving(parse(["--size", "64M"]), controllers=2) as drive,
        Guest(images, drive.sockets[0], more=drive.sockets[1:]) as guest,
    ):
        yield guest, drive.sockets


@pytest.fixture(scope="module")
def path(images: GuestImages) -> Iterator[tuple[Guest, Sequence[Path]]]:
    """A guest with one path."""
    with serving(parse(["--size", "64M", "--ana"])) as drive, Guest(images, drive.socket) as guest:
        yield guest, drive.sockets


def written(guest: Guest) -> int:
    """Writes that Linux's multipath device has completed."""
    return int(shell(guest, "cat /sys/block/nvme0n1/stat").split()[4])


def verified(guest: Guest, sockets: Sequence[Path], changes: int) -> None:
    """Change the states of paths in turn while fio writes and verifies; all end optimized."""
    output, before, until = bytearray(), written(guest), time.monotonic() + LIMIT
    load = guest.start(FIO, stdout=output.extend, stderr=output.extend)
    while written(guest) == before:
        assert load.code is None and time.monotonic() < until, output
        time.sleep(0.05)
    for number in range(changes):
        socket = sockets[number % len(sockets)]
        state = ("inaccessible", "non-optimized", "inaccessible")[number % 3]
        change_access(socket, state, transition=0.05 * (number % 4 == 1))
        time.sleep(HOLD)
        if number % 5 == 4:  # no path has access for a moment
            for each in sockets:
                change_access(each, "inaccessible")
            time.sleep(HOLD)
        for each in sockets:
            change_access(each, "optimized", transition=0.05 * (number % 4 == 2))
        time.sleep(HOLD)
        assert load.code is None, output
    load.signal(2)
    load.wait(LIMIT)
    [job] = json.loads(output[output.index(b"{") :])["jobs"]
    assert job["error"] == 0 and job["read"]["total_ios"] > 0, output
    await_access(guest, *("optimized" for _ in sockets))


def test_linux_follows_each_state(paths: tuple[Guest, Sequence[Path]]) -> None:
    guest, sockets = paths
    await_access(guest, "optimized", "optimized")
    for state in ("inaccessible", "non-optimized", "inaccessible", "optimized"):
        change_access(sockets[1], state, transition=0.05)
        await_access(guest, "optimized", state)
        log = json.loads(shell(guest, "nvme ana-log /dev/nvme1 -o json"))
        (group,) = next(found for found in log.values() if isinstance(found, list))
        assert group["state"] == state


@pytest.mark.parametrize("changes", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_data_verify_while_paths_change(paths: tuple[Guest, Sequence[Path]], changes: int) -> None:
    verified(*paths, changes)


@pytest.mark.slow
def test_data_verify_while_the_only_path_changes(path: tuple[Guest, Sequence[Path]]) -> None:
    verified(*path, 100)


def test_the_other_path_is_used_when_one_is_lost_for_good(
    paths: tuple[Guest, Sequence[Path]],
) -> None:
    """The last test of these paths, as nothing follows persistent loss."""
    guest, sockets = paths
    for state in ("inaccessible", "persistent-loss"):
        change_access(sockets[0], state)
        await_access(guest, state, "optimized")
        shell(guest, "dd if=/dev/nvme0n1 of=/dev/null bs=4k count=4 iflag=direct 2> /dev/null")

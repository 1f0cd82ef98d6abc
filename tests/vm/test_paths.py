"""Linux's native multipath over the controllers of a drive, and two guests that share one
(docs/controllers.md)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from potash.devices import serving_guest
from potash.options import parse
from potash.vm.channel import Command
from potash.vm.drive import device_process
from potash.vm.errors import GuestError
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.vm import PotashGuest, identify, shell

DRIVE = "/dev/nvme0n1"
LOAD = (
    "fio", "--name=load", f"--filename={DRIVE}", "--rw=randwrite", "--bs=4k", "--iodepth=8",
    "--direct=1", "--ioengine=io_uring", "--verify=crc32c", "--verify_backlog=64",
    "--time_based", "--runtime=10m", "--size=16M", "--output-format=json",
)  # fmt: skip
RESET = "echo 1 | tee /sys/bus/pci/devices/{function}/nvme/nvme?/reset_controller"
LOSSES = (
    RESET,
    "cd /sys/bus/pci/drivers/nvme; echo {function} > unbind; echo {function} > bind",
    f"echo 1 > /sys/bus/pci/devices/{{function}}/reset; {RESET}",
)
"""Commands that take a path away while it is used, and bring it back."""
PATHS_LIVE = (
    "until [ $(cat /sys/class/nvme/nvme?/state | grep -c live) = 2 ]; do usleep 10000; done"
)


@pytest.mark.usefixtures("images")
def test_two_controllers_are_two_paths_to_one_device(potash_guest: PotashGuest) -> None:
    """And devices have their namespaces' numbers, whichever of them Linux finds first."""
    script = "nvme list-subsys -o json; ls /dev/n[gv]*; cat /sys/block/nvme0n?/nsid"
    options = ("--size", "16M", "--memory-namespace", "1M", "--compute-namespace")
    done = potash_guest("--paths", 2, *options, "--", "sh", "-ec", script)
    assert (done.returncode, done.stderr) == (0, "")
    said, end = json.JSONDecoder().raw_decode(done.stdout)
    assert [(path["Name"], path["State"]) for path in said[0]["Subsystems"][0]["Paths"]] == [
        ("nvme0", "live"),
        ("nvme1", "live"),
    ]
    devices = ("ng0n1", "ng0n2", "ng0n3", "nvme0", "nvme0n1", "nvme1")
    assert done.stdout[end:].split() == [*(f"/dev/{name}" for name in devices), "1", "2", "3"]


@pytest.mark.parametrize("losses", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_data_verify_while_paths_are_lost_and_return(images: GuestImages, losses: int) -> None:
    """Every loss strikes one of two paths, each in turn, in one of three ways."""
    with (
        serving_guest([parse(["--size", "64M"])], paths=2) as (sockets, _),
        Guest(images, sockets[0], more=sockets[1:]) as guest,
    ):
        output = bytearray()
        load = guest.start(LOAD, stdout=output.extend, stderr=output.extend)
        for number in range(losses):
            path = number % 2
            loss = LOSSES[number // 2 % len(LOSSES)]
            shell(guest, loss.format(function=f"0000:0{path + 1}:00.0"))
            shell(guest, f"timeout 60 sh -c '{PATHS_LIVE}'")
            assert load.code is None, output
        finish(load)
        [job] = json.loads(output[output.index(b"{") :])["jobs"]
        assert job["error"] == 0 and job["read"]["total_ios"] > 0, output


def finish(load: Command) -> None:
    """Have fio end as after its time; it verifies what it has written."""
    load.signal(2)
    load.wait(60)


def test_two_guests_share_a_drive(images: GuestImages, tmp_path: Path) -> None:
    """The second guest takes over from the first one, which finds itself fenced when it returns."""
    sockets = [tmp_path / "a", tmp_path / "b"]
    reads = f"dd if={DRIVE} bs=4k count=1 iflag=direct 2>/dev/null | head -c 5"
    writes = f"printf %s | dd of={DRIVE} bs=4k count=1 oflag=direct conv=sync"

    with (
        device_process(sockets[0], "--size", "64M", more=sockets[1:]),
        Guest(images, sockets[1]) as second,
    ):
        identify(second, 2)
        with pytest.raises(GuestError), Guest(images, sockets[0]) as first:
            identify(first, 1)
            shell(first, f"nvme resv-register {DRIVE} --nrkey=1")
            shell(first, f"nvme resv-acquire {DRIVE} --crkey=1 --rtype=1")
            shell(first, writes % "first")
            assert shell(second, reads) == "first"
            assert "failed" in shell(second, f"{writes % 'wrong'} || echo failed")
            assert first.machine.pid is not None
            os.kill(first.machine.pid, signal.SIGKILL)
        shell(second, f"nvme resv-register {DRIVE} --nrkey=2")
        shell(second, f"nvme resv-acquire {DRIVE} --crkey=2 --prkey=1 --racqa=2 --rtype=1")
        shell(second, writes % "later")
        with Guest(images, sockets[0]) as returned:
            identify(returned, 1)
            assert shell(returned, reads) == "later"
            assert "failed" in shell(returned, f"{writes % 'wrong'} || echo failed")
            assert "onflict" in shell(
                returned, f"nvme resv-acquire {DRIVE} --crkey=1 --rtype=1 2>&1 || true"
            )
        assert shell(second, reads) == "later"

"""`potash guest --socket`: a guest with a device that somebody else runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import potash.sdk
from potash.cli.app import run_app
from potash.vm.drive import device_process
from support.vm import PotashGuest


@pytest.mark.usefixtures("images")
def test_a_guest_uses_a_device_that_is_there_and_leaves_it(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    with device_process(socket, "--size", "16M") as device:
        with potash.sdk.open(f"vfio-user:{socket}") as before:
            before.write(3, b"from here".ljust(before.block_size, b"\0"))
        script = (
            "dd if=/dev/nvme0n1 bs=4096 skip=3 count=1 2>/dev/null | head -c 9;"
            "echo from there | dd of=/dev/nvme0n1 bs=4096 seek=4 conv=fsync 2>/dev/null"
        )
        command = [sys.executable, "-m", "potash.cli.main", "guest", "--socket", str(socket)]
        command += ["--", "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "from here"), done.stderr
        assert device.poll() is None
        with potash.sdk.open(f"vfio-user:{socket}") as after:
            assert after.read(4, 1).startswith(b"from there\n")


def test_a_socket_that_is_not_there_is_one_sentence(
    tmp_path: Path, potash_guest: PotashGuest
) -> None:
    done = potash_guest("--socket", str(tmp_path / "s"), "--", "true")
    assert done.returncode == 1
    assert done.stderr == (
        f"potash: no device listens at {tmp_path}/s; start one with: "
        f"potash serve --socket {tmp_path}/s\n"
    )


def test_a_device_that_has_a_client_is_busy_and_nothing_is_booted(
    tmp_path: Path, potash_guest: PotashGuest
) -> None:
    socket = tmp_path / "s"
    with device_process(socket, "--size", "16M"), potash.sdk.open(f"vfio-user:{socket}"):
        done = potash_guest("--socket", str(socket), "--", "true")
    assert (done.returncode, done.stderr) == (
        1,
        (
            f"potash: the device at {socket} is busy with another client; "
            "try again when that has left\n"
        ),
    )


@pytest.mark.parametrize("option", [("--size", "1G"), ("--media", "x"), ("--namespace", "1G")])
def test_a_device_that_is_there_has_its_drive_already(
    tmp_path: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["guest", "--socket", str(tmp_path / "s"), *option]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "give its options to `potash serve`" in said

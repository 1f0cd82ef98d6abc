"""A drive that says it is the platform's: what a host program that was not written for Potash gets
from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.platform_example import LEFT, OUTPUT, RIGHT, model, program

STRANGER = Path(__file__).with_name("stranger.py")


@pytest.fixture(scope="module")
def platform(images: GuestImages) -> Iterator[Guest]:
    # Smaller than what the host asks for, so the device clamps the range to the drive's end.
    with serving("--size", "8M", "--profile", "alkali") as socket, Guest(images, socket) as guest:
        yield guest


def test_its_identity_is_the_platform_s(platform: Guest) -> None:
    listed = platform.capture(["nvme", "list", "-o", "json"]).stdout
    (device,) = json.loads(listed)["Devices"]
    assert (device["SerialNumber"], device["ModelNumber"]) == ("0123456789", "DEADBEEF")
    # Capability 05h of the configuration space is MSI; vendor 1b96h, device 0001h.
    config = platform.capture(["cat", "/sys/bus/pci/devices/0000:01:00.0/config"]).stdout
    assert config[:4] == bytes.fromhex("961b0100")
    found, at = [], config[0x34]
    while at:
        found.append(config[at])
        at = config[at + 1]
    assert 0x05 in found and 0x11 in found


def test_the_published_host_s_ioctls_give_the_published_example_s_output(
    platform: Guest, tmp_path: Path
) -> None:
    (tmp_path / "program.o").write_bytes(program())
    (tmp_path / "input.bin").write_bytes(model() + LEFT + RIGHT)
    platform.copy_in(STRANGER, "/share/stranger.py")
    platform.copy_in(tmp_path / "program.o", "/share/program.o")
    platform.copy_in(tmp_path / "input.bin", "/share/input.bin")
    files = ["/share/program.o", "/share/input.bin", "/tmp/output"]
    done = platform.capture(["python3", "/share/stranger.py", "/dev/nvme0n1", *files])
    assert done.code == 0, done
    said = done.stdout.split()
    assert said[0] == b"WDC0" and said[2] == b"0"
    output = platform.capture(["cat", "/tmp/output"]).stdout
    assert output == OUTPUT.ljust(4096, b"\0")
    assert done.stderr == b""

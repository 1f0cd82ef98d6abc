"""Several devices on one machine, each a process with a socket, media and a name of its own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import potash.sdk
from potash.cli.app import run_app
from potash.sdk import PotashError
from potash.vm.drive import device_process

BLOCK = 4096


def test_devices_side_by_side_share_nothing_not_even_a_name(tmp_path: Path) -> None:
    with ExitStack() as stack:
        devices = []
        for number in range(3):
            socket = tmp_path / f"s{number}"
            options = ["--profile", "alkali", "--serial", f"SERIAL{number}"]
            stack.enter_context(
                device_process(socket, *options, "--media", str(tmp_path / f"m{number}"),
                               "--size", "1M")
            )  # fmt: skip
            devices.append(stack.enter_context(potash.sdk.open(f"vfio-user:{socket}")))
        for number, device in enumerate(devices):
            device.write(7, bytes([number + 1]) * BLOCK)
        for number, device in enumerate(devices):
            assert device.read(7, 1) == bytes([number + 1]) * BLOCK
        said = [device.identify() for device in devices]
        assert [one.sn for one in said] == ["SERIAL0", "SERIAL1", "SERIAL2"]
        assert len({one.subnqn for one in said}) == 3
    for number in range(3):
        data = (tmp_path / f"m{number}").read_bytes()
        assert data.strip(b"\0") == bytes([number + 1]) * BLOCK


def test_a_socket_and_media_belong_to_one_device_at_a_time(tmp_path: Path) -> None:
    media = ["--media", str(tmp_path / "media"), "--size", "1M"]
    with device_process(tmp_path / "s", *media):
        with (
            pytest.raises(PotashError, match="another device has it open"),
            device_process(tmp_path / "other", *media),
        ):
            pass
        with (
            pytest.raises(PotashError, match="cannot listen at"),
            device_process(tmp_path / "s", "--size", "1M"),
        ):
            pass
        with potash.sdk.open(f"vfio-user:{tmp_path / 's'}") as device:
            assert device.read(0, 1) == bytes(BLOCK)


@pytest.mark.parametrize("serial", ["", "   ", "x" * 21, "número", "a\tb"])
def test_a_serial_number_is_one_that_identify_has_room_for(
    serial: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["serve", "--socket", "/tmp/never", "--serial", serial]) == 2
    assert "up to 20 printable ASCII characters" in capsys.readouterr().err

"""`potash ana`, faults of access, and the control socket of a running device."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path

import pytest

from nvme_spec.status import Status
from potash.cli.app import run_app
from potash.observing.status import ask, status_socket
from potash.sdk import CommandFailed, PotashError, faults
from potash.sdk.errors import DeviceNotFound, InvalidRequest
from potash.testing import access_groups, change_access
from potash.testing.booting import BootedDevice, booted_device
from potash_firmware.control import LONGEST, LONGEST_ANSWER
from support.docs import shell_blocks
from support.shell import commands

INACCESSIBLE = Status.ASYMMETRIC_ACCESS_INACCESSIBLE


def status(device: BootedDevice) -> int:
    try:
        device.read(0, 1)
    except CommandFailed as error:
        return error.status
    return 0


def shown(device: BootedDevice, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert run_app(["ana", "show", str(device.socket), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["groups"]
    assert isinstance(found, list)
    return found


def test_states_change_while_a_client_is_attached(capsys: pytest.CaptureFixture[str]) -> None:
    with booted_device(ana=True) as device:
        place = str(device.socket)
        assert status(device) == 0
        assert run_app(["ana", "set", place, "inaccessible"]) == 0
        assert status(device) == INACCESSIBLE
        group = {
            "controller": 0,
            "group": 1,
            "state": "inaccessible",
            "changes": 1,
            "namespaces": [1],
        }
        assert shown(device, capsys) == [group]
        assert run_app(["ana", "show", f"vfio-user:{place}"]) == 0
        assert capsys.readouterr().out == "group 1: inaccessible (namespaces 1; 1 changes)\n"
        device.change_access("optimized")
        assert status(device) == 0
        device.change_access("non-optimized", transition=10)
        assert status(device) == Status.ASYMMETRIC_ACCESS_TRANSITION
        device.change_access("persistent-loss")
        assert status(device) == Status.ASYMMETRIC_ACCESS_PERSISTENT_LOSS
        assert run_app(["ana", "set", place, "optimized"]) == 1
        assert "persistent loss, which ends when the drive starts anew" in capsys.readouterr().err
        control = Path(f"{place}.control")
        assert control.stat().st_mode & 0o777 == 0o600
    assert not control.exists()


def test_the_commands_of_the_page_work(capsys: pytest.CaptureFixture[str]) -> None:
    (block, *_) = [block for block in shell_blocks() if block.page == "docs/ana.md"]
    with booted_device(controllers=2) as device:
        places = dict(zip(("/tmp/a.sock", "/tmp/b.sock"), map(str, device.sockets), strict=True))
        for words in commands(block.script):
            if words[1] == "ana":
                assert run_app([places.get(word, word) for word in words[1:]]) == 0
        capsys.readouterr()
        assert shown(device, capsys)[0]["state"] == "inaccessible"


def test_a_request_that_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    with booted_device(ana=True) as device:
        for state, fields, why in (
            ("asleep", {}, "not an ANA state: optimized, non-optimized"),
            ("inaccessible", {"group": 65}, "groups are 1 to 64"),
            ("inaccessible", {"transition": 11}, "at most 10 seconds"),
        ):
            with pytest.raises(PotashError, match=why):
                device.change_access(state, **fields)
        assert status(device) == 0
    with (
        booted_device() as device,
        pytest.raises(PotashError, match="no ANA groups; start it with --ana"),
    ):
        device.change_access("optimized")
    with pytest.raises(DeviceNotFound):
        change_access(tmp_path / "nothing", "optimized")


def test_the_control_socket_takes_any_datagram() -> None:
    with (
        booted_device(ana=True) as device,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as silent,
    ):
        client.settimeout(10)
        client.bind("")
        for connected in (client, silent):
            connected.connect(f"{device.socket}.control")
        silent.send(b"[1,3,0]")  # without an address for an answer
        for request in (b"", b"{}", b"[", b"[1]", b"[1,5]", b"[1,3,-1]", b"[[[[[[[[[[[[[[[[[[[[",
                        b'["1",3]', b"[0,1]", os.urandom(LONGEST), bytes(LONGEST + 9)):  # fmt: skip
            client.send(request)
            assert bool(json.loads(client.recv(LONGEST_ANSWER))["error"]) is bool(request), request
        client.send(b"[1,1]")
        assert json.loads(client.recv(LONGEST_ANSWER))["error"] == ""
        assert status(device) == 0


def test_faults_change_the_state_of_a_running_drive() -> None:
    with booted_device(ana=True) as device:
        number = device.add_fault("ana inaccessible after=2 for=10s")
        assert [status(device) for _ in range(3)] == [0, 0, INACCESSIBLE]
        assert next(fault for fault in device.faults() if fault.identifier == number).spent
        with pytest.raises(CommandFailed):
            device.add_fault("ana optimized group=65")
    with booted_device() as device, pytest.raises(CommandFailed):
        device.add_fault("ana inaccessible")


def test_a_namespace_is_in_the_group_of_its_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "potash.toml"
    file.write_text('[namespace.1]\nsize = "1M"\n[namespace.2]\nsize = "1M"\nana_group = 9\n')
    with booted_device(ana=True, options=["--config", str(file)]) as device:
        assert [group["group"] for group in shown(device, capsys)] == [1, 9]


def test_lines_of_faults_that_cannot_be() -> None:
    for line in ("ana", "ana asleep", "ana persistent-loss for=1s", "ana optimized group=0",
                 "ana optimized at=1s count=2", "ana optimized for=2h"):  # fmt: skip
        with pytest.raises(InvalidRequest):
            faults.parse(line)


def test_the_log_page_is_the_standards() -> None:
    with booted_device(ana=True) as device:
        cdw10 = 15 << 16 | 0x0C
        page = device.admin(2, nsid=0xFFFF_FFFF, cdw10=cdw10, data_in_length=64).data
        assert struct.unpack_from("<QH6xIIQB15xI", page) == (0, 1, 1, 1, 0, 1, 1)


def test_each_controller_has_an_access_of_its_own() -> None:
    with booted_device(controllers=2, faults=["ana inaccessible group=1 controller=1"]) as device:
        first, second = device.controllers
        first.read(0, 1)
        with pytest.raises(CommandFailed) as caught:
            second.read(0, 1)
        assert caught.value.status == INACCESSIBLE
        device.change_access("non-optimized")
        states = [
            [(group["controller"], group["state"]) for group in access_groups(socket)]
            for socket in device.sockets
        ]
        assert states == [[(0, "non-optimized")], [(1, "inaccessible")]]
        every = ask(status_socket(str(device.socket)))["access_groups"]
        assert [group["controller"] for group in every] == [0, 1]
        device.change_access("optimized", controller=1)
        second.read(0, 1)
        device.change_access("inaccessible")
        second.read(0, 1)
        device.add_fault("io any status=INTERNAL_ERROR controller=1 dnr count=1")
        with pytest.raises(CommandFailed):
            second.read(0, 1)
        assert status(device) == INACCESSIBLE
    with booted_device(controllers=2, ana=False) as device, pytest.raises(PotashError):
        device.change_access("optimized")

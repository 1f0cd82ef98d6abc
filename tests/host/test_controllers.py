"""Drives with several controllers: a client at each socket, and the namespaces that they share."""

import json
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from csd_spec.status import VendorStatus
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.status import Status
from potash.cli.app import run_app
from potash.observing.prometheus import text
from potash.observing.rates import between
from potash.observing.screen import summary
from potash.observing.status import ask, status_socket
from potash.sdk import CommandFailed, DeviceNotFound
from potash.sdk.accelerator import Accelerator
from potash.sdk.device import Device
from potash.testing import BootedDevice, booted_device
from support.hostile import wait_until

IDENTIFY = 0x06
CONTROLLERS, ATTACHED_CONTROLLERS = 0x13, 0x12
BLOCK = 4096

BUSY_CLIENT = """
import random, sys
import potash.sdk
from nvme_spec.reservations import ReservationType

with potash.sdk.open("vfio-user:" + sys.argv[1]) as device:
    print("ready", flush=True)
    while True:
        device.write(random.randrange(64, 128), bytes(random.choice((1, 16)) * 4096))
        device.flush()
        if random.random() < 0.1:
            device.reset()
            reservations = device.reservations()
            reservations.register(1)
            reservations.acquire(1, ReservationType.WRITE_EXCLUSIVE_REGISTRANTS_ONLY)
            reservations.release(1, ReservationType.WRITE_EXCLUSIVE_REGISTRANTS_ONLY)
            reservations.unregister(1)
"""
"""A client that writes, flushes, resets its controller and holds reservations, until it is killed."""


@pytest.fixture(scope="module")
def device() -> Iterator[BootedDevice]:
    with booted_device(controllers=2, size="16M") as device:
        yield device


def identifiers(device: Device, cns: int, nsid: int = 0) -> list[int]:
    """A controller list: a number of identifiers, and these (Base 2.0, figure 137)."""
    data = device.identify_data(cns, nsid)
    (count,) = struct.unpack_from("<H", data)
    return list(struct.unpack_from(f"<{count}H", data, 2))


def test_each_controller_has_its_identifier_and_both_are_of_one_subsystem(
    device: BootedDevice,
) -> None:
    first, second = (each.identify() for each in device.controllers)
    assert (first.cntlid, second.cntlid) == (0, 1)
    assert first.subnqn == second.subnqn and first.sn == second.sn
    # There are several ports, several controllers and ANA (Base 2.0, figure 275, CMIC).
    assert first.cmic == second.cmic == 0b1011
    for each in device.controllers:
        assert identifiers(each, CONTROLLERS) == [0, 1]
        assert identifiers(each, ATTACHED_CONTROLLERS, 1) == [0, 1]
        assert each.identify_data(0, 1)[30] & 1, "NMIC says that the namespace may be shared"


def test_one_controller_reads_what_the_other_has_written(device: BootedDevice) -> None:
    first, second = device.controllers
    for lba in range(8):
        writer, reader = (first, second) if lba % 2 else (second, first)
        data = bytes([lba + 1]) * BLOCK
        writer.write(lba, data)
        assert reader.read(lba, 1) == data == writer.read(lba, 1)


def test_a_reset_of_one_controller_leaves_the_other_alone(device: BootedDevice) -> None:
    first, second = device.controllers
    second.write(20, b"\2" * BLOCK)
    for _ in range(3):
        first.reset()
        assert second.read(20, 1) == b"\2" * BLOCK == first.read(20, 1)


def test_accelerators_are_the_first_controller_s(device: BootedDevice) -> None:
    first, second = device.controllers
    assert len(first.accelerators()) == 1
    with pytest.raises(CommandFailed) as refusal:
        second.accelerators()
    assert refusal.value.status == Status.INVALID_OPCODE
    with pytest.raises(DeviceNotFound, match="this controller has no accelerators"):
        second.accelerator()
    with pytest.raises(DeviceNotFound):
        second.memory_namespace()


def test_sixteen_controllers_are_the_most() -> None:
    with booted_device(controllers=16, size="1M") as device:
        assert [each.identify().cntlid for each in device.controllers] == list(range(16))
        device.controllers[15].write(3, b"\7" * BLOCK)
        assert device.controllers[7].read(3, 1) == b"\7" * BLOCK


@pytest.mark.parametrize(
    ("sockets", "reason"),
    [(17, "give up to 16 different --socket"), (0, "give --socket PATH to listen at")],
)
def test_impossible_numbers_of_sockets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sockets: int, reason: str
) -> None:
    options = [f"--socket={tmp_path / str(number)}" for number in range(sockets)]
    assert run_app(["serve", *options]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--incoming", "--load=state"])
def test_what_a_drive_with_several_controllers_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    sockets = [f"--socket={tmp_path / name}" for name in "ab"]
    assert run_app(["serve", *sockets, "--time=modelled", option]) == 2
    assert "is for a drive with one controller" in capsys.readouterr().err


def test_sockets_are_listed_in_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "potash.toml"
    file.write_text('[device]\nsocket = ["a", "b"]\n')
    assert run_app(["serve", "--config", str(file), "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert (
        f"socket = [{json.dumps(str(tmp_path / 'a'))}, {json.dumps(str(tmp_path / 'b'))}]"
        in printed
    )


def test_a_private_namespace_is_attached_to_its_controller_alone(tmp_path: Path) -> None:
    options = [f"--namespace={each}" for each in ("1M", "2M:512:private=1", "3M:private=0")]
    options += ["--kv-namespace=1M:private=1", "--kv-namespace=1M:64K"]
    for _ in range(2):  # the second time as the media have it
        with booted_device(controllers=2, options=options, media=tmp_path) as device:
            first, second = device.controllers
            found = (first.active_namespaces(), second.active_namespaces())
            assert found == ([1, 3, 5], [1, 2, 4, 5])
            assert first.active_namespaces(CommandSet.KEY_VALUE) == [5]
            shared = [each.identify_data(0, nsid)[30] for each, nsid in ((first, 1), (second, 2))]
            assert shared == [1, 0]
        options = []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--namespace=1M:private=1"],
            "controller 1, which has namespaces or accelerators, is not there",
        ),
        (["--accelerator=1M:controller=2"], "controller 2, which has"),
        (["--accelerator=1M:controller=x"], "a controller is 0 to 15"),
        (["--namespace=1M:private=16"], "a controller is 0 to 15"),
        (["--namespace=1M:private="], "a controller is 0 to 15"),
        (["--zoned-namespace=256M,private=3"], "give 4 --socket"),
        (["--kv-namespace=1M:private=2"], "controller 2, which has"),
        (["--kv-namespace=1M:4K:private=16"], "a controller is 0 to 15"),
    ],
)
def test_private_namespaces_of_controllers_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert run_app(["serve", f"--socket={tmp_path / 'a'}", *options]) == 2
    assert reason in capsys.readouterr().err


def test_the_status_has_the_counters_of_every_controller(device: BootedDevice) -> None:
    first, second = device.controllers
    before = ask(status_socket(str(device.socket)))
    for _ in range(3):
        second.read(0, 1)
    first.read(0, 1)
    after = ask(status_socket(str(device.socket)))
    (other,) = after["others"]
    assert other["id"] == 1 and other["controller"]["state"] == "ready"
    grown = [
        new["latencies"]["read"]["commands"] - old["latencies"]["read"]["commands"]
        for old, new in ((before, after), (before["others"][0], other))
    ]
    assert grown == [1, 3]
    found = text(after)
    assert b'potash_controller_ready{controller="1"} 1.0' in found
    assert b"potash_controller_ready 1.0" in found
    measured = between(before, after)
    assert measured["others"][1] > 0 and measured["commands"] > measured["others"][1]
    assert any("controller 1: ready" in line for line in summary(after, measured))
    asked = ask(status_socket(str(device.sockets[1])))
    assert asked["pid"] == after["pid"], "at every socket"


def test_each_accelerator_belongs_to_one_controller() -> None:
    options = [f"--accelerator={each}" for each in ("1M", "1M:controller=1", "2M:controller=1")]
    with booted_device(controllers=3, size="1M", options=options) as device:
        first, second, third = device.controllers
        assert [each.id for each in first.accelerators()] == [0]
        assert [each.id for each in second.accelerators()] == [1, 2]
        with pytest.raises(CommandFailed):
            third.accelerators()
        mine, other = first.accelerator(0), second.accelerator(1)
        for accelerator in (mine, other):
            accelerator.enable()
            accelerator.write_input(b"A" * BLOCK)
        foreign = Accelerator(first, other.description)
        with pytest.raises(CommandFailed) as refusal:
            foreign.write_input(b"B" * BLOCK)
        assert refusal.value.status == VendorStatus.INVALID_ACCELERATOR
        first.reset()  # which disables its accelerators
        other.write_input(b"C" * BLOCK)
        with pytest.raises(CommandFailed) as refusal:
            mine.write_input(b"D" * BLOCK)
        assert refusal.value.status == VendorStatus.SUBSYSTEM_DISABLED
        second.reset()
        mine.enable()
        mine.write_input(b"E" * BLOCK)
        with pytest.raises(CommandFailed) as refusal:
            other.write_input(b"F" * BLOCK)
        assert refusal.value.status == VendorStatus.SUBSYSTEM_DISABLED


def test_accelerators_of_each_controller_are_as_they_were_after_their_processor_died() -> None:
    options = ["--accelerator=1M", "--accelerator=1M:controller=1"]
    with booted_device(controllers=2, size="1M", options=options) as device:
        first, second = device.controllers
        mine, other = first.accelerator(0), second.accelerator(1)
        other.enable()
        starts = ask(status_socket(str(device.socket)))["mailbox"]["apu_starts"]
        device.add_fault("apu at=now")
        wait_until(
            lambda: ask(status_socket(str(device.socket)))["mailbox"]["apu_starts"] > starts,
            lambda: time.sleep(0.05),
        )
        other.write_input(b"A" * BLOCK)
        with pytest.raises(CommandFailed) as refusal:
            mine.write_input(b"A" * BLOCK)
        assert refusal.value.status == VendorStatus.SUBSYSTEM_DISABLED


def use(device: Device, contents: dict[int, bytes], rng: random.Random) -> bool:
    """Read and write a block; False where another host has reserved the namespace."""
    lba, content = rng.randrange(64), rng.randbytes(BLOCK)
    if lba in contents:
        assert device.read(lba, 1) == contents[lba]
    try:
        device.write(lba, content)
    except CommandFailed as error:
        assert error.status == Status.RESERVATION_CONFLICT
        return False
    contents[lba] = content
    return True


def kill_clients(count: int, **options: Any) -> None:
    """Kill clients of the second controller while the first one's host works."""
    rng = random.Random(count)
    with booted_device(controllers=2, size="64M", **options) as device:
        first, second = device.controllers
        second.close()
        contents: dict[int, bytes] = {}
        for _ in range(count):
            client = subprocess.Popen(
                [sys.executable, "-c", BUSY_CLIENT, str(device.sockets[1])], stdout=subprocess.PIPE
            )
            with client:
                assert client.stdout is not None and client.stdout.readline() == b"ready\n"
                end = time.monotonic() + rng.random() / 4
                while time.monotonic() < end:
                    use(first, contents, rng)
                client.kill()
            wait_until(lambda: use(first, contents, rng), lambda: time.sleep(0.01))
        assert all(first.read(lba, 1) == content for lba, content in contents.items())


@pytest.mark.parametrize("options", [{}, {"time": "modelled"}])
def test_clients_of_one_controller_are_killed_while_the_other_is_used(
    options: dict[str, str],
) -> None:
    kill_clients(2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"time": "modelled"}])
def test_many_clients_of_one_controller_are_killed(options: dict[str, str]) -> None:
    kill_clients(50, **options)

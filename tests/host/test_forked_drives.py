"""The drives of one guest: devices and APUs that are forked from one process."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import potash.sdk
from potash import options
from potash.cli.device import drives
from potash.devices import serving_guest
from potash.sdk import Accelerator, CommandFailed, JobFailed, PotashError
from potash.sdk.memory_namespace import PeerBytes
from pyvfio_user.client import Client
from pyvfio_user.protocol import PciRegion
from support import processes
from support.hostile import wait_until

SECRET = "a secret of the user that no program may see"
COUNT = 3
ADD = Path(__file__).parents[2] / "examples" / "add"
BLOCK = 4096
BAR_ADDRESS = 0xE5_8000_0000
LIMIT = 120.0
PAUSE = partial(time.sleep, 0.01)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    monkeypatch.setenv("SECRET", SECRET)
    described = [
        options.parse(["--size", "1M", "--serial", f"SERIAL{number}"]) for number in range(COUNT)
    ]
    with serving_guest(described) as (sockets, monitors):
        assert monitors == []
        yield sockets


def test_forked_drives_share_nothing_not_even_a_name(sockets: list[Path]) -> None:
    with ExitStack() as stack:
        devices = [stack.enter_context(potash.sdk.open(f"vfio-user:{path}")) for path in sockets]
        for number, device in enumerate(devices):
            device.write(7, bytes([number + 1]) * BLOCK)
        for number, device in enumerate(devices):
            assert device.read(7, 1) == bytes([number + 1]) * BLOCK
        identified = [device.identify() for device in devices]
        assert [controller.sn for controller in identified] == ["SERIAL0", "SERIAL1", "SERIAL2"]
        assert len({controller.subnqn for controller in identified}) == COUNT


def test_an_apu_that_is_lost_is_replaced_by_a_new_process(sockets: list[Path]) -> None:
    all_named("potash-apu")
    *_, device = named(drives.DEVICE)
    (apu,) = processes.children(device)
    assert processes.name(apu) == "potash-apu"
    with potash.sdk.open(f"vfio-user:{sockets[-1]}") as host:
        (accelerator,) = host.accelerators()
        assert add(accelerator) == (ADD / "expected.bin").read_bytes()
        os.kill(apu, signal.SIGKILL)
        wait_until(lambda: processes.children(device) not in ([apu], []), PAUSE)
        assert add(accelerator) == (ADD / "expected.bin").read_bytes()


@pytest.mark.usefixtures("sockets")
def test_an_apu_has_not_the_environment_of_its_user() -> None:
    """Its memory is that of the process from which it was forked."""
    assert [contains(device, SECRET) for device in named(drives.DEVICE)] == [True] * COUNT
    others = [server(), *all_named("potash-apu"), *all_named("potash-fork-srv")]
    assert not any(contains(pid, SECRET) for pid in others)


@pytest.mark.usefixtures("sockets")
def test_no_drive_outlives_the_process_from_which_it_was_forked() -> None:
    all_named("potash-fork-srv")
    below = processes.descendants(server())
    os.kill(server(), signal.SIGKILL)
    wait_until(lambda: not any(map(processes.runs, below)), PAUSE)


def test_a_drive_that_does_not_start_says_why_and_ends_the_others(tmp_path: Path) -> None:
    media = ["--media", str(tmp_path / "media"), "--size", "1M"]
    both = [options.parse(media)] * 2
    with pytest.raises(PotashError, match="another device has it open"), serving_guest(both):
        pass
    assert drives.PROCESS not in map(processes.name, processes.descendants(os.getpid()))


def test_a_drive_copies_from_the_memory_of_another_one_until_that_ends() -> None:
    words = ["--size", "1M", "--memory-namespace", "2M", "--memory-bar", "--serial"]
    described = [
        options.parse([*words, "FIRST"]),
        options.parse([*words, "OTHER", "--memory-peers"]),
    ]
    with (
        serving_guest(described) as ((first, second), _),
        potash.sdk.open(f"vfio-user:{first}") as device,
        Client(second) as host,
    ):
        host.negotiate()
        host.region_write(PciRegion.CONFIG, 0x20, struct.pack("<Q", BAR_ADDRESS))
        host.region_write(PciRegion.CONFIG, 4, struct.pack("<H", 6))  # memory, bus master
        host.region_write(PciRegion.BAR4, 4096, b"from the other drive")
        memory = device.memory_namespace()
        assert memory.copy(64, [PeerBytes(BAR_ADDRESS + 4096, 20)]) == 20
        assert memory.read(60, 28) == bytes(4) + b"from the other drive" + bytes(4)
        takes_its_input(device.accelerator(), host)
        *_, other = named(drives.DEVICE)
        os.kill(other, signal.SIGKILL)

        def fails() -> bool:
            try:
                memory.copy(0, [PeerBytes(BAR_ADDRESS, 4)])
            except CommandFailed as error:
                assert "Data Transfer Error" in str(error)
                return True
            return False

        wait_until(fails, PAUSE)
        assert memory.read(64, 4) == b"from"


def takes_its_input(accelerator: Accelerator, host: Client) -> None:
    """A job's input is what is in the memory of the other drive."""
    expected, data = add(accelerator), (ADD / "input.bin").read_bytes()
    accelerator.write_input(bytes(len(data)))
    with pytest.raises(JobFailed):  # zeroes are no model
        accelerator.run_again([520, 1024], timeout=LIMIT)
    host.region_write(PciRegion.BAR4, 8192, data)
    last = len(data) - 4
    accelerator.copy_input(BAR_ADDRESS + 8192, last)
    accelerator.copy_input(BAR_ADDRESS + 8192 + last, 4, offset=last)
    accelerator.run_again([520, 1024], timeout=LIMIT)
    assert accelerator.read_output() == expected


def add(accelerator: Accelerator) -> bytes:
    """The output of the example."""
    program, data = ADD / "program.o", ADD / "input.bin"
    return accelerator.run(str(program), data, args=[520, 1024], timeout=LIMIT).output


def server() -> int:
    """The process from which the drives were forked."""
    below = processes.descendants(os.getpid())
    (found,) = (pid for pid in below if processes.name(pid) == drives.PROCESS)
    return found


def named(name: str) -> list[int]:
    """The processes of this name below that one."""
    return [pid for pid in processes.descendants(server()) if processes.name(pid) == name]


def all_named(name: str) -> list[int]:
    """The same, once each drive has one."""
    wait_until(lambda: len(named(name)) == COUNT, PAUSE)
    return named(name)


def contains(pid: int, text: str) -> bool:
    """True if a process has a text in its private memory, or had it in its first environment."""
    word = text.encode()
    try:
        if word in Path(f"/proc/{pid}/environ").read_bytes():
            return True
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                addresses, access, *_ = line.split()
                if access.startswith("rw-p"):
                    first, last = (int(part, 16) for part in addresses.split("-"))
                    memory.seek(first)
                    if word in memory.read(last - first):
                        return True
    except PermissionError:
        pytest.skip("only root sees the memory of a process that is not dumpable")
    return False

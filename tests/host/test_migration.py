"""A drive moves from process to process while a host writes to it; either process is killed."""

import mmap
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, cast

import pytest

import potash.sdk
from csd_spec.status import StatusId
from nvme_spec.commands import ReadWrite
from nvme_spec.opcodes import IoOpcode
from potash.sdk import Device, DeviceGone, PotashError
from potash.sdk.commands import encoded
from potash.sdk.compute_namespace import ComputeNamespace
from potash.sdk.driver import controller
from potash.sdk.memory_namespace import Bytes, MemoryNamespace
from potash.sdk.transport import PendingCommand
from potash.sdk.vfio_user import VfioUserTransport, attached
from potash.vm.drive import device_process
from pyvfio_user.client import Client
from pyvfio_user.migration import State
from pyvfio_user.protocol import PciRegion
from support.bpf_assembler import assemble
from support.bpf_elf import Name, elf, text

BLOCK = 4096
BLOCKS = 2048
DEPTH = 16
SIZE = ("--namespace", "8M")

Process = subprocess.Popen[bytes]


class Devices:
    """Processes that have a drive one after the other."""

    def __init__(self, folder: Path) -> None:
        self.media = folder / "drive"
        self._folder = folder
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        self._stack.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *options: str) -> tuple[str, Process]:
        """A process and its socket."""
        self._count += 1
        socket = self._folder / f"s{self._count}"
        media = ("--media", str(self.media))
        process = self._stack.enter_context(device_process(socket, *media, *options))
        return str(socket), process


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[Devices]:
    with Devices(tmp_path) as devices:
        yield devices


def connect(path: str) -> Device:
    return potash.sdk.open(f"vfio-user:{path}", queue_depth=DEPTH)


def transport(device: Device) -> VfioUserTransport:
    return cast(VfioUserTransport, device.transport)


class Verifier:
    """Writes random blocks, and knows what is acknowledged and what may be there besides."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.acknowledged: dict[int, bytes] = {}
        self.maybe: dict[int, bytes] = {}
        self._in_flight: list[tuple[int, bytes, PendingCommand]] = []

    def submit(self, device: Device, count: int = DEPTH) -> None:
        """Send writes to different blocks, and leave them in flight."""
        for lba in self._random.sample(range(BLOCKS), count):
            data = self._random.randbytes(16) * (BLOCK // 16)
            fields = encoded(ReadWrite(slba=lba, nlb_z=0))
            pending = device.submit(IoOpcode.WRITE, data_out=data, **fields)
            self._in_flight.append((lba, data, pending))

    def settle(self) -> None:
        """Wait for what is in flight: it ends once, with success, or its device is gone."""
        for lba, data, pending in self._in_flight:
            try:
                pending.result()
            except PotashError:
                self.maybe[lba] = data
            else:
                self.acknowledged[lba] = data
                self.maybe.pop(lba, None)
        self._in_flight.clear()

    def check_anew(self, path: str) -> None:
        """As `check`, by a host that begins anew."""
        with connect(path) as device:
            self.check(device)

    def check(self, device: Device) -> None:
        """Read everything that was ever written."""
        for lba, data in self.acknowledged.items():
            found = device.read(lba, 1)
            assert found in (data, self.maybe.get(lba)), f"block {lba}"


def moves(devices: Devices, times: int, *options: str) -> None:
    path, process = devices.start(*SIZE, *options)
    verifier = Verifier(times)
    with connect(path) as device:
        assert device.await_event(0.01) is None  # which leaves a request with the device
        for _ in range(times):
            verifier.submit(device)
            path, following = devices.start("--incoming")
            verifier.submit(device)
            transport(device).move(path)
            process.terminate()
            assert process.wait(30) == 0
            process = following
            verifier.submit(device, DEPTH // 2)
            verifier.settle()
            assert not verifier.maybe, "a write in flight has failed"
        verifier.check(device)
        # The request for events is still there, and the limit of four not exceeded.
        assert device.await_event(0.01) is None


def test_a_drive_moves_while_it_is_written_to(devices: Devices) -> None:
    moves(devices, 2)


def test_a_drive_moves_there_and_back(devices: Devices) -> None:
    first, _ = devices.start(*SIZE)
    second, _ = devices.start("--incoming")
    verifier = Verifier(8)
    with connect(first) as device:
        for path in (second, first, second):
            verifier.submit(device)
            transport(device).move(path)
            verifier.settle()
        assert not verifier.maybe
        verifier.check(device)


@pytest.mark.slow
def test_a_drive_moves_a_hundred_times(devices: Devices) -> None:
    moves(devices, 100)


def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def test_the_source_dies_before_it_has_given_its_state(devices: Devices) -> None:
    """The other drive begins as after a loss of power, with all that was acknowledged."""
    source, process = devices.start(*SIZE)
    verifier = Verifier(1)
    with suppress(DeviceGone), connect(source) as device:
        verifier.submit(device)
        verifier.settle()
        verifier.submit(device)
        target, _ = devices.start("--incoming")
        transport(device).client.migration.enter(State.STOP)
        kill(process)
        with pytest.raises(DeviceGone):
            transport(device).move(target)
        verifier.settle()
    with connect(target) as device:
        verifier.check(device)
        verifier.submit(device)
        verifier.settle()
        verifier.check(device)


def test_the_target_dies_with_the_state(devices: Devices) -> None:
    """The source goes on, as if nothing had been."""
    source, _ = devices.start(*SIZE)
    verifier = Verifier(2)
    with connect(source) as device:
        for when in (State.RESUMING, State.STOP):
            verifier.submit(device)
            target, process = devices.start("--incoming")
            migration = transport(device).client.migration
            state = migration.save()
            with ExitStack() as stack:
                client = stack.enter_context(attached(target))
                client.migration.enter(State.RESUMING)
                client.migration.write(state)
                client.migration.enter(when)
                kill(process)
            migration.enter(State.RUNNING)
            verifier.settle()
            assert not verifier.maybe
        verifier.check(device)
        moved, _ = devices.start("--incoming")
        transport(device).move(moved)
        verifier.check(device)


def test_the_source_cannot_go_on_behind_the_target(devices: Devices) -> None:
    """Whose media have been another's is reset: it knows neither them nor its queues' fate."""
    source, _ = devices.start(*SIZE)
    target, process = devices.start("--incoming")
    verifier = Verifier(3)
    with connect(source) as device:
        verifier.submit(device)
        verifier.settle()
        migration = transport(device).client.migration
        with attached(target) as client:
            client.migration.load(migration.save())
            with pytest.raises(OSError, match="busy"):
                migration.enter(State.RUNNING)
            with pytest.raises(OSError, match="busy"):
                transport(device).client.device_reset()
            kill(process)
        with pytest.raises(OSError, match="Stale"):
            migration.enter(State.RUNNING)
        transport(device).client.device_reset()
        assert migration.state is State.RUNNING
    with connect(source) as device:
        verifier.check(device)


def test_the_target_dies_at_work(devices: Devices) -> None:
    source, _ = devices.start(*SIZE)
    target, process = devices.start("--incoming")
    verifier = Verifier(4)
    with suppress(DeviceGone), connect(source) as device:
        verifier.submit(device)
        transport(device).move(target)
        verifier.settle()
        verifier.submit(device)
        kill(process)
        verifier.settle()
    third, _ = devices.start()
    with connect(third) as device:
        verifier.check(device)


@pytest.mark.slow
def test_either_process_dies_at_any_moment(devices: Devices) -> None:
    """Whoever is left has every acknowledged write, and nothing is answered twice."""
    rng = random.Random(7)
    verifier = Verifier(7)
    path, process = devices.start(*SIZE)
    outcomes = []
    for _ in range(30):
        target, following = devices.start("--incoming")
        victim = rng.choice((process, following))
        timer = threading.Timer(rng.uniform(0.0, 0.06), victim.kill)
        with suppress(DeviceGone), connect(path) as device:
            verifier.submit(device)
            timer.start()
            try:
                transport(device).move(target)
            except PotashError as error:
                outcomes.append(str(error))
            else:
                outcomes.append("moved")
            timer.join()
            victim.wait(30)
            verifier.settle()
        if victim is process:
            path, process = target, following
        verifier.check_anew(path)
    assert "moved" in outcomes
    assert len(set(outcomes)) > 1, "some moves are to be cut short"


def test_a_drive_in_memory_moves_with_its_blocks(tmp_path: Path) -> None:
    with (
        device_process(tmp_path / "a", *SIZE),
        device_process(tmp_path / "b", *SIZE),
        connect(str(tmp_path / "a")) as device,
    ):
        verifier = Verifier(5)
        verifier.submit(device)
        transport(device).move(str(tmp_path / "b"))
        verifier.settle()
        verifier.check(device)


def test_a_drive_moves_that_reaches_its_memory_by_messages(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = Client.dma_map
    clients: list[Client] = []

    def unmapped(client: Client, address: int, size: int, fd: int) -> None:
        clients.append(client)
        memory = memoryview(mmap.mmap(fd, size))
        mapped(client, address, size, None, memory=memory)

    def wait(interrupt: Any, seconds: float) -> bool:
        """As the driver's, but for the commands of the device."""
        found = clients[-1].answer(seconds, interrupt._eventfd)
        return found and bool(os.eventfd_read(interrupt._eventfd))

    monkeypatch.setattr(Client, "dma_map", unmapped)
    monkeypatch.setattr(controller._Interrupt, "wait", wait)
    moves(devices, 1)


COPY = """
prog:
    r6 = 512
copy:
    r0 = *(u64 *)(r1 + 0)
    *(u64 *)(r2 + 0) = r0
    r1 += 8
    r2 += 8
    r6 += -1
    if r6 != 0 goto copy
    exit
"""
"""Copies a page of the input to the output."""

COPY_RANGES = COPY.replace("    exit", "    r0 = 7\n    exit")
ENDLESS = """
prog:
again:
    goto again
"""


def program(source: str) -> bytes:
    return elf([text(assemble(source))], [Name("prog")])


def test_accelerators_move_with_programs_and_buffers(devices: Devices) -> None:
    path, _ = devices.start(*SIZE)
    content = bytes(range(256)) * 16
    with connect(path) as device:
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(program(COPY), 5)
        accelerator.write_input(content)
        for _ in range(2):
            target = devices.start("--incoming")[0]
            transport(device).move(target)
        accelerator.start(firmware_id=5)
        assert accelerator.wait(timeout=20).status == StatusId.DONE
        target, _ = devices.start("--incoming")
        transport(device).move(target)
        assert accelerator.status().status == StatusId.DONE
        assert accelerator.read_output(len(content)) == content


def test_a_drive_whose_accelerator_runs_a_job_is_not_moved(devices: Devices) -> None:
    path, _ = devices.start(*SIZE)
    target, _ = devices.start("--incoming")
    with connect(path) as device:
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(program(ENDLESS))
        accelerator.write_input(bytes(BLOCK))
        accelerator.start(firmware_id=0)
        with pytest.raises(PotashError, match="busy"):
            transport(device).move(target)
        assert accelerator.status().status == StatusId.RUNNING
        accelerator.stop()
        transport(device).move(target)
        assert accelerator.status().status == StatusId.STOPPED


@pytest.mark.parametrize("bars", [(), ("--memory-bar", "--cmb", "64K")])
def test_memory_and_compute_namespaces_move(devices: Devices, bars: tuple[str, ...]) -> None:
    path, _ = devices.start(*SIZE, "--memory-namespace", "1M", "--compute-namespace", *bars)
    with connect(path) as device:
        memory, compute = MemoryNamespace(device, 2), ComputeNamespace(device, 3)
        memory.write(BLOCK, b"input   " * 512)
        compute.load(20, program(COPY_RANGES))
        compute.load(21, program(COPY_RANGES), activate=False)
        ranges = compute.create_ranges([Bytes(2, BLOCK, BLOCK), Bytes(2, 0, BLOCK)])
        before = compute.programs(), compute.range_sets()
        if bars:
            transport(device).client.region_write(PciRegion.BAR2, 4096, b"in the buffer")
        target, _ = devices.start("--incoming", *bars)
        transport(device).move(target)
        if bars:
            client = transport(device).client
            assert client.region_read(PciRegion.BAR2, 4096, 13) == b"in the buffer"
            assert client.region_read(PciRegion.BAR4, BLOCK, 16) == b"input   " * 2
        assert (compute.programs(), compute.range_sets()) == before
        assert compute.execute(20, ranges) == 7
        assert memory.read(0, BLOCK) == b"input   " * 512


def test_a_state_is_saved_and_loaded(devices: Devices, tmp_path: Path) -> None:
    file = tmp_path / "state"
    source, process = devices.start(*SIZE, "--save", str(file))
    verifier = Verifier(6)
    device = connect(source)
    verifier.submit(device)
    verifier.settle()
    process.terminate()
    assert process.wait(30) == 0
    for again in range(2):
        loaded, process = devices.start("--load", str(file), "--save", str(file))
        transport(device).attach(loaded)
        verifier.submit(device)
        if not again:
            process.terminate()
            assert process.wait(30) == 0
    verifier.settle()
    assert not verifier.maybe
    verifier.check(device)
    device.close()


def test_a_state_that_is_none_is_one_sentence(devices: Devices, tmp_path: Path) -> None:
    devices.start(*SIZE)[1].terminate()
    file = tmp_path / "state"
    file.write_bytes(b"nonsense" * 10)
    with pytest.raises(PotashError, match="cannot be loaded: this is no state of a drive"):
        devices.start("--load", str(file))
    with pytest.raises(PotashError, match="cannot be loaded: No such file"):
        devices.start("--load", str(tmp_path / "nowhere"))

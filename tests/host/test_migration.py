"""A drive moves from process to process while a host writes to it; either process is killed."""

import mmap
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, cast
from unittest.mock import Mock

import pytest

import potash.sdk
from csd_spec.opcodes import QUERY_FIRMWARE
from csd_spec.status import StatusId
from nvme_spec.commands import ReadWrite
from nvme_spec.opcodes import IoOpcode
from potash.cli.device.serve import load_state
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
from support.processes import descendants, name

BLOCK = 4096
BLOCKS = 2048
DEPTH = 16
FEW = 4
"""Commands of a device that ends: the host takes a quarter of a second to give each one up."""
SIZE = ("--namespace", "8M")
MEMORY = ("--memory-namespace", "1M")
BARS = ("--memory-bar", "--cmb", "64K")

Process = subprocess.Popen[bytes]


class Devices:
    """Processes that have a drive one after the other; who has ended is replaced."""

    def __init__(self, folder: Path) -> None:
        self.media = folder / "drive"
        self._folder = folder
        self._stack = ExitStack()
        self._count = 0
        self._running: list[tuple[str, Process]] = []
        """The first has the drive, or gets it as soon as it has a client."""

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

    def source(self) -> tuple[str, Process]:
        """Who has the drive."""
        return self._number(0, *SIZE)

    def target(self) -> tuple[str, Process]:
        """Who may get it."""
        self.source()
        return self._number(1, "--incoming")

    def move(self, device: Device) -> None:
        """From the source to the target, which is the source from now on."""
        transport(device).move(self.target()[0])
        self._running[:2] = reversed(self._running[:2])

    def _number(self, place: int, *options: str) -> tuple[str, Process]:
        self._running = [one for one in self._running if one[1].poll() is None]
        if len(self._running) == place:
            self._running.append(self.start(*options))
        return self._running[place]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devices]:
    with Devices(tmp_path_factory.mktemp("shared")) as devices:
        yield devices


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


def moves(devices: Devices, times: int, *, ending: bool = False) -> None:
    """Move while blocks are written; whom the drive has left may be `ending`."""
    verifier = Verifier(times)
    with connect(devices.source()[0]) as device:
        assert device.await_event(0.01) is None  # which leaves a request with the device
        for _ in range(times):
            verifier.submit(device)
            _, process = devices.source()
            devices.target()
            verifier.submit(device)
            devices.move(device)
            if ending:
                process.terminate()
                assert process.wait(30) == 0
            verifier.submit(device, DEPTH // 2)
            verifier.settle()
            assert not verifier.maybe, "a write in flight has failed"
        verifier.check(device)
        # The request for events is still there, and the limit of four not exceeded.
        assert device.await_event(0.01) is None


def test_a_drive_moves_while_it_is_written_to(shared: Devices) -> None:
    moves(shared, 1, ending=True)


def test_a_drive_moves_there_and_back(shared: Devices) -> None:
    moves(shared, 3)


def test_a_drive_comes_back_before_its_source_has_noticed_the_end(shared: Devices) -> None:
    """It would take the media that the destination has just let go."""
    (source, process), (target, _) = shared.source(), shared.target()
    verifier = Verifier(9)
    with connect(source) as device:
        verifier.submit(device)
        verifier.settle()
        first = transport(device).client
        state = first.migration.save()
        process.send_signal(signal.SIGSTOP)
        try:
            transport(device).attach(target, state)
            first.close()
            second = transport(device).client
            state = second.migration.save()
        finally:
            process.send_signal(signal.SIGCONT)
        transport(device).attach(source, state)
        second.close()
        verifier.check(device)


@pytest.mark.slow
def test_a_drive_moves_a_hundred_times(devices: Devices) -> None:
    moves(devices, 100, ending=True)


def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def test_the_source_dies_before_it_has_given_its_state(shared: Devices) -> None:
    """The other drive begins as after a loss of power, with all that was acknowledged."""
    source, process = shared.source()
    target, _ = shared.target()
    verifier = Verifier(1)
    with suppress(DeviceGone), connect(source) as device:
        verifier.submit(device)
        verifier.settle()
        verifier.submit(device, FEW)
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


def test_the_target_dies_with_the_state(shared: Devices) -> None:
    """The source goes on, as if nothing had been."""
    verifier = Verifier(2)
    with connect(shared.source()[0]) as device:
        for when in (State.RESUMING, State.STOP):
            verifier.submit(device)
            target, process = shared.target()
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
        shared.move(device)
        verifier.check(device)


def test_the_source_cannot_go_on_behind_the_target(shared: Devices) -> None:
    """Whose media have been another's is reset: it knows neither them nor its queues' fate."""
    source, _ = shared.source()
    target, process = shared.target()
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
    verifier.check_anew(source)


def test_the_target_dies_at_work(shared: Devices) -> None:
    """The source begins anew, as any process would that finds the media."""
    source, _ = shared.source()
    _, process = shared.target()
    verifier = Verifier(4)
    with suppress(DeviceGone), connect(source) as device:
        verifier.submit(device)
        shared.move(device)
        verifier.settle()
        verifier.submit(device, FEW)
        kill(process)
        verifier.settle()
    verifier.check_anew(source)


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


def test_a_drive_moves_that_reaches_its_memory_by_messages(
    shared: Devices, monkeypatch: pytest.MonkeyPatch
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
    moves(shared, 1)


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


def test_accelerators_move_with_programs_and_buffers(shared: Devices) -> None:
    content = bytes(range(256)) * 16
    with connect(shared.source()[0]) as device:
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(program(COPY), 5)
        accelerator.write_input(content)
        for _ in range(2):
            shared.move(device)
        accelerator.start(firmware_id=5)
        assert accelerator.wait(timeout=20).status == StatusId.DONE
        shared.move(device)
        assert accelerator.status().status == StatusId.DONE
        assert accelerator.read_output(len(content)) == content
        accelerator.select(QUERY_FIRMWARE)
        shared.move(device)
        assert accelerator.status().firmware == QUERY_FIRMWARE


def test_a_drive_whose_accelerator_runs_a_job_is_not_moved(shared: Devices) -> None:
    (source, process), (target, _) = shared.source(), shared.target()
    with connect(source) as device:
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(program(ENDLESS))
        accelerator.write_input(bytes(BLOCK))
        accelerator.start(firmware_id=0)
        # Four seconds, in which it need not take a processor.
        for pid in workers(process):
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(PotashError, match="busy"):
            transport(device).move(target)
        for pid in workers(process):
            os.kill(pid, signal.SIGCONT)
        assert accelerator.status().status == StatusId.RUNNING
        accelerator.stop()
        shared.move(device)
        assert accelerator.status().status == StatusId.STOPPED


def workers(device: Process) -> list[int]:
    """The processes that run its programs."""
    deadline = time.monotonic() + 30
    while True:
        below = descendants(device.pid)
        if found := [pid for pid in below if name(pid).startswith("potash-worker")]:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_memory_and_compute_namespaces_move(devices: Devices) -> None:
    path, _ = devices.start(*SIZE, *MEMORY, "--compute-namespace", *BARS)
    target, _ = devices.start("--incoming", *BARS)
    with connect(path) as device:
        memory, compute = MemoryNamespace(device, 2), ComputeNamespace(device, 3)
        memory.write(BLOCK, b"input   " * 512)
        compute.load(20, program(COPY_RANGES))
        compute.load(21, program(COPY_RANGES), activate=False)
        ranges = compute.create_ranges([Bytes(2, BLOCK, BLOCK), Bytes(2, 0, BLOCK)])
        before = compute.programs(), compute.range_sets()
        transport(device).client.region_write(PciRegion.BAR2, 4096, b"in the buffer")
        transport(device).move(target)
        client = transport(device).client
        assert client.region_read(PciRegion.BAR2, 4096, 13) == b"in the buffer"
        assert client.region_read(PciRegion.BAR4, BLOCK, 16) == b"input   " * 2
        assert (compute.programs(), compute.range_sets()) == before
        assert compute.execute(20, ranges) == 7
        assert memory.read(0, BLOCK) == b"input   " * 512


def test_a_drive_in_memory_moves_with_its_namespaces(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with (
        device_process(source, *SIZE, *MEMORY),
        device_process(target, *SIZE, *MEMORY),
        connect(str(source)) as device,
    ):
        memory = MemoryNamespace(device, 2)
        memory.write(BLOCK, b"input   " * 512)
        verifier = Verifier(5)
        verifier.submit(device)
        transport(device).move(str(target))
        verifier.settle()
        assert not verifier.maybe
        verifier.check(device)
        assert memory.read(BLOCK, BLOCK) == b"input   " * 512


def test_a_state_is_saved_and_loaded(devices: Devices, tmp_path: Path) -> None:
    file, other = tmp_path / "state", tmp_path / "other"
    source, process = devices.start(*SIZE, "--save", str(file))
    verifier = Verifier(6)
    device = connect(source)
    verifier.submit(device)
    verifier.settle()
    verifier.submit(device)
    process.terminate()
    assert process.wait(30) == 0
    other.write_bytes(b"nonsense" * 10)
    with pytest.raises(PotashError, match="cannot be loaded: this is no state of a drive"):
        devices.start("--load", str(other))
    loaded, _ = devices.start("--load", str(file))
    transport(device).attach(loaded)
    verifier.submit(device)
    verifier.settle()
    assert not verifier.maybe
    verifier.check(device)
    device.close()


def test_a_state_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PotashError, match="cannot be loaded: No such file"):
        load_state(Mock(), tmp_path / "nowhere")

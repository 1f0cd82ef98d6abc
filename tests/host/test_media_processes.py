"""A real device on real files: started again, killed while it writes, left by its clients."""

import os
import random
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvme_spec.commands import ReadWrite
from nvme_spec.logs import LogPage, SmartLog
from nvme_spec.opcodes import IoOpcode
from potash import sdk
from potash.cli.app import run_app
from potash.sdk import CommandFailed, Device, DeviceGone
from potash.sdk.commands import encoded
from potash.vm.drive import device_process
from support.apu import await_end
from support.in_process import potash
from support.processes import descriptors as opened

EXAMPLE = Path(__file__).parents[2] / "examples" / "add"

MIB = 1 << 20
NAMESPACES = ("--namespace", "8M", "--namespace", "1M:512")
BLOCK_SIZES = {1: 4096, 2: 512}

KILLS = 3
CLIENTS = 20


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "device.sock"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "drive"


def write(device: Device, nsid: int, lba: int, data: bytes, *, fua: bool = False) -> None:
    blocks_z = len(data) // BLOCK_SIZES[nsid] - 1
    command = ReadWrite(lba, blocks_z, fua=fua)
    device.io(IoOpcode.WRITE, nsid=nsid, data_out=data, **encoded(command))


def read(device: Device, nsid: int, lba: int, count: int) -> bytes:
    return device.io(
        IoOpcode.READ,
        nsid=nsid,
        data_in_length=count * BLOCK_SIZES[nsid],
        **encoded(ReadWrite(lba, count - 1)),
    ).data


def health(device: Device) -> SmartLog:
    return SmartLog(device.log_page(LogPage.SMART, SmartLog.SIZE, nsid=0xFFFFFFFF))


def test_a_folder_is_a_drive_that_needs_no_options_again(socket: Path, folder: Path) -> None:
    with (
        device_process(socket, "--media", str(folder), *NAMESPACES),
        sdk.open(f"vfio-user:{socket}") as device,
    ):
        assert device.active_namespaces() == [1, 2]
        assert device.namespace(1).identify().nsze == 8 * MIB // 4096
        assert device.namespace(2).identify().nsze == MIB // 512
        write(device, 2, 7, b"seven   " * 64)
        write(device, 1, 7, b"SEVEN   " * 512)
        busy = potash("serve", "--socket", socket.with_name("other"), "--media", folder)
        assert (busy.returncode, busy.stderr.count("\n")) == (1, 1)
        assert "another device has it open" in busy.stderr
    with device_process(socket, "--media", str(folder)), sdk.open(f"vfio-user:{socket}") as device:
        assert read(device, 2, 7, 1) == b"seven   " * 64
        assert read(device, 1, 7, 1) == b"SEVEN   " * 512
        smart = health(device)
        assert (smart.power_cycles, smart.unsafe_shutdowns) == (2, 0)
        assert (smart.host_write_commands, smart.host_read_commands) == (2, 2)


def test_a_read_only_drive_is_served_and_not_changed(socket: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"r" * 8192)
    with (
        device_process(socket, "--media", str(image), "--read-only"),
        sdk.open(f"vfio-user:{socket}") as device,
    ):
        assert device.read(1, 1) == b"r" * 4096
        with pytest.raises(CommandFailed, match="read-only|Protected"):
            device.write(0, bytes(4096))
        assert health(device).critical_warning == 1 << 3
    assert image.read_bytes() == b"r" * 8192


@pytest.mark.parametrize(
    "arguments",
    [
        ("--namespace", "1G:1024"),
        ("--namespace", "1G:"),
        ("--namespace", "511:512"),
        ("--namespace", "4095"),
        ("--namespace", "1G", "--size", "1G"),
        ("--read-only",),
    ],
)
def test_a_namespace_that_cannot_be_is_a_wrong_use(
    socket: Path, arguments: tuple[str, ...]
) -> None:
    assert run_app(["serve", "--socket", str(socket), *arguments]) == 2


def test_a_drive_that_is_another_one_is_one_sentence(
    socket: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with device_process(socket, "--media", str(folder), *NAMESPACES):
        pass

    def refused(*options: str) -> str:
        assert run_app(["serve", "--socket", str(socket), "--media", str(folder), *options]) == 1
        (said,) = capsys.readouterr().err.splitlines()
        return said

    assert "namespaces.toml" in refused("--size", "1M")
    listed = (folder / "namespaces.toml").read_bytes()
    (folder / "namespaces.toml").write_text("?")
    assert "namespaces.toml" in refused()
    (folder / "namespaces.toml").write_bytes(listed)
    (folder / "namespace-2").unlink()
    assert "namespace-2" in refused()


@pytest.fixture(scope="module")
def small_blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The socket of a drive whose last page is no whole one, and its image: 20003 blocks are 2500
    pages and 3 blocks."""
    folder = tmp_path_factory.mktemp("small")
    socket, image = folder / "s", folder / "image"
    with device_process(socket, "--media", str(image), "--namespace", f"{20003 * 512}:512"):
        yield socket, image


@pytest.mark.parametrize("lba", ["0", "16:1000"])
def test_a_job_works_on_pages_of_a_drive_with_small_blocks(
    small_blocks: tuple[Path, Path], tmp_path: Path, lba: str
) -> None:
    socket, image = small_blocks
    output = tmp_path / "output"
    done = potash(
        *("run", f"vfio-user:{socket}", EXAMPLE / "program.o", EXAMPLE / "input.bin", output),
        *("--lba", lba, "--arg", 520, "--arg", 1024),
    )
    assert done.returncode == 0, done.stderr
    expected = (EXAMPLE / "expected.bin").read_bytes()
    assert output.read_bytes() == expected
    first, _, second = lba.partition(":")
    data = (EXAMPLE / "input.bin").read_bytes()
    blocks = image.read_bytes()
    assert blocks[int(first) * 512 :].startswith(data)
    pages = -(-len(data) // 4096)
    at = int(second) * 512 if second else int(first) * 512 + pages * 4096
    assert blocks[at : at + 4096] == expected.ljust(4096, b"\0")


class Stamps:
    """A host that writes until its device is gone, and knows what each block may then hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stamp = 0
        self.may_hold: dict[tuple[int, int], set[int]] = {}
        """Stamps by namespace and block: the last acknowledged one, and one that is under way."""

    def write_until_gone(self, device: Device) -> None:
        while True:
            nsid = self.random.choice((1, 2))
            count = self.random.choice((1, 2, 8, 32))
            first = self.random.randrange(256 - count)
            self.stamp += 1
            blocks = [(nsid, lba) for lba in range(first, first + count)]
            for block in blocks:
                self.may_hold.setdefault(block, {0}).add(self.stamp)
            data = struct.pack("<Q", self.stamp) * (count * BLOCK_SIZES[nsid] // 8)
            try:
                write(device, nsid, first, data, fua=self.random.random() < 0.1)
            except DeviceGone:
                return
            for block in blocks:
                self.may_hold[block] = {self.stamp}

    def check(self, device: Device) -> None:
        for nsid, size in BLOCK_SIZES.items():
            for start in range(0, 256, 64):
                data = read(device, nsid, start, 64)
                for lba in range(start, start + 64):
                    block = data[(lba - start) * size : (lba - start + 1) * size]
                    found = set(struct.unpack(f"<{size // 8}Q", block))
                    assert len(found) == 1, f"block {lba} of namespace {nsid} is torn"
                    allowed = self.may_hold.get((nsid, lba), {0})
                    assert found <= allowed, f"block {lba} of namespace {nsid} is another's"
                    self.may_hold[nsid, lba] = found


def test_a_device_that_is_killed_while_it_writes_has_kept_every_block(
    socket: Path, folder: Path
) -> None:
    stamps = Stamps(1)
    for kills in range(KILLS + 1):
        with device_process(socket, "--media", str(folder), *NAMESPACES) as process:
            with sdk.open(f"vfio-user:{socket}") as device:
                stamps.check(device)
                smart = health(device)
                assert (smart.power_cycles, smart.unsafe_shutdowns) == (kills + 1, kills)
                if kills == KILLS:
                    return
                gone = os.pidfd_open(process.pid)
                killer = threading.Timer(stamps.random.uniform(0.01, 0.3), process.kill)
                killer.start()
                stamps.write_until_gone(device)
                killer.join()
            await_end(gone)


def client(socket: Path, number: int, written: int) -> None:
    """Write block `number`, say so, and go on writing elsewhere until the end comes."""
    device = sdk.open(f"vfio-user:{socket}")
    device.write(number, struct.pack("<Q", number) * 512)
    os.write(written, b"x")
    for turn in range(1 << 30):
        device.write(CLIENTS + turn % 256, os.urandom(8) * 512)


def killed_client(socket: Path, number: int, delay: float) -> None:
    """Run a client and kill it `delay` seconds after its first write was acknowledged."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            client(socket, number, writing)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"x", f"client {number} could not write"
        time.sleep(delay)  # A moment that nobody can foresee, which is the point of it.
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)


def test_clients_are_killed_and_the_next_one_finds_everything(socket: Path, folder: Path) -> None:
    moments = random.Random(2)
    with device_process(socket, "--media", str(folder), "--size", "16M") as process:

        def descriptors() -> int:
            return len(opened(process.pid))

        killed_client(socket, 0, 0.0)
        with sdk.open(f"vfio-user:{socket}"):
            before = descriptors()
        for number in range(1, CLIENTS):
            killed_client(socket, number, moments.uniform(0, 0.02))
        with sdk.open(f"vfio-user:{socket}") as device:
            assert descriptors() == before
            blocks = device.read(0, CLIENTS)
            for number in range(CLIENTS):
                assert blocks[number * 4096 :][:4096] == struct.pack("<Q", number) * 512, number
            assert health(device).media_errors == 0
        assert process.poll() is None

"""The command line as a user meets it: real processes, files and exit codes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from csd_spec.descriptors import AcceleratorStatus
from csd_spec.status import StatusId
from nvme_spec.opcodes import AdminOpcode
from potash import sdk
from potash.cli.app import COMMANDS, SECTIONS, run_app
from potash.sdk import CommandFailed, DeviceGone, JobFailed
from potash.vm.drive import device_process
from pyvfio_user.client import Client, VfioUserError
from support.apu import await_end, program
from support.bpf import exit_, insn, mov
from support.in_process import potash, potash_command
from support.processes import anonymous_memory, descendants

EXAMPLE = Path(__file__).parents[2] / "examples" / "add"
ARGUMENTS = ["--arg", "520", "--arg", "1024"]
"""Length of the example's model and of its output."""

LIMIT = 60
"""Seconds that a command may take at most."""

SPIN = program(insn(0x05, offset=-1), exit_)
"""A program that never ends."""

RETURN_7 = program(mov(0, 7), exit_)

BLOCK = 4096

SMALL = ("--size", "64M")

WARM_CLIENTS = 8
"""Clients after which a device has imported and allocated what it keeps."""

Command = Callable[..., subprocess.CompletedProcess[str]]


def test_the_help_has_every_command_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["--help"]) == 0
    said = capsys.readouterr().out
    for title, commands in SECTIONS.items():
        listed = said.partition(f"{title}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in listed] == list(commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_lists_commands_by_whole_sentences(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_app([name, "--help"]) == 0
    listed = capsys.readouterr().out.partition("\nCommands:\n")[2].splitlines()
    assert [line for line in listed if line.endswith("...")] == []


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("de", ["plain,demo"]),
        ("demo w", ["plain,write", "plain,wake-word"]),
        ("demo gr", ["plain,grep"]),
        ("demo run dig", ["plain,digits"]),
        ("serve --profile al", ["plain,alkali"]),
        ("serve --drive z-", ["plain,z-nand"]),
        ("guest --drive ./mi", ["file,./mi"]),
        ("drive info fe", ["plain,femu"]),
        ("drive wear --drive q", ["plain,qlc"]),
        ("vta time --layer C11", ["plain,C11"]),
        ("sweep res", ["plain,resnet18"]),
    ],
)
def test_a_shell_completes_commands_and_names(typed: str, completed: list[str]) -> None:
    words = f"potash {typed}"
    asked = {"_POTASH_COMPLETE": "bash_complete", "COMP_WORDS": words}
    command = [Path(sys.executable).parent / "potash"]
    asked["COMP_CWORD"] = str(len(words.split()) - 1)
    done = subprocess.run(
        command, env=os.environ | asked, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.splitlines() == completed


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "device.sock"


@pytest.fixture
def device(socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    with device_process(socket, *SMALL) as process:
        yield process


def test_the_demo_prints_its_steps_and_its_vectors() -> None:
    done = potash_command("demo", "--embedded")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for step in (
        "write",
        "identify",
        "enable",
        "send",
        "local storage as input",
        "select",
        "start",
    ):
        assert any(line.strip().startswith(step) for line in lines), step
    assert lines[-1] == "equal"


class Shared(NamedTuple):
    """A device for tests after which it still works."""

    process: subprocess.Popen[bytes]
    socket: Path

    @property
    def name(self) -> str:
        return f"vfio-user:{self.socket}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    path = tmp_path_factory.mktemp("shared") / "s"
    with device_process(path, *SMALL) as process:
        yield Shared(process, path)


@pytest.mark.parametrize(
    ("lba", "command"), [(None, potash), ("0", potash), ("8:100", potash_command)]
)
def test_run_writes_exactly_what_was_produced(
    shared: Shared, tmp_path: Path, lba: str | None, command: Command
) -> None:
    with sdk.open(shared.name) as opened:
        before = opened.read(0, 128)
    output = tmp_path / "output"
    where = [] if lba is None else ["--lba", lba]
    done = command(
        "run", shared.name, EXAMPLE / "program.o", EXAMPLE / "input.bin", output,
        *ARGUMENTS, *where,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == (EXAMPLE / "expected.bin").read_bytes()
    with sdk.open(shared.name) as opened:
        blocks = opened.read(0, 128)
    if lba is None:
        assert blocks == before, "no block is touched"
    else:
        first, _, second = lba.partition(":")
        data = (EXAMPLE / "input.bin").read_bytes()
        start = int(first) * BLOCK
        assert blocks[start : start + len(data)] == data
        at = (int(second) if second else int(first) + 1) * BLOCK
        assert blocks[at : at + 1024] == (EXAMPLE / "expected.bin").read_bytes()


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (b"\x7fELF, but nothing more", [], "firmware"),
        (None, ["--arg", "999999", "--arg", "1024"], ""),
        (None, ["--arg", "521", "--arg", "1024"], ""),
        (None, ["--lba", "1000000"], "lower block"),
    ],
)
def test_what_cannot_run_is_one_sentence_and_the_next_one_runs(
    shared: Shared, tmp_path: Path, content: bytes | None, arguments: list[str], said: str
) -> None:
    object_file = tmp_path / "program.o"
    object_file.write_bytes(content or (EXAMPLE / "program.o").read_bytes())
    output = tmp_path / "output"
    target = shared.name
    done = potash("run", target, object_file, EXAMPLE / "input.bin", output, *arguments)
    if "999999" in arguments:
        # The example's program itself refuses lengths that cannot be, and returns that it did.
        assert done.returncode == 0
    else:
        assert done.returncode == 1
        assert not output.exists()
        *printed, sentence = done.stderr.splitlines()
        assert sentence.startswith("potash: ") and said in sentence
        assert all(line.startswith("program: ") for line in printed)
    again = potash("run", target, EXAMPLE / "program.o", EXAMPLE / "input.bin", output, *ARGUMENTS)
    assert again.returncode == 0, again.stderr


def test_a_client_that_is_killed_leaves_a_device_for_the_next_one(shared: Shared) -> None:
    content = os.urandom(BLOCK)
    script = (
        "import sys, time, potash.sdk\n"
        f"device = potash.sdk.open('{shared.name}')\n"
        f"device.write(3, bytes.fromhex('{content.hex()}'))\n"
        "device.accelerators()[0].enable()\n"
        "print('written', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"written\n"
        client.kill()
    with sdk.open(shared.name) as opened:
        assert opened.read(3, 1) == content
    assert shared.process.poll() is None


def test_a_command_runs_with_the_garbage_collector_which_skips_what_was_imported() -> None:
    script = (
        "import gc, sys\n"
        "from potash.cli import app, main\n"
        "def run(arguments):\n"
        "    frozen = gc.get_freeze_count()\n"
        "    app.potash.get_command(None, 'serve')\n"
        "    print(gc.isenabled(), 0 < frozen < gc.get_freeze_count())\n"
        "    return 0\n"
        "app.run_app = run\n"
        "main.main()\n"
    )
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, text=True, timeout=LIMIT) == "True True\n"


@pytest.mark.parametrize("clients", [64, pytest.param(1000, marks=pytest.mark.slow)])
def test_clients_that_have_left_take_no_memory(socket: Path, clients: int) -> None:
    with device_process(socket, *SMALL) as process:
        served, before = 0, 1 << 62
        while served < clients:
            # It turns a client away while it takes leave of the one before.
            with suppress(VfioUserError), Client(str(socket)) as client:
                client.negotiate()
                client.region_read(0, 0, 8)
                served += 1
            if served == WARM_CLIENTS:
                before = anonymous_memory(process.pid)
        # Each has a buffer of 1 MiB for its messages.
        assert anonymous_memory(process.pid) - before < 8 << 20


def test_blocks_stay_in_the_media_file_and_a_second_device_is_refused(
    socket: Path, tmp_path: Path
) -> None:
    media, content = tmp_path / "media", os.urandom(2 * BLOCK)
    with device_process(socket, "--media", str(media), "--size", "16M"):
        with sdk.open(f"vfio-user:{socket}") as opened:
            opened.write(1, content)
            opened.flush()
        second = potash("serve", "--socket", tmp_path / "other", "--media", media)
        assert second.returncode == 1
        assert "another device has it open" in second.stderr
        taken = potash("serve", "--socket", socket)
        assert taken.returncode == 1
        assert taken.stderr.count("\n") == 1
    assert media.read_bytes()[BLOCK : 3 * BLOCK] == content
    with device_process(socket, "--media", str(media)), sdk.open(f"vfio-user:{socket}") as opened:
        assert opened.read(1, 2) == content


def test_an_image_keeps_its_size(socket: Path, tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.write_bytes(bytes(3 * BLOCK))
    with device_process(socket, "--media", str(media)), sdk.open(f"vfio-user:{socket}") as opened:
        assert opened.capacity == 3 * BLOCK
    assert media.stat().st_size == 3 * BLOCK


@pytest.mark.parametrize("size", ["0", "4095", "99999999T", "8388608T", "1X"])
def test_a_size_that_no_drive_has_is_a_wrong_use(
    socket: Path, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["serve", "--socket", str(socket), "--size", size]) == 2
    assert size in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing/device.sock", "x" * 200])
def test_a_socket_that_cannot_be_is_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["serve", "--socket", str(tmp_path / name)]) == 1
    said = capsys.readouterr().err
    assert name in said
    assert "Errno" not in said
    assert said.count("\n") == 1


def test_a_trace_that_fills_its_disk_costs_the_drive_nothing(socket: Path) -> None:
    command = [sys.executable, "-m", "potash.cli.main", "serve", "--json", "--trace", "/dev/full"]
    command += ["--size", "16M", "--socket", str(socket)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None
        assert served.stderr is not None
        served.stdout.readline()
        with sdk.open(f"vfio-user:{socket}", timeout=5.0) as opened:
            assert opened.read(0, 1) == bytes(BLOCK)
        served.terminate()
        said = served.stderr.read()
        assert served.wait(LIMIT) == 0
    assert said.count("the trace ends here") == 1
    assert "No space left" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_leaves_no_socket_and_no_process(
    device: subprocess.Popen[bytes], socket: Path, number: signal.Signals
) -> None:
    with sdk.open(f"vfio-user:{socket}") as opened:
        opened.accelerators()[0].enable()
    below = [os.pidfd_open(pid) for pid in descendants(device.pid)]
    assert below
    device.send_signal(number)
    assert device.wait(LIMIT) == 0
    assert not socket.exists()
    for pidfd in below:
        await_end(pidfd)


def test_a_killed_device_leaves_no_process_and_its_client_is_told(
    device: subprocess.Popen[bytes], socket: Path
) -> None:
    with sdk.open(f"vfio-user:{socket}") as opened:
        opened.accelerators()[0].enable()
        below = [os.pidfd_open(pid) for pid in descendants(device.pid)]
        device.kill()
        with pytest.raises(DeviceGone):
            opened.read(0, 1)
    for pidfd in below:
        await_end(pidfd)


def test_registers_and_blocks_answer_while_a_job_computes(shared: Shared) -> None:
    with sdk.open(shared.name) as opened:
        accelerator = opened.accelerators()[0]
        accelerator.enable()
        accelerator.write_input(b"data")
        accelerator.send_firmware(SPIN)
        accelerator.start(firmware_id=0)
        for lba in range(50):
            opened.write(lba, bytes([lba]) * BLOCK)
            assert opened.read(lba, 1) == bytes([lba]) * BLOCK
        opened.admin(AdminOpcode.GET_FEATURES, cdw10=7)
        accelerator.stop()
        accelerator.send_firmware(RETURN_7)
        accelerator.start(firmware_id=0)
        assert accelerator.wait(LIMIT).return_value == 7


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["APU", "fork server", "worker"])
def test_a_killed_process_fails_its_job_alone_and_the_next_job_runs(
    shared: Shared, depth: int
) -> None:
    with sdk.open(shared.name) as opened:
        accelerator = opened.accelerators()[0]
        accelerator.enable()
        accelerator.write_input(b"data")
        accelerator.send_firmware(SPIN)
        accelerator.start(firmware_id=0)
        deadline = time.monotonic() + LIMIT
        while len(descendants(shared.process.pid)) <= depth and time.monotonic() < deadline:
            assert accelerator.status().status == StatusId.RUNNING
        os.kill(descendants(shared.process.pid)[depth], signal.SIGKILL)
        opened.write(9, b"x" * BLOCK)
        assert opened.read(9, 1) == b"x" * BLOCK
        with pytest.raises(JobFailed) as failed:
            _retrying(lambda: accelerator.wait(LIMIT))
        assert failed.value.status.status == StatusId.FAILED
        lost = [entry for entry in failed.value.log.entries if entry.type == 0x105]
        assert lost, "the log does not say that a process was lost"
        # Firmware and the enable state have survived, whatever was killed.
        assert accelerator.read_firmware(len(SPIN)) == SPIN
        accelerator.send_firmware(RETURN_7)
        accelerator.start(firmware_id=0)
        assert _retrying(lambda: accelerator.wait(LIMIT)).return_value == 7


def _retrying(ask: Callable[[], AcceleratorStatus]) -> AcceleratorStatus:
    """Ask again while the device says that it may be asked again."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return ask()
        except CommandFailed as error:
            if error.dnr or time.monotonic() > deadline:
                raise

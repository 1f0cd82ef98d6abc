"""Faults on command lines, against a device that really has them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash import sdk
from potash.cli.app import run_app
from potash.sdk import Accelerator, CommandFailed, CommandTimeout, Device, JobFailed, faults
from potash.vm.drive import device_process
from support.apu import program
from support.bpf import exit_, insn, mov
from support.in_process import potash

LIMIT = 60
RETURN_7 = program(mov(0, 7), exit_)
FOREVER = program(insn(0x05, offset=-1), exit_)

FILE = """
[[fault]]
on = "io write"
status = "WRITE_FAULT"
dnr = true
lba = "100..199"

[[fault]]
on = "admin identify"
status = "INTERNAL_ERROR"
count = 1
after = 1000
"""


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("device")
    (folder / "faults.toml").write_text(FILE)
    options = ["--size", "64M", "--allow-faults", "--faults", str(folder / "faults.toml")]
    options += ["--fault", "io read status=UNRECOVERED_READ_ERROR count=3"]
    with device_process(folder / "s", *options):
        yield folder / "s"


@pytest.fixture
def device(socket: Path) -> Iterator[Device]:
    """Without any of these."""
    with sdk.open(f"vfio-user:{socket}") as device:
        faults.clear(device)
        yield device
        faults.clear(device)


def failing(device: Device, lba: int = 0) -> int:
    with pytest.raises(CommandFailed) as caught:
        device.read(lba, 1)
    return caught.value.status


def test_a_device_is_started_with_faults_and_takes_more(socket: Path) -> None:
    target = f"vfio-user:{socket}"
    with sdk.open(target) as device:
        assert [failing(device) for _ in range(3)] == [0x281] * 3
        assert len(device.read(0, 1)) == 4096
        device.write(99, bytes(4096))
        with pytest.raises(CommandFailed) as caught:
            device.write(199, bytes(4096))
        assert (caught.value.status, caught.value.dnr) == (0x280, True)
    done = potash("fault", "list", target, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["faults"] == [
        {"id": 1, "fault": "io read status=UNRECOVERED_READ_ERROR count=3", "triggered": 3,
         "spent": True},
        {"id": 2, "fault": "io write status=WRITE_FAULT dnr lba=100..199", "triggered": 1,
         "spent": False},
        {"id": 3, "fault": "admin identify status=INTERNAL_ERROR count=1 after=1000", "triggered": 0,
         "spent": False},
    ]  # fmt: skip
    done = potash("fault", "add", target, "media", "read", "lba=5+2", "--json")
    assert json.loads(done.stdout) == {"id": 4, "fault": "media read lba=5..6"}
    with sdk.open(target) as device:
        assert failing(device, 6) == 0x281
        device.read(7, 1)
    done = potash("fault", "clear", target, "4")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with sdk.open(target) as device:
        device.read(6, 1)
        faults.clear(device)
    assert potash("fault", "list", target).stdout == "no faults\n"


def test_a_session_of_one_host_has_them_too(socket: Path) -> None:
    script = "enable\nfault add io control status=INTERNAL_ERROR dnr count=1\nreset\n"
    done = potash("acc", "shell", f"vfio-user:{socket}", stdin=script)
    assert done.returncode == 1
    assert done.stdout.endswith(": io control status=INTERNAL_ERROR dnr count=1\n")
    assert done.stderr == "potash: Control failed: Internal Error (SCT 0h, SC 06h)\n"
    assert potash("fault", "clear", f"vfio-user:{socket}").returncode == 0


def test_what_cannot_be_asked_for_is_one_sentence(socket: Path) -> None:
    target = f"vfio-user:{socket}"
    done = potash("fault", "add", target, "io reed lost")
    assert done.returncode == 2
    assert "there is no opcode reed" in done.stderr
    done = potash("fault", "clear", target, "77")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Invalid Field" in done.stderr


def test_an_answer_that_never_comes_times_out_and_the_device_goes_on(device: Device) -> None:
    faults.add(device, "io read lost count=1")
    with pytest.raises(CommandTimeout):
        device.transport.submit(_read(device), timeout=0.1).result()
    assert len(device.read(0, 1)) == 4096


def _read(device: Device) -> sdk.transport.Request:
    return sdk.transport.Request(False, 0x02, 1, data_in_length=device.block_size)


def test_an_interrupt_that_is_dropped_leaves_its_completion_to_be_found(device: Device) -> None:
    """Our own driver looks at its queue when nothing has come for a while."""
    faults.add(device, "interrupt vector=1 count=1")
    device.read(0, 1)
    assert faults.listed(device)[0].triggered == 1


def start_when_it_is_back(accelerator: Accelerator, firmware: int) -> None:
    """The device starts another APU; commands fail until it has, and say that it is worth
    trying."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            accelerator.start(firmware)
            return
        except CommandFailed as error:
            assert (error.status, error.dnr) == (0x006, False)
            assert time.monotonic() < deadline


def test_the_apu_dies_and_the_next_job_runs(device: Device) -> None:
    (accelerator,) = device.accelerators()
    accelerator.enable()
    accelerator.write_input(b"data")
    accelerator.send_firmware(FOREVER, 1)
    accelerator.send_firmware(RETURN_7, 2)
    for moment in ("start", "job", "now"):
        if moment == "start":
            faults.add(device, "apu at=start")
            with pytest.raises(CommandFailed) as caught:
                accelerator.start(1)
            assert (caught.value.status, caught.value.dnr) == (0x006, False)
        else:
            if moment == "job":
                faults.add(device, "apu at=job")
            accelerator.start(1)
            if moment == "now":
                faults.add(device, "apu at=now")
            with pytest.raises(JobFailed):
                accelerator.wait(timeout=LIMIT)
        device.read(0, 1)
        start_when_it_is_back(accelerator, 2)
        assert accelerator.wait(timeout=LIMIT).return_value == 7
    assert [fault.triggered for fault in faults.listed(device)] == [1, 1, 1]


def test_a_device_that_takes_no_faults_says_what_to_do(tmp_path: Path) -> None:
    with device_process(tmp_path / "s", "--size", "1M"):
        done = potash("fault", "add", f"vfio-user:{tmp_path / 's'}", "io read lost")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "potash: this device takes no faults; start it with --allow-faults (potash serve, potash "
        "guest)\n"
    )


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--fault", "io read"], 2, "one of status=, delay= and lost"),
        (["--fault", "apu at=now"], 1, "is for a device that runs"),
        (["--faults", "{file}"], 1, "[[fault]] tables and nothing else"),
    ],
)
def test_a_device_does_not_start_with_what_is_no_fault(
    tmp_path: Path, options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text("faults = 3")
    words = [word.format(file=tmp_path / "x.toml") for word in options]
    assert run_app(["serve", "--socket", str(tmp_path / "s"), *words]) == code
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "s").exists()

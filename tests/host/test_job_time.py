"""`potash serve --time modelled`: what jobs take, as a client of the socket is told."""

from __future__ import annotations

import json
import runpy
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import potash.sdk
from csd_spec.opcodes import PAGE_SIZE
from csd_spec.status import StatusId
from csd_spec.traffic import CompletionKind
from potash.cli.app import run_app
from potash.sdk.accelerator import JobResult
from potash.sdk.memory_namespace import Bytes
from potash.vm.drive import serving
from potash_device.cores import DEFAULT, Price, Work
from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.timing import parameters
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Runtime
from support.apu import program
from support.bpf import exit_, insn, load, mov, store
from support.docs import ROOT

MODELLED = ("--time", "modelled", "--size", "64M", "--accelerator", "64M:64K")
"""A program that does not say how much it has written has written all of the output buffer."""
ADD = ROOT / "examples" / "add"
DIGITS = ROOT / "examples" / "digits"

FACTOR = 20


def loop(count: int) -> bytes:
    """A product, two sums, a load and a jump each time; two moves, a store and the exit."""
    return program(
        mov(0, 0),
        mov(3, 0),
        load(4, 1),
        insn(0x0F, 0, 4),
        insn(0x2F, 4, 4),
        insn(0x07, 3, imm=1),
        insn(0xA5, 3, offset=-5, imm=count),
        store(2, 0),
        exit_,
    )


LOOPS = 20_000
LOOP = loop(LOOPS)
LOOP_WORK = Work((2 + 2 * LOOPS, LOOPS, 0, LOOPS, 1, 0, LOOPS, 1))
LOOP_NS = Price(DEFAULT)(LOOP_WORK)
SLOW = replace(DEFAULT, clock_hz=700_000_000)
ZEROES = {1 << 20: 0x1429_8C12, 8 << 20: 0x1E45_3952}
"""CRC-32C of as many zeroes, by `support.checksums`, which takes seconds."""


def run(socket: Path, image: bytes | Path, data: bytes, **options: object) -> JobResult:
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        return device.accelerator().run(image, data, timeout=60, **options)  # type: ignore[arg-type]  # as `run` has them


@pytest.fixture(scope="module")
def drive() -> Iterator[Path]:
    with serving(*MODELLED) as socket:
        yield socket


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One with all command sets and another processor, whose modelled times are multiplied."""
    profile = tmp_path_factory.mktemp("profile") / "drive.toml"
    profile.write_text(f'base = "tlc"\n[processor]\nclock_hz = {SLOW.clock_hz}\n')
    options = ("--memory-namespace", "16M", "--compute-namespace", "--drive", str(profile))
    with serving(*MODELLED, *options, "--time-factor", str(FACTOR)) as socket:
        yield socket


@pytest.fixture(scope="module")
def interpreting() -> Iterator[Path]:
    with serving(*MODELLED, "--engine", "interpreter") as socket:
        yield socket


def test_a_program_takes_the_time_of_its_instructions(drive: Path) -> None:
    """Whatever runs it: `test_apu_modelled.py` has the interpreter, too."""
    results = [run(drive, LOOP, bytes(64)) for _ in range(3)]
    assert [one.status.modelled for one in results] == [LOOP_NS] * 3
    assert all(one.measured >= LOOP_NS for one in results)


def test_a_result_says_what_was_moved_and_when(drive: Path) -> None:
    local = potash.sdk.LocalStorage(1024, output_lba=2048, output_size=PAGE_SIZE)
    result = run(drive, LOOP, bytes(3 * PAGE_SIZE), local=local)
    traffic = result.traffic
    assert traffic is not None
    assert traffic.moved == 3 * PAGE_SIZE + PAGE_SIZE
    assert traffic.from_host >= 3 * PAGE_SIZE + len(LOOP)
    assert traffic.to_host >= PAGE_SIZE
    (job,) = [one for one in traffic.completions if one.kind == CompletionKind.JOB]
    (output,) = [one for one in traffic.completions if one.kind == CompletionKind.OUTPUT]
    assert output.arrived == job.completed
    assert output.completed - job.arrived == result.status.modelled


def test_a_chain_takes_the_sum_of_its_steps(drive: Path) -> None:
    """Only the last step's output is written to the drive."""
    local = potash.sdk.LocalStorage(1024, output_lba=2048, output_size=PAGE_SIZE)
    result = run(drive, LOOP, bytes(PAGE_SIZE), local=local, then=[(LOOP, []), (LOOP, [])])
    assert result.traffic is not None
    completions = result.traffic.completions
    first, *jobs = [one.modelled for one in completions if one.kind == CompletionKind.JOB]
    (output,) = [one for one in completions if one.kind == CompletionKind.OUTPUT]
    assert first > LOOP_NS and jobs == [LOOP_NS] * 2, "only the first one reads blocks"
    assert result.status.modelled == first + sum(jobs) + output.modelled


def test_a_factor_multiplies_what_jobs_take_too(slowed: Path) -> None:
    result = run(slowed, LOOP, bytes(64))
    assert result.status.modelled == FACTOR * Price(SLOW)(LOOP_WORK)
    assert result.measured >= FACTOR * Price(SLOW)(LOOP_WORK)


def vta_cycles(model: bytes, inputs: bytes) -> int:
    """Cycles of the streams of one run of a model, by the readable timing model."""
    config = Config.default()
    core = Core.create(config, 64 << 20)
    streams: list[bytes] = []
    core.observer = lambda stream, began: streams.append(stream)
    with Runtime(core) as runtime:
        delegate = VtaDelegate(runtime)
        loaded = Model(model, delegate=delegate)
        loaded(inputs, memoryview(bytearray(1 << 20)))
        assert loaded.macs == 0
    assert streams
    return sum(timing.run(config, parameters.PYNQ, one, compiled=False).cycles for one in streams)


def test_a_model_takes_the_cycles_of_the_tensor_accelerator(drive: Path) -> None:
    model = (DIGITS / "model.tflite").read_bytes()
    images = (DIGITS / "images.bin").read_bytes()
    count = 3
    cycles = count * vta_cycles(model, images[:64])
    data = model + images[: count * 64]
    numbers = [len(model), 64, count, 10]
    results = [run(drive, DIGITS / "program.o", data, args=numbers) for _ in range(2)]
    first, second = (one.status.modelled for one in results)
    assert first == second
    assert first - cycles * 10 < 200_000, "programs and bytes besides, at 10 ns for a cycle"
    assert first > cycles * 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drive", "interpreting"])
def test_a_resnet_takes_what_its_layers_do(name: str, request: pytest.FixtureRequest) -> None:
    """All of its convolutions on the tensor accelerator: 173 ms (docs/bench.md), and some beside.

    Its first run compiles what the others find in the cache.
    """
    example = runpy.run_path(str(ROOT / "examples" / "resnet18" / "example.py"))
    data = example["input_data"]()
    arguments, image = example["arguments"](data), ROOT / "examples" / "resnet18" / "program.o"
    socket = request.getfixturevalue(name)
    results = [run(socket, image, data, args=arguments) for _ in range(2)]
    assert all(one.output == example["expected"](data) for one in results)
    first, second = (one.status.modelled for one in results)
    model, picture, _ = example["inference"](data)
    cycles = vta_cycles(model, picture)
    assert first == second
    assert cycles * 10 < first < cycles * 10 + 4_000_000


def test_a_job_reads_and_writes_blocks_at_the_times_of_the_drive(drive: Path) -> None:
    data = (ADD / "input.bin").read_bytes()
    with potash.sdk.open(f"vfio-user:{drive}") as device:
        accelerator = device.accelerator()
        plain = accelerator.run(ADD / "program.o", data, args=[520, 1024])
        local = accelerator.run(
            ADD / "program.o", data, args=[520, 1024], local=potash.sdk.LocalStorage(0)
        )
    assert plain.output == local.output
    # A read of flash, and a write to the drive's buffer, at least.
    assert local.status.modelled - plain.status.modelled > 5_000


def test_reports_have_modelled_and_measured_time(
    drive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, data = tmp_path / "p.o", tmp_path / "in"
    image.write_bytes(LOOP)
    data.write_bytes(bytes(64))

    def said(*arguments: object) -> str:
        assert run_app([str(one) for one in arguments]) == 0
        return capsys.readouterr().out

    device = f"vfio-user:{drive}"
    job = ("run", device, image, data, tmp_path / "out")
    report = json.loads(said(*job, "--json"))
    assert report["modelled_ns"] == LOOP_NS
    assert report["measured_ns"] >= LOOP_NS
    assert f"modelled {LOOP_NS / 1e6:.3f} ms, measured" in said(*job)
    script = tmp_path / "script"
    script.write_text(
        f"enable\nfw send {image}\nwrite {data}\nstart --firmware 0\nwait\nstatus --json\n"
    )
    shown = said("acc", "shell", device, script)
    assert f"  modelled: {LOOP_NS / 1e6:.3f} ms\n" in shown
    assert json.loads(shown[shown.rindex("{") :])["modelled_ns"] == LOOP_NS


def test_an_execution_takes_no_less_than_its_core_would(slowed: Path) -> None:
    length = 8 << 20
    modelled = FACTOR * Price(SLOW)(Work(bytes=length))
    assert modelled > 40_000_000
    with potash.sdk.open(f"vfio-user:{slowed}") as device:
        compute, memory = device.compute_namespace(), device.memory_namespace()
        began = time.monotonic_ns()
        ranges = [Bytes(memory.nsid, 0, length)]
        assert compute.execute(DeviceProgram.CRC32C, ranges) == ZEROES[length]
        assert time.monotonic_ns() - began >= modelled


def test_an_execution_is_reported_with_both_times(
    slowed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = 1 << 20
    modelled = FACTOR * Price(SLOW)(Work(bytes=length))

    def execute(*more: str) -> str:
        asked = ("cp", "execute", f"vfio-user:{slowed}", "--index", str(int(DeviceProgram.CRC32C)))
        assert run_app([*asked, "--range", f"0:{length}", *more]) == 0
        return capsys.readouterr().out

    report = json.loads(execute("--json"))
    assert report["return_value"] == ZEROES[length]
    assert report["modelled_ns"] == modelled
    assert report["measured_ns"] >= modelled
    assert f"; modelled {modelled / 1e6:.3f} ms, measured " in execute()


def test_a_job_that_is_not_due_is_stopped_at_once(slowed: Path) -> None:
    with potash.sdk.open(f"vfio-user:{slowed}") as device:
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(loop(1 << 30), 0)  # takes seconds to emulate
        accelerator.write_input(bytes(64))
        accelerator.start(0)
        accelerator.stop()
        assert accelerator.status().status == StatusId.STOPPED
        assert accelerator.status().modelled == 0
        accelerator.send_firmware(loop(1 << 25), 0)  # takes a moment; modelled, 5 s
        accelerator.start(0)
        time.sleep(0.5)
        assert accelerator.status().status == StatusId.RUNNING
        accelerator.stop()
        assert accelerator.status().status == StatusId.STOPPED

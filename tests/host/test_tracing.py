"""`potash trace`: what a device did, as a viewer sees it."""

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from potash import sdk
from potash.models.networks import make
from potash.models.running import Target
from potash.tracing import modelled
from potash.tracing.recording import VARIABLE, folder_for_lines, write_trace
from potash.vm.drive import device_process
from potash.vta.inference import time_nodes
from potash_device.vta.config import CORES, Config
from potash_device.vta.isa import Finish, encode_stream
from potash_device.vta.timing.parameters import PYNQ
from support.in_process import potash, potash_command
from support.processes import descriptors as opened
from support.reports import check
from support.tracing import Viewed

ADD = Path(__file__).parents[2] / "examples" / "add"
LIMIT = 60
BLOCK = 4096


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    """A run of the example that adds two vectors on the tensor accelerator."""
    out = tmp_path_factory.mktemp("trace") / "trace.json"
    done = potash_command("trace", "-o", out, "demo", "add", "--embedded", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # the command's own output is passed through
    check("demo run", report)
    assert report["equal"] is True
    expected = list(memoryview((ADD / "expected.bin").read_bytes()).cast("b"))
    assert report["output"] == report["expected"] == expected
    assert str(out) in done.stderr
    return Viewed(out)


def test_every_process_of_the_device_is_there(demo: Viewed) -> None:
    names = {"device (RPU)", "APU", "worker 0", "worker 0: VTA, modelled at 100 MHz"}
    # On a busy machine, another worker may have begun before the device ends.
    assert set(demo.processes.values()) == names


def test_slices_lie_in_one_another_or_beside(demo: Viewed) -> None:
    demo.check_nesting()


def test_arrows_lead_from_slice_to_slice_and_never_back_in_time(demo: Viewed) -> None:
    demo.check_arrows()


def test_a_job_is_followed_through_all_layers_on_one_clock(demo: Viewed) -> None:
    """What must come before what, each in a process of its own."""
    start = demo.named("accelerator_control", "device", "queue 1")[-1]
    sent, received = (
        next(
            one
            for one in demo.named("Request accelerator_control", process)
            if one.args["way"] == way and one.begin >= start.begin
        )
        for process, way in (("device", "send"), ("APU", "receive"))
    )
    assert start.begin < sent.begin < received.begin < start.end, "the job begins in the command"
    job, running = demo.one("job", "APU"), demo.one("running", "APU")
    writing = demo.one("writing", "APU")
    assert received.begin < job.begin
    assert job.args == {"result": "DONE"}
    assert job.holds(running) and job.holds(writing) and running.end <= writing.begin
    written = demo.one("write", "device", "media_")
    assert written.begin > writing.begin and written.end < writing.end
    inside = [
        demo.one("job", "worker"),
        demo.one("program", "worker"),
        demo.one("tflite_vta", "worker"),
        demo.one("run model", "worker"),
        demo.one("partition on the VTA", "worker"),
        demo.one("VTA stream", "worker"),
    ]
    assert running.begin < inside[0].begin
    # The worker says that it has ended before it tells the APU of it.
    assert inside[0].end < running.end
    for outer, inner in pairwise(inside):
        assert outer.begin < inner.begin and inner.end < outer.end, (outer, inner)
    helpers = [one.name for one in demo.slices if one.args.get("helper")]
    assert helpers[-1] == "set_output_length" and "print" in helpers


def test_modules_are_shown_in_modelled_time_from_when_their_stream_began(demo: Viewed) -> None:
    stream = demo.one("VTA stream")
    modules = [one for one in demo.slices if "modelled" in one.process]
    assert {one.track for one in modules} == {
        "nodes", "fetch", "LOAD", "COMPUTE", "STORE", "DRAM reads", "DRAM writes"
    }  # fmt: skip
    begin = min(one.begin for one in modules)
    assert begin == pytest.approx(stream.begin, abs=0.002)
    cycle = 1e6 / PYNQ.clock
    length = max(one.end for one in modules) - begin
    assert length == pytest.approx(stream.args["modelled_cycles"] * cycle, abs=2 * cycle)
    assert len([one for one in modules if one.track == "fetch"]) == stream.args["instructions"]
    node = demo.one("ADD")
    assert node.track == "nodes"
    assert node.args["instructions"] == stream.args["instructions"]
    assert node.args["cycles"] == stream.args["modelled_cycles"]
    working = [one for one in modules if one.track in ("LOAD", "COMPUTE", "STORE")]
    assert min(one.begin for one in working) <= node.begin < node.end
    assert node.end - node.begin == pytest.approx(node.args["cycles"] * cycle, abs=0.002)
    tokens = [event for event in demo.events if event["ph"] == "s" and event["cat"] == "token"]
    assert {event["name"] for event in tokens} >= {"COMPUTE to STORE", "STORE to COMPUTE"}


def test_transfers_and_their_commands_agree(demo: Viewed) -> None:
    """The example's firmware, its input and its output, by the sizes that the demo tells."""
    moved = [one.name for one in demo.slices if one.track == "DMA"]
    program = (ADD / "program.o").stat().st_size
    assert moved.count(f"from host, {program} bytes") == 1
    assert moved.count("from host, 4096 bytes") == 1, "a block of input"
    read = demo.one("read", "device", "queue 1")
    assert (read.args["slba"], read.args["blocks"]) == (1, 1)
    assert read.args["status"].startswith("Success")
    inside = [one for one in demo.slices if one.track == "DMA" and read.holds(one)]
    assert [one.args["bytes"] for one in inside] == [BLOCK]


def test_registers_doorbells_and_interrupts_are_named(demo: Viewed) -> None:
    writes = demo.instants("host writes")
    assert "AQA = 0xff00ff" in writes
    assert writes.index("queue 0: tail 1") < writes.index("queue 1: tail 1")
    assert "vector 1" in demo.instants("interrupts")
    states = [one for one in demo.instants("controller") if one != "DISABLED"]
    assert states == ["ENABLING", "READY"]


# From lines of a device.


@pytest.fixture(scope="module", params=["in memory", "in a file"])
def lines(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A device that has been read with several commands at a time, in the way that is short
    else."""
    folder = tmp_path_factory.mktemp("lines")
    path, socket = folder / "lines.jsonl", folder / "device.sock"
    media = ["--media", str(folder / "media")] if request.param == "in a file" else []
    with (
        device_process(socket, "--size", "64M", "--trace", str(path), *media),
        sdk.open(f"vfio-user:{socket}") as device,
    ):
        device.write(0, bytes(range(256)) * 16 * 600)
        assert len(device.read(0, 600)) == 600 * BLOCK
    yield path


def test_lines_are_made_a_trace_later(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json.gz"
    done = potash("trace", "--read", lines, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    plain = tmp_path / "trace.json"
    plain.write_bytes(gzip.decompress(out.read_bytes()))
    viewed = Viewed(plain)
    assert report["events"] == sum(event["ph"] != "M" for event in viewed.events)
    assert (report["devices"], report["unreadable"]) == (1, 0)
    viewed.check_nesting()
    for name in ("read", "write"):
        commands = viewed.named(name, "device", "queue 1")
        assert sum(one.args["blocks"] for one in commands) == 600
        assert len({one.args["slba"] for one in commands}) == len(commands)
    moved = [one.args for one in viewed.slices if one.track == "DMA" and one.args["qid"] == 1]
    assert sum(one["bytes"] for one in moved if one["to_host"]) == 600 * BLOCK
    assert sum(one["bytes"] for one in moved if not one["to_host"]) == 600 * BLOCK


def test_a_device_that_is_served_makes_a_trace_at_its_end(tmp_path: Path) -> None:
    out, socket = tmp_path / "served.json", tmp_path / "device.sock"
    with (
        device_process(socket, "--size", "16M", "--trace", str(out)),
        sdk.open(f"vfio-user:{socket}") as device,
    ):
        device.read(0, 1)
        assert not out.exists()
    assert Viewed(out).one("read", "device", "queue 1").args["blocks"] == 1


def line(point: str, moment: float, **known: object) -> str:
    return json.dumps({"time": moment, "pid": 7, "point": point, **known}) + "\n"


def entry(cid: int, opcode: int = 2, qid: int = 1) -> dict[str, object]:
    dwords = {f"cdw{number}": 0 for number in range(10, 16)}
    return {"qid": qid, "cid": cid, "opcode": opcode, "nsid": 1, **dwords}


def answer(cid: int, status: int = 0) -> dict[str, object]:
    return {"qid": 1, "cid": cid, "status": status, "dnr": False, "dw0": 0}


def viewed(tmp_path: Path, *sources: str) -> tuple[Viewed, Any]:
    paths = []
    for number, source in enumerate(sources):
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_text(source)
    out = tmp_path / "trace.json"
    recorded = write_trace(paths, out, lambda *_: None)
    return Viewed(out), recorded


PROCESS = line("process", 10.0, name="potash")


def test_commands_at_a_time_are_beside_each_other(tmp_path: Path) -> None:
    found, _ = viewed(
        tmp_path,
        PROCESS
        + line("rpu.fetch", 10.001, **entry(1))
        + line("rpu.fetch", 10.002, **entry(2))
        + line("rpu.complete", 10.003, **answer(1))
        + line("rpu.fetch", 10.004, **entry(3))
        + line("rpu.complete", 10.005, **answer(2, status=0x281))
        + line("rpu.complete", 10.006, **answer(3)),
    )
    drawn = [(one.track, one.args["cid"], one.begin, one.end) for one in found.slices]
    assert drawn == [
        ("queue 1", 1, 1000.0, 3000.0),
        ("queue 1 (2)", 2, 2000.0, 5000.0),
        ("queue 1", 3, 4000.0, 6000.0),
    ]
    assert "Unrecovered Read Error" in found.slices[1].args["status"]


def test_what_a_reset_has_ended_and_what_was_never_answered_have_an_end(tmp_path: Path) -> None:
    found, _ = viewed(
        tmp_path,
        PROCESS
        + line("rpu.fetch", 10.001, **entry(1))
        + line("rpu.state", 10.002, state="DISABLED")
        + line("rpu.fetch", 10.003, **entry(1, opcode=1))
        + line("board.interrupt", 10.004, vector=1),
    )
    ends = [(one.name, one.end, one.args["status"]) for one in found.slices]
    assert ends == [("read", 2000.0, "ended by a reset"), ("write", 4000.0, "unanswered")]


def test_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    """A process that is killed may have written half of its last line, and anything may follow."""
    found, recorded = viewed(
        tmp_path,
        PROCESS
        + line("rpu.fetch", 10.001, **entry(1))
        + '{"time": 10.0015, "poi'
        + line("rpu.complete", 10.002, **answer(1))
        + "[]\n7\n"
        + line("rpu.complete", 10.003)
        + line("dma", 10.004, began="now", to_host=True, bytes=1)
        + line("vta.stream", 10.004, began=10.0, stream="AAAA")
        + line("vta.core", 10.004, config={"LOG_NONE": 1})
        + line("of another version", 10.005, x=1),
    )
    assert recorded.unreadable == 7
    assert [one.args["status"] for one in found.slices] == ["unanswered"]


@pytest.mark.parametrize("lines", ["in memory"], indirect=True)
def test_bent_lines_still_make_a_trace_that_can_be_read(lines: Path, tmp_path: Path) -> None:
    """Whatever somebody makes of a file of lines, `--read` gives JSON and no traceback."""
    random, whole = Random(11), lines.read_text().splitlines(keepends=True)
    others: list[object] = [None, -1, 1e18, float("nan"), "x", [], {}, 1 << 70, True, "1e999"]
    for _ in range(3):
        bent = []
        for text in whole:
            known, kind = json.loads(text), random.random()
            if kind < 0.2:
                known[random.choice(list(known))] = random.choice(others)
            elif kind < 0.3:
                del known[random.choice(list(known))]
            made = json.dumps(known).replace('"1e999"', "1e999") + "\n"
            bent.append(made[: random.randrange(len(made))] if kind > 0.95 else made)
        source, out = tmp_path / "bent.jsonl", tmp_path / "trace.json"
        source.write_text("".join([whole[0], *bent]))
        assert write_trace([source], out, lambda *_: None).unreadable
        document = json.loads(out.read_text(), parse_constant=pytest.fail)
        assert document["traceEvents"]


def test_devices_are_told_apart(tmp_path: Path) -> None:
    other = PROCESS.replace('"pid": 7', '"pid": 8').replace("10.0", "10.5")
    found, recorded = viewed(tmp_path, PROCESS, other)
    assert recorded.devices == 2
    assert found.processes == {7: "device 0: device (RPU)", 8: "device 1: device (RPU)"}


def test_streams_that_overlap_in_modelled_time_are_shown_one_behind_the_other(
    tmp_path: Path,
) -> None:
    config = Config.default()
    stream = encode_stream([Finish()], config)
    text = base64.b64encode(stream).decode()
    found, _ = viewed(
        tmp_path,
        line("process", 10.0, name="potash-worker0")
        + line("vta.core", 10.0, config=config.to_mapping())
        + line("vta.stream", 10.00000005, began=10.0, stream=text)
        + line("vta.stream", 10.000003, began=10.0000001, stream=text),
    )
    first, second = found.named("VTA stream")
    assert first.args["shown_later_by_us"] == 0
    took = first.args["modelled_us"]
    assert took > 0.1, "a chip is faster than that, and this shows nothing"
    assert second.args["shown_later_by_us"] == pytest.approx(took - 0.1, abs=0.002)
    found.check_nesting()


def test_of_streams_beyond_the_limit_their_modules_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modelled, "SHOWN_IN_FULL", 0)
    config = Config.default()
    text = base64.b64encode(encode_stream([Finish()], config)).decode()
    found, _ = viewed(
        tmp_path,
        line("process", 10.0, name="potash-worker0")
        + line("vta.core", 10.0, config=config.to_mapping())
        + line("vta.stream", 10.1, began=10.0, stream=text),
    )
    stream = found.one("VTA stream")
    modules = [one for one in found.slices if one is not stream]
    assert {one.name for one in modules} == {
        "LOAD, in all", "COMPUTE, in all", "STORE, in all"
    }  # fmt: skip
    for one in modules:
        assert one.end - one.begin == pytest.approx(stream.args["modelled_us"], abs=0.002)
    found.check_arrows()


# The command.


def test_a_model_without_a_drive_is_traced(tmp_path: Path) -> None:
    model, values, out = (tmp_path / name for name in ("m.tflite", "in.bin", "trace.json"))
    model.write_bytes(make("conv-conv-add"))
    values.write_bytes(bytes(300))
    command = ("model", "run", model, "--input", values, "--compare", "--vta-config", "paper")
    done = potash_command("trace", "-o", out, *command)
    assert done.returncode == 0, done.stderr
    viewed = Viewed(out)
    viewed.check_nesting()
    viewed.check_arrows()
    names = [f"device {n}: model on {target}" for n, target in enumerate(Target)]
    core = f"{names[0]}: VTA, modelled at 100 MHz"
    assert set(viewed.processes.values()) == {*names, core}
    for name in names:
        load, run = viewed.one("load model", name), viewed.one("run model", name)
        assert load.end <= run.begin
    (stream,) = viewed.named("VTA stream")
    assert viewed.one("run model", names[0]).holds(stream)
    nodes = [one for one in viewed.slices if one.track == "nodes"]
    timed = time_nodes(model.read_bytes(), CORES["paper"], PYNQ)
    assert [(one.name, one.args["cycles"]) for one in nodes] == [
        (layer.node.operator, layer.time.cycles) for layer in timed.layers if layer.time
    ]


def test_another_program_is_traced_and_its_exit_code_passed_on(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    script = (
        "import sys, potash.sdk\n"
        "from potash.vm.drive import serving\n"
        "with serving('--size', '16M') as socket, potash.sdk.open(f'vfio-user:{socket}') as one:\n"
        "    one.read(0, 1)\n"
        "sys.exit(9)\n"
    )
    done = potash_command("trace", "-o", out, "--", sys.executable, "-c", script)
    assert done.returncode == 9, done.stderr
    assert Viewed(out).one("read", "device", "queue 1").args["blocks"] == 1


def test_nothing_to_show_is_said_and_no_file_made(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    done = potash("trace", "-o", out, "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no device has written anything" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("wrong", [(), ("--read", __file__, "demo")])
def test_wrong_uses(wrong: tuple[str, ...]) -> None:
    assert potash("trace", *wrong).returncode == 2


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    done = potash("trace", "-o", tmp_path / "none" / "x", "--", "touch", ran)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "none" in done.stderr
    assert not ran.exists()


def test_a_program_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder in PATH that its user may not read would make it "Permission denied".
    monkeypatch.setenv("PATH", os.defpath)
    done = potash("trace", "no-such-program")
    assert (done.returncode, done.stderr) == (
        1, "potash: no-such-program cannot be run: No such file or directory\n"
    )  # fmt: skip


def test_an_interrupt_ends_the_command_and_the_trace_is_written(tmp_path: Path) -> None:
    """As at a terminal, where all processes of the group get it."""
    out, socket = tmp_path / "trace.json", tmp_path / "device.sock"
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-m", "potash.cli.main", "trace", "-o", str(out)]
    with subprocess.Popen(
        [*command, "serve", "--size", "16M", "--socket", str(socket)],
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        with sdk.open(f"vfio-user:{socket}") as device:
            device.read(0, 1)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(LIMIT) == 0
    assert Viewed(out).named("read", "device", "queue 1")
    assert sorted(tmp_path.iterdir()) == [folder, out]
    assert not list(folder.iterdir())


def test_nobody_who_does_not_ask_is_traced(tmp_path: Path) -> None:
    """The variable names a folder for the devices below `potash trace`, and is nobody else's."""
    assert VARIABLE not in os.environ
    socket = tmp_path / "device.sock"
    with device_process(socket, "--size", "16M") as process:
        files = opened(process.pid)
    assert not [name for name in files if name.endswith(".jsonl")]


def test_folders_of_killed_processes_are_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with folder_for_lines() as used:
        for name, age in (("killed", 3600), ("new", 0), (used.name, 3600)):
            folder = tmp_path / (name if name == used.name else f"potash-trace-{name}")
            folder.mkdir(exist_ok=True)
            (folder / "device.jsonl").touch()
            os.utime(folder, (time.time() - age,) * 2)
        with folder_for_lines() as other:
            left = {path.name for path in tmp_path.iterdir()}
    assert left == {"potash-trace-new", used.name, other.name}

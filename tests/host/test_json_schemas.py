"""Every report that `--json` makes has a schema, keeps to it, and says nothing that it leaves
out."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import click
import pytest
from jsonschema import Draft202012Validator

from csd_spec.reporting import INLINE, OPTIONAL, Key
from potash import schema as json_schema
from potash import sdk
from potash.bench.report import alone, document, paired
from potash.cli.app import COMMANDS, potash, run_app
from potash.cli.reports import reports, schema
from potash.models import networks
from potash.schema import encode
from potash.sdk import CommandFailed
from potash.vm.drive import device_process
from support.bpf_elf import Name, elf, text
from support.docs import FRAGMENT, ROOT
from support.graph_builder import GraphBuilder
from support.models import ISOLATED, in_this_process
from support.reports import check

ADD = ROOT / "examples" / "add"
CHECKSUM = ROOT / "examples" / "checksum"
FINISH = (3).to_bytes(16, "little")


def commands(group: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command below `group`, by what one types."""
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, f"{path} {name}".strip())


Run = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Carries out a command with --json, and gives its report."""
    monkeypatch.setattr(ISOLATED, in_this_process)

    def carry_out(*arguments: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert run_app([*map(str, arguments), "--json"]) == code, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return carry_out


def test_every_command_that_reports_names_its_report() -> None:
    reporting = {
        name
        for name, command in commands(potash)
        if any(option.name == "as_json" for option in command.params)
    }
    assert len(reporting) >= len(COMMANDS)
    assert reporting == set(reports())


@pytest.mark.parametrize("command", reports())
def test_schemas_are_schemas_and_say_what_every_key_is(command: str) -> None:
    found = schema(command)
    Draft202012Validator.check_schema(found)

    def keys(form: Any, path: str) -> Iterator[tuple[str, Any]]:
        for one in form.get("oneOf", ()):
            yield from keys(one, path)
        for key, one in form.get("properties", {}).items():
            yield f"{path}.{key}", one
            yield from keys(one, f"{path}.{key}")
        for key in form.keys() & {"items", "additionalProperties"}:
            yield from keys(form[key], f"{path}.{key}")

    described = list(keys(found, command))
    assert described
    for path, one in described:
        assert one["description"].endswith("."), path
        assert not FRAGMENT.match(one["description"]), path


def test_a_report_that_breaks_its_schema_is_seen() -> None:
    good = {"accelerator": 0, "firmware": 1, "sent": 8}
    check("fw send", good)
    for wrong in ({**good, "sent": "8"}, {**good, "more": 1}, {"accelerator": 0}):
        with pytest.raises(AssertionError):
            check("fw send", wrong)


def test_a_program_may_return_a_negative_number(run: Run, tmp_path: Path) -> None:
    # r0 = -1; exit (BPF Instruction Set Architecture, RFC 9669, sections 4.1 and 4.3)
    code = bytes.fromhex("b7 00 00 00 ff ff ff ff 95 00 00 00 00 00 00 00")
    (tmp_path / "negative.o").write_bytes(elf([text(code)], [Name("prog")]))
    report = run("bpf", "exec", tmp_path / "negative.o")
    assert report["return_value"] == -1
    check("bpf exec", report)
    for command in ("run", "acc status"):
        form = schema(command)["properties"]["return_value"]
        assert Draft202012Validator(form).is_valid(-(1 << 63))
        assert not Draft202012Validator(form).is_valid(1 << 63)


def test_reports_of_a_drive_and_its_accelerators(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = f"vfio-user:{tmp_path / 's'}"
    steps = {
        "acc identify": "",
        "acc status": "",
        "fw send": str(ADD / "program.o"),
        "fw read": str(tmp_path / "read.o"),
        "acc write": str(ADD / "input.bin"),
        "acc start": "--firmware 0 --arg 520 --arg 1024 --wait",
        "acc wait": "",
        "acc read": str(tmp_path / "sum"),
        "acc log": "",
    }
    script = tmp_path / "script"
    lines = [f"{command} {rest} --json" for command, rest in steps.items()]
    script.write_text("\n".join(["enable", *lines]))
    with device_process(tmp_path / "s", "--size", "16M"):
        assert run_app(["acc", "shell", device, str(script)]) == 0
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        reports = dict(zip(steps, said, strict=True))
        for command, report in reports.items():
            check(command, report)
        assert reports["acc start"]["status"] == "done"
        assert any("running the model" in one["text"] for one in reports["acc log"]["entries"])
        ran = run("run", device, ADD / "program.o", ADD / "input.bin", tmp_path / "sum",
                  "--arg", 520, "--arg", 1024)  # fmt: skip
        check("run", ran)
        assert ran["printed"] == ["add: running the model"]
        assert ran["modelled_ns"] is None


def test_reports_of_a_device_that_runs(run: Run, tmp_path: Path) -> None:
    socket, lines = tmp_path / "s", tmp_path / "lines"
    device = f"vfio-user:{socket}"
    media = ("--size", "16M", "--allow-faults", "--trace", lines.with_suffix(".jsonl"))
    with device_process(socket, *map(str, media)):
        for line in ("io read status=INTERNAL_ERROR count=1", "apu at=start"):
            check("fault add", run("fault", "add", device, line))
        listed = run("fault", "list", device)
        check("fault list", listed)
        assert [one["id"] for one in listed["faults"]] == [1, 2]
        with sdk.open(device) as host:
            with pytest.raises(CommandFailed):
                host.read(0, 1)
            host.read(0, 1)
            seen = run("top", socket, "--once", "--interval", 0.05)
            check("top", seen)
            assert [one["commands"] for one in seen["errors"]] == [1]
        check("top", run("top", socket, "--once", "--interval", 0.05))
    traced = run("trace", "--read", lines.with_suffix(".jsonl"), "-o", tmp_path / "trace.json")
    check("trace", traced)
    assert traced["devices"] == 1 and traced["events"] > 0


@pytest.mark.parametrize(
    "media", [(), ("--metrics", "0", "--media", "drive", "--namespace", "1M:512")]
)
def test_a_device_announces_itself(tmp_path: Path, media: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "potash.cli", "serve", "--socket", "s", "--json", *media]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            report = json.loads(process.stdout.readline())
        finally:
            process.terminate()
    check("serve", report)
    assert report["media"] == ("drive" if media else None)
    size, block_size = (1 << 20, 512) if media else (1 << 30, 4096)
    assert report["namespaces"] == [
        {"nsid": 1, "size": size, "block_size": block_size, "read_only": False}
    ]


def test_reports_of_examples(run: Run) -> None:
    check("demo list", run("demo", "list"))


def test_reports_of_programs(run: Run, tmp_path: Path) -> None:
    try:
        check("build", run("build", ADD / "program.c", "-o", tmp_path / "p.o"))
    except AssertionError as error:
        assert "there is no compiler" in str(error)
    check("bpf disasm", run("bpf", "disasm", ADD / "program.o"))
    check("bpf helpers", run("bpf", "helpers"))
    check("bpf disasm", run("bpf", "disasm", CHECKSUM / "program.o"))
    arguments = ("bpf", "exec", CHECKSUM / "program.o", "--input", ADD / "input.bin")
    check("bpf exec", run(*arguments))
    check("bpf exec", run(*arguments, "--output", tmp_path / "out"))


def test_reports_of_the_tensor_accelerator(run: Run, tmp_path: Path) -> None:
    stream, dram, text, back = (tmp_path / name for name in ("insns", "dram", "text", "back"))
    stream.write_bytes(FINISH)
    dram.write_bytes(bytes(8192))
    check("vta info", run("vta", "info"))
    check("vta run", run("vta", "run", "--insns", stream, "--dram", dram, "--output", back))
    check("vta disasm", run("vta", "disasm", stream))
    assert run_app(["vta", "disasm", str(stream), "--output", str(text)]) == 0
    check("vta asm", run("vta", "asm", text, "--output", back))
    assert back.read_bytes() == FINISH
    timed = run("vta", "time", "--layer", "C5")
    check("vta time", timed)
    assert [one["virtual_threads"] for one in timed["threads"]] == [1, 2]
    check("vta time", run("vta", "time", "--insns", stream))
    check("vta roofline", run("vta", "roofline", "--layer", "C5", "-o", tmp_path / "r.svg"))
    check("vta trace", run("vta", "trace", "--insns", stream, "-o", tmp_path / "t.json"))


def test_reports_of_models(run: Run, tmp_path: Path) -> None:
    model, values, conv = tmp_path / "model", tmp_path / "values", tmp_path / "conv"
    conv.write_bytes(networks.make("conv-add"))
    values.write_bytes(bytes(128))
    check("model list", run("model", "list"))
    check("model make", run("model", "make", "add-64", "--output", model))
    check("model info", run("model", "info", model))
    check("model info", run("model", "info", model, "--time"))
    check("vta time", run("vta", "time", model, "--vta-config", "paper"))
    check("vta roofline", run("vta", "roofline", conv, "-o", tmp_path / "r.svg"))
    arguments = ("model", "run", model, "--input", values)
    check("model run", run(*arguments, "--output", tmp_path / "out"))
    check("model run", run(*arguments, "--compare", "--rounding", "single"))


def test_reports_of_models_that_others_made(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_quantizer", reason="the extra `quantize` is not installed")
    real, small = tmp_path / "float32", tmp_path / "int8"
    graph = GraphBuilder()
    x = graph.tensor((1, 4))
    real.write_bytes(graph.finish([x], [graph.relu(x)]))
    check("model info", run("model", "info", real, "--time"))
    (tmp_path / "samples").write_bytes(struct.pack("<8f", *range(8)))
    quantised = run(
        "model", "quantize", real, "--calibration", tmp_path / "samples", "--output", small
    )
    check("model quantize", quantised)
    assert quantised["samples"] == 2
    check("model info", run("model", "info", small))


def test_reports_of_benches() -> None:
    results = [
        paired("read", "rate", "1/s", "qemu", [(2.0, 1.0), (3.0, 1.5)]),
        alone("start", "time", "ms", [1.0, 2.0]),
    ]
    report = json.loads(encode(document(results)))
    for command in ("bench bpf", "bench model", "bench nvme", "bench vta"):
        check(command, report)


def test_reports_of_sweeps(run: Run, tmp_path: Path) -> None:
    line = ("sweep", "C5", "--vary", "block=8,32", "--jobs", 1)
    report = run(*line, "--plot", tmp_path / "s.svg")
    check("sweep", report)
    assert [one["feasible"] for one in report["points"]] == [False, True]


def test_reports_of_the_doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("potash.doctor.packages", list)
    report = run("doctor", "--no-boot")
    check("doctor", report)
    assert report["healthy"] is True


class Part(NamedTuple):
    """A part."""

    size: Annotated[int, Key("bytes"), "Its size."]
    hidden: int = 0


class Whole(NamedTuple):
    """A whole,
    with its part.

    Only the first paragraph is reported.
    """

    note: Annotated[str | None, OPTIONAL, Key(before="bytes"), "A note."]
    part: Annotated[Part, INLINE]
    last: Annotated[bytes, "The last."] = b"\x0a"

    @property
    def twice(self) -> Annotated[int, Key(before="last")]:
        """Twice its size."""
        return 2 * self.part.size


def test_marks_name_and_place_the_keys_of_a_type() -> None:
    whole = Whole(None, Part(4))
    assert encode(whole) == '{"bytes": 4, "twice": 8, "last": "0a"}'
    assert encode(whole._replace(note="n")) == '{"bytes": 4, "twice": 8, "last": "0a", "note": "n"}'
    form = json_schema.schema(Whole)
    assert form["description"] == "A whole, with its part."
    assert list(form["properties"]) == ["note", "bytes", "twice", "last"]
    assert form["required"] == ["bytes", "twice", "last"]
    assert form["properties"]["note"] == {"type": "string", "description": "A note."}
    assert form["properties"]["twice"] == {"type": "integer", "description": "Twice its size."}

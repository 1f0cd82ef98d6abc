"""The examples in the pages about the SDK, programs and tracing, and the profiles that are told."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from potash.cli.drive.acc import acc
from potash.cli.drive.fw import fw
from potash.vm.drive import device_process
from potash_firmware.settings import PROFILES
from support.bpf_compiler import NO_COMPILER, compiler
from support.docs import ROOT, SOCKET, blocks, run_python, run_shell

TRACE = "trace.jsonl"


class Drive(NamedTuple):
    """A device, the folder that it is in, and its trace."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    def python(self, code: str) -> list[str]:
        """What a block prints with this device in the place of the documentation's."""
        return run_python(code, replace={SOCKET: str(self.socket)}).splitlines()


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    made = Drive(tmp_path_factory.mktemp("docs"))
    with device_process(made.socket, "--size", "64M", "--trace", str(made.folder / TRACE)):
        yield made


def test_the_sdk_s_examples_run(drive: Drive) -> None:
    first, command, in_flight, loop, traffic, job, accelerator, errors = (
        drive.python(code) for code in blocks("sdk.md", "python")
    )
    assert first[1] == "b'potash'"
    assert re.fullmatch(r"\d+ °C True", command[0])
    assert in_flight == ["5 blocks"]
    assert loop == ["100 blocks, returned 0"]
    assert traffic[0].endswith("bytes over the link, 0 inside")
    assert accelerator[:2] == ["1024 bytes, returned 0", "right"]
    assert job == ["['add: running the model'] 1024 0"]
    assert errors[0].startswith("True Control failed")


def test_the_sum_of_the_page_about_programs_is_what_it_says(drive: Drive) -> None:
    if compiler() is None:
        pytest.skip(NO_COMPILER)
    (source, *_) = blocks("programs.md", "c")
    build, flags, attempt, plugin, run = blocks("programs.md", "sh")[:5]
    built, tried, ran = blocks("programs.md", "text")[:3]
    (drive.folder / "sum.c").write_text(source)

    def counted(said: str) -> list[str]:
        """What was said, without the counts of instructions, which are the compiler's."""
        return re.sub(r"\d+ (?=instructions)|\(BPF \w+, [\w-]+\)", "", said).split()

    assert counted(run_shell(build, cwd=drive.folder)) == counted(built)
    assert counted(run_shell(attempt, cwd=drive.folder)) == counted(tried)
    assert "-O2 -g -target bpf -mcpu=v3 -fno-builtin -fno-jump-tables" in flags
    assert 'potash bpf plugin "$@"' in plugin
    assert SOCKET in run
    said = run_shell(run.replace(SOCKET, str(drive.socket)), cwd=drive.folder)
    assert said.rstrip() == ran
    without = re.sub(r" --arg \d+", "", run).replace(SOCKET, str(drive.socket))
    said = run_shell(without, cwd=drive.folder)
    assert "program: sum: the argument is" in said
    assert "returned 4294967295 (-1 as int)" in said
    (log,) = blocks("programs.md", "python")
    said = run_python(log, cwd=drive.folder, replace={SOCKET: str(drive.socket)})
    assert said.splitlines()[-1].startswith("102h returned 0")


@pytest.mark.parametrize("options", ["", " --lba 0"], ids=["buffers", "blocks"])
def test_the_example_is_run_as_its_folder_says(drive: Drive, options: str) -> None:
    folder = drive.folder / f"add{len(options)}"
    shutil.copytree(ROOT / "examples" / "add", folder)
    text = (folder / "README.md").read_text()
    run = text.split("```sh\n")[1].split("```")[0]
    assert "--arg 1024\n" in run and options.strip() in text
    run = run.replace("--arg 1024\n", f"--arg 1024{options}\n")
    said = run_shell(run.replace(SOCKET, str(drive.socket)), cwd=folder)
    assert said.splitlines() == [
        "program: add: running the model",
        "1024 bytes in output.bin; the program returned 0",
        "equal",
    ]


def test_the_documented_fields_are_those_of_each_point(drive: Drive) -> None:
    for code in blocks("sdk.md", "python")[:6]:  # the sixth runs a job
        drive.python(code)
    documented = _documented_points()
    lines = [json.loads(line) for line in (drive.folder / TRACE).read_text().splitlines()]
    everywhere = {"time", "pid", "point", "thread", "began", "error"}
    for line in lines:
        known = set(line) - everywhere
        if line["point"].startswith("mailbox."):  # each message has fields of its own
            known &= {"message"}
        assert known == documented[line["point"]], line
    # What was compiled once is in the cache; the drive has no compute namespace, nor modelled time.
    elsewhere = {"bpf.compile", "worker.execution", "rpu.modelled"}
    assert {line["point"] for line in lines} | elsewhere == set(documented)
    for writer in {(line["pid"], line.get("thread")) for line in lines}:
        times = [one["time"] for one in lines if (one["pid"], one.get("thread")) == writer]
        assert times == sorted(times)


def test_the_example_of_tracing_tells_how_long_each_command_took(drive: Drive) -> None:
    drive.python(blocks("sdk.md", "python")[0])
    (code,) = blocks("tracing.md", "python")
    said = run_python(code, cwd=drive.folder).splitlines()
    took = [re.fullmatch(r"(\d):([0-9a-f]{2})h (\d+) µs", line) for line in said]
    assert all(took)
    assert {"1:01h", "1:02h", "1:00h", "0:06h"} <= {line.split()[0] for line in said}


def _documented_points() -> dict[str, set[str]]:
    """Each point's fields by the table in `docs/tracing.md`: what is in code style."""
    points = {}
    for line in (ROOT / "docs" / "tracing.md").read_text().splitlines():
        _, *cells = line.replace("\\|", "").split("|")
        if len(cells) == 4 and re.fullmatch(r" `\w+(\.\w+)?` ", cells[0]):
            points[cells[0].strip(" `")] = set(re.findall(r"`(\w+)`", cells[2]))
    return points


@pytest.mark.parametrize(("column", "name"), [(1, "potash"), (2, "alkali")])
def test_profiles_say_of_themselves_what_the_page_about_the_design_says(
    column: int, name: str
) -> None:
    page = (ROOT / "docs" / "design.md").read_text().partition("| | `potash` |")[2]
    rows = [line.strip("|").split("|") for line in page.partition("\n\n")[0].splitlines()[2:]]
    said = {cells[0].strip(): cells[column].strip(" `") for cells in rows}
    board, identity = PROFILES[name].board.identity, PROFILES[name].rpu.identity
    vectors = f", and MSI with up to {board.msi_vectors} vectors" if board.msi_vectors else ""
    made = "made from a UUID of model and serial number"
    assert said == {
        "PCI vendor, device": f"{board.vendor_id:04X}h, {board.device_id:04X}h",
        "interrupts": f"MSI-X{vectors}",
        "serial number": identity.serial,
        "model": identity.model,
        "firmware revision of slot 1": identity.firmware_revision,
        "subsystem NQN": identity.qualified_name or made,
    }


def test_the_session_in_a_shell_of_the_accelerators_adds_two_vectors(drive: Drive) -> None:
    folder = drive.folder / "session"
    shutil.copytree(ROOT / "examples" / "add", folder)
    (code,) = [block for block in blocks("commands.md", "sh") if "acc shell" in block]
    assert SOCKET in code
    said = run_shell(code.replace(SOCKET, str(drive.socket)), cwd=folder)
    assert "accelerator 0: done\n" in said
    assert "program output: add: running the model\n" in said
    assert (folder / "output.bin").read_bytes() == (folder / "expected.bin").read_bytes()


def test_the_page_has_every_command_for_accelerators() -> None:
    """Their opcodes are the device's: those of the table before."""
    page = (ROOT / "docs" / "commands.md").read_text()
    for name, group in (("acc", acc), ("fw", fw)):
        listed = set(re.findall(rf"`potash {name} (\w+) DEVICE", page)) | {"disable", "shell"}
        assert set(group.commands) <= listed, name


def test_the_five_minute_start_counts_lines(drive: Drive) -> None:
    if compiler() is None:
        pytest.skip(NO_COMPILER)
    (source,) = blocks("start.md", "c")
    (run,) = [block for block in blocks("start.md", "sh") if "count.c" in block]
    (drive.folder / "count.c").write_text(source)
    (drive.folder / "text").write_text("one\ntwo\nthree\n")
    line = run.replace(SOCKET, str(drive.socket)).replace("/etc/services", "text")
    said = run_shell(line, cwd=drive.folder)
    assert "program: count: lines: 3\n" in said
    assert "`program: count: lines: `" in (ROOT / "docs" / "start.md").read_text()
    assert int.from_bytes((drive.folder / "lines.bin").read_bytes(), "little") == 3

"""`potash acc`, `potash fw` and `potash run` over a socket; in processes of their own where signals
and terminals matter."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from potash.cli.app import run_app
from support.apu import program
from support.bpf import call, exit_, insn, mov, mov_reg
from support.bpf_compiler import NO_COMPILER, compiler
from support.in_process import potash
from support.terminal import until

ADD = Path(__file__).parents[2] / "examples" / "add"
LIMIT = 60
FOREVER = program(insn(0x05, offset=-1), exit_)
PRINT_INPUT = program(call(1), mov(1, 0), call(4), mov(0, 0), exit_)
"""And has no output."""
ARGUMENTS = ["--arg", "520", "--arg", "1024"]


def reports(said: str) -> list[Any]:
    return [json.loads(line) for line in said.splitlines()]


def test_a_session_of_one_host_does_what_the_documents_flow_does(
    drive: str, tmp_path: Path
) -> None:
    script = f"""
# each line is a command without its device
identify --json
enable
fw send {ADD / "program.o"} --firmware 3 --json
write '{ADD / "input.bin"}' --json
select 3
start --arg 520 --arg 1024
wait --timeout 60 --json
status --rae --json
read {tmp_path / "output"} --json
fw read {tmp_path / "back.o"} --firmware 3 --json
log --json
"""
    done = subprocess.run(
        [sys.executable, "-m", "potash.cli.main", "acc", "shell", drive],
        input=script,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found, sent, written, ended, again, read, back, log = reports(done.stdout)
    sizes = {"input_size": 64 << 20, "output_size": 64 << 20}
    assert found == {"accelerators": [{"id": 0, "firmware": True, **sizes}]}
    size = (ADD / "program.o").stat().st_size
    assert sent == {"accelerator": 0, "firmware": 3, "sent": size}
    assert written == {"accelerator": 0, "offset": 0, "written": 2568}
    assert ended == again == {
        "accelerator": 0, "status": "done", "status_id": 2, "firmware": 3, "return_value": 0,
        "consumed": 2568, "produced": 1024, "modelled_ns": None,
    }  # fmt: skip
    assert (read["read"], back["read"]) == (1024, size)
    assert (tmp_path / "output").read_bytes() == (ADD / "expected.bin").read_bytes()
    assert (tmp_path / "back.o").read_bytes() == (ADD / "program.o").read_bytes()
    names = [entry["name"] for entry in log["entries"][-3:]]
    assert names == ["job started", "program output", "job finished"]
    assert log["entries"][-2]["text"] == "add: running the model"


def test_in_words_for_people(drive: str) -> None:
    done = potash("acc", "identify", drive)
    assert done.stdout == "accelerator 0: 64 MiB of input, 64 MiB of output, takes firmware\n"
    script = f"enable\nfw send {ADD / 'program.o'}\nwrite {ADD / 'input.bin'}\nstart --firmware 0\nwait\nlog\n"
    done = potash("acc", "shell", drive, stdin=script)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[2:5] == ["accelerator 0: done", "  firmware: 0", "  returned: 1"]
    assert "  job finished: returned 1 after " in lines[-1]


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("start\n", 1, "Control failed: the accelerator subsystem is disabled (SCT 7h, SC C0h)"),
        ("enable\nselect 9\nidentify", 1, "Control failed: accelerator 0 has no firmware 9"),
        ("enable\nstart --firmware 0\n", 1, "has no firmware 0"),
        ("enable\ninput 16383:2\n", 1, "LBA Out Of Range"),
        ("enable\ninput 0:70000\n", 1, "pages: 70000 does not fit in 16 bits"),
        ("enable\nread out --data-len 65M\n", 1, "the output buffer has only 67108864 bytes"),
        ("enable\nread out --offset 2 --data-len 4\n", 1, "not a multiple of 4"),
        ("enable\nwrite /dev/null\n", 1, "there is no data to send"),
        ("status --accelerator 4", 1, "no accelerator 4"),
        ("input 5\n", 2, "'5' is not PAGE:COUNT"),
        ("launch\nidentify\n", 2, "there is no command 'launch' here"),
        ("fw\n", 2, "there is no command 'fw' here"),
        ("shell\n", 2, "there is no command 'shell' here"),
        ("write 'half\n", 2, "no closing quotation"),
        ("wait --timeout 0\n", 2, "not a number of seconds above 0"),
        ("start --json\n", 2, "go with --wait"),
        ("select 16\n", 2, "16 is not in the range 0<=x<=15"),
        ("start --firmware 16\n", 2, "16 is not in the range 0<=x<=15"),
        ("start --arg length\n", 2, "neither a 32-bit number nor hex:BYTES"),
    ],
)
def test_a_line_that_cannot_be_carried_out_ends_the_session(
    drive: str, script: str, code: int, said: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "script").write_text(script)
    assert run_app(["acc", "shell", drive, str(tmp_path / "script")]) == code
    captured = capfd.readouterr()
    assert (captured.out, captured.err.count("Traceback")) == ("", 0)
    assert said in captured.err.splitlines()[-1]


def test_every_command_has_a_page_of_help_whose_first_line_is_whole() -> None:
    from potash.cli.drive.acc import acc
    from potash.cli.drive.fw import fw

    assert sorted(acc.commands) == [
        "disable", "enable", "grant", "identify", "input", "log", "output", "read", "reset",
        "select", "shell", "start", "status", "stop", "wait", "write",
    ]  # fmt: skip
    for group in (acc, fw):
        for command in group.commands.values():
            assert not command.get_short_help_str(66).endswith("...")


def test_a_chain_of_firmware_and_of_files(drive: str, tmp_path: Path) -> None:
    files = [ADD / "program.o", ADD / "input.bin", tmp_path / "output"]
    length = tmp_path / "length.o"
    length.write_bytes(program(mov_reg(6, 3), mov(1, 0), call(4), mov_reg(0, 6), exit_))
    done = potash("run", drive, *files, *ARGUMENTS, "--then", f"{length} 1 hex:02", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = reports(done.stdout)
    assert (report["return_value"], report["produced"]) == (1024, 0), (
        "the output of add was its input"
    )
    script = f"""
enable
fw send {length} --firmware 3
write '{ADD / "input.bin"}'
start --firmware 3 --then '3 5 hex:00' --then 3 --wait --json
"""
    done = potash("acc", "shell", drive, stdin=script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["consumed"] == 2568
    for wrong in ("16", "x", "3 wide"):
        assert potash("acc", "start", drive, "--then", wrong).returncode == 2


@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
def test_a_program_in_c_is_built_first(drive: str, tmp_path: Path) -> None:
    shutil.copyfile(ADD / "program.c", tmp_path / "program.c")
    files = [tmp_path / "program.c", ADD / "input.bin", tmp_path / "output"]
    done = potash("run", drive, *files, *ARGUMENTS, "--json")
    assert done.returncode == 0, done.stderr
    (report,) = reports(done.stdout)
    assert (report["produced"], report["in_place"]) == (1024, {"input": False, "output": False})
    assert (tmp_path / "output").read_bytes() == (ADD / "expected.bin").read_bytes()
    (tmp_path / "program.c").write_text("int prog(void) { return nothing; }")
    done = potash("run", drive, *files)
    assert (done.returncode, done.stdout) == (1, "")
    assert "undeclared identifier 'nothing'" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("program.c does not compile for BPF")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "program.c"]


def test_what_a_program_prints_cannot_command_a_terminal(drive: str, tmp_path: Path) -> None:
    harm, shown = b"\x1b]0;owned\x07\x9b2J\r\x7f", r"\x1b]0;owned\x07"
    (tmp_path / "input").write_bytes(harm + bytes(4))
    (tmp_path / "print.o").write_bytes(PRINT_INPUT)
    done = potash("run", drive, tmp_path / "print.o", tmp_path / "input", tmp_path / "output")
    assert done.returncode == 0, done.stderr
    assert shown in done.stderr and done.stderr.replace("\n", "").isprintable()
    lines = ["enable", f"fw send {tmp_path / 'print.o'}", f"write {tmp_path / 'input'}"]
    lines += ["start --firmware 0 --wait", "log"]
    done = potash("acc", "shell", drive, stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout and done.stdout.replace("\n", "").isprintable()


def test_a_hang_up_that_is_ignored_stays_ignored(drive: str, tmp_path: Path) -> None:
    (tmp_path / "forever.o").write_bytes(FOREVER)
    words = ["run", drive, tmp_path / "forever.o", ADD / "input.bin", tmp_path / "out", "-v"]
    command = ["nohup", sys.executable, "-m", "potash.cli.main", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == b"start\n":
                break
        status = Path(f"/proc/{process.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 128 + signal.SIGTERM
    assert ignored & 1 << signal.SIGHUP - 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_drive_for_the_next_one(
    drive: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "forever.o").write_bytes(FOREVER)
    words = ["run", drive, tmp_path / "forever.o", ADD / "input.bin", tmp_path / "out", "-v"]
    command = [sys.executable, "-m", "potash.cli.main", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == "start\n":
                break
        process.send_signal(number)
        said = process.stderr.read().strip()
        expected = {signal.SIGINT: (130, "potash: interrupted"), signal.SIGTERM: (143, "")}
        assert (process.wait(LIMIT), said) == expected[number], line
    assert not (tmp_path / "out").exists()
    done = potash("run", drive, ADD / "program.o", ADD / "input.bin", tmp_path / "out", *ARGUMENTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--output-size", "4K"], 2, "--output-size goes with --lba"),
        (["--copy", "--lba", "0"], 2, "exclude each other"),
        (["--arg", "wide"], 2, 'neither a 32-bit number nor "length", hex:BYTES'),
        (["--arg", str(1 << 32)], 2, "32-bit number"),
        (["--accelerator", "7"], 1, "no accelerator 7"),
        (["--then", ""], 2, "a step is empty"),
        (["--then", "none.o 'x"], 2, "No closing quotation"),
        (["--then", "none.o wide"], 2, "neither a 32-bit number"),
        (["--then", "none.o"], 1, "No such file"),
    ],
)
def test_wrong_uses_of_run(
    drive: str,
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    files = [str(ADD / "program.o"), str(ADD / "input.bin"), str(tmp_path / "out")]
    assert run_app(["run", drive, *files, *words]) == code
    assert said in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_progress_is_shown_on_a_terminal(
    drive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, so that no program has to run for two seconds."""
    (tmp_path / "forever.o").write_bytes(FOREVER)
    words = ["run", drive, tmp_path / "forever.o", ADD / "input.bin", tmp_path / "out"]
    monkeypatch.setattr("potash.cli.progress.PATIENCE", 0.0)
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w") as terminal:
            monkeypatch.setattr("sys.stderr", terminal)
            assert run_app([*map(str, words), "--timeout", "0.6"]) == 1
            said = until(ours, b"\n").decode()
    finally:
        os.close(ours)
    assert re.search(r"\r\x1b\[Krunning: [0-9] s", said)
    assert said.endswith("\r\x1b[Kpotash: the job was stopped after 0.6 s\r\n")


def test_a_socket_alone_is_a_device_too(drive: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["acc", "identify", drive.removeprefix("vfio-user:")]) == 0
    assert capsys.readouterr().out.startswith("accelerator 0: ")


@pytest.mark.parametrize("command", ["input", "output", "grant"])
def test_the_help_says_what_a_range_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["acc", command, "--help"]) == 0
    assert "DEVICE PAGE:COUNT..." in capsys.readouterr().out

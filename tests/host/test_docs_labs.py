"""The labs of `docs/labs`: a start is refused as its page says, and a solution is accepted."""

from __future__ import annotations

import runpy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.bpf_compiler import NO_COMPILER, compiler
from support.docs import ROOT, blocks, run_shell

FOLDER = ROOT / "docs" / "labs"
CHECK = runpy.run_path(str(FOLDER / "check.py"))
LABS: dict[str, str] = CHECK["LABS"]


def problems(lab: str, name: str) -> list[str]:
    (file,) = (FOLDER / LABS[lab]).glob(f"{name}.*")
    if file.suffix == ".c" and compiler() is None:
        pytest.skip(NO_COMPILER)
    found: list[str] = CHECK["problems"](lab, file)
    return found


@pytest.mark.parametrize("lab", LABS)
def test_a_start_is_refused_with_what_the_page_shows(lab: str) -> None:
    found = problems(lab, "start")
    assert found == blocks(f"labs/{lab}.md", "text")[0].splitlines()


@pytest.mark.parametrize("lab", LABS)
def test_a_solution_is_accepted(lab: str) -> None:
    assert problems(lab, "solution") == []


def said_of(lab: str, code: str, folder: Path) -> list[str]:
    """What the check says of a file with that code."""
    (folder / "mine.py").write_text(code)
    found: list[str] = CHECK["problems"](lab, folder / "mine.py")
    return found


COUNT = (FOLDER / "vendor_command" / "solution.py").read_text()
DOES_NOT_RETURN = COUNT.replace("    data = yield", "    sum(range(1 << 60))\n    data = yield")
"""A call into C, which nothing interrupts."""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (COUNT.replace("== zeroes", "!= zeroes"), "blocks 8 to 13: 1 instead of 5"),
        (
            COUNT.replace("command.blocks)", "1)"),
            "a range beyond the end does not end with LBA Out of Range",
        ),
    ],
)
def test_the_errors_that_the_first_lab_is_about_are_found(
    code: str, problem: str, tmp_path: Path
) -> None:
    assert code != COUNT
    assert problem in said_of("vendor-command", code, tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        "search.best_tile(shape, config, epilogue, PYNQ)",
        "best_tile(shape, config, epilogue, PYNQ)",
        "next(iter(search.likeliest(shape, config, epilogue, PYNQ)))",
    ],
)
def test_the_lab_about_schedules_refuses_potashs_own_search(call: str, tmp_path: Path) -> None:
    code = (
        "from potash_device.vta.timing.parameters import PYNQ\n"
        "from potash_firmware.vta_runtime.schedules import search\n"
        "from potash_firmware.vta_runtime.schedules.search import best_tile\n"
        f"def tile(shape, epilogue, config):\n    return {call}\n"
    )
    (problem,) = said_of("schedule", code, tmp_path)
    assert problem == (
        "mine.py, line 5: AssertionError: the search of Potash is what the check compares with; "
        "do not call it"
    )


MOVES = """\
        for first in range(0, len(moved), self.flash.pages):
            self.program(dict(list(moved.items())[first : first + self.flash.pages]))
"""
ERASES = "        self.flash.erase(victim)\n"
NEWER = "if page not in self.places or sequence > self.stored(page)[1]:"
FEWEST = "victim = min(sorted(candidates), key=lambda block: len(valid[block]))"
EMPTY = (
    "        if all(contents is None for contents in found):\n            self.free.append(block)\n"
)
GOES_ON = """\
        elif None in found:
            self.block, self.unit = block, found.index(None)
"""
TAKES = "        self.buffer[page] = data\n"
LOST, TWICE = "the power fails at operation ", "is programmed twice without an erase"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (MOVES + ERASES, ERASES + MOVES, LOST),
        (TAKES, TAKES + "        self.places.pop(page, None)\n", LOST),
        ("        if self.buffer:\n", "        if len(self.buffer) == self.flash.pages:\n", LOST),
        (NEWER, "if page not in self.places:", LOST),
        (NEWER, "if True:", LOST),
        ("self.sequence = max(self.sequence, sequence + 1)", "pass", LOST),
        ("if contents is None or contents is self.flash.torn:", "if contents is None:", "ValueError"),
        (EMPTY, EMPTY + GOES_ON, "after a power loss without an erase"),
        ("if all(contents is None for", "if all(contents in (None, self.flash.torn) for", TWICE),
        ("        if page in self.buffer:\n            return self.buffer[page]\n", "",
         "has not what was just written"),
        (' if page in self.places else b""', "", "KeyError"),
        ("self.free.pop(0), 0", "self.free[0], 0", TWICE),
        ("{self.block, *self.free}", "{*self.free}", "is programmed before unit 1"),
        (FEWEST, FEWEST.replace("min", "max"), "a write takes more than 60 operations"),
        (FEWEST, "victim = min(candidates)", "a write takes more than 60 operations"),
        ("            while len(self.free) < RESERVE:\n                self.collect()\n", "",
         "IndexError: pop from empty list"),
        ("if len(self.buffer) == self.flash.pages:", "if self.buffer:",
         "the write amplification is 8.0; 4.0 is the most"),
    ],
)  # fmt: skip
def test_wrong_translation_layers_are_refused(
    old: str, new: str, problem: str, tmp_path: Path
) -> None:
    solution = (FOLDER / "translation_layer" / "solution.py").read_text()
    assert solution.count(old) == 1
    (said,) = said_of("translation-layer", solution.replace(old, new), tmp_path)
    assert problem in said


CHOICE = "Choice(min(ready, key=urgency), next(unit for unit in units if unit.task is None))"
USE = "(task.done - before) / task.priority"
WEIGHT, PAUSE = "a tenant of weight 4 of 7 has ", "when a tenant comes back after a pause, "


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("min(ready, key=urgency)", "ready[0]", WEIGHT),  # turns of executions
        ("min(ready, key=urgency)", "ready[-1]", PAUSE + "it has 0%"),
        ("min(ready, key=urgency)", "min(ready, key=lambda task: task.done)", WEIGHT),
        ("min(ready, key=urgency)", "max(ready, key=lambda task: task.priority)", WEIGHT),
        (USE, "(task.done - before)", WEIGHT),
        (USE, "self.slice / task.priority", WEIGHT),
        ("max(self.use.get(tenant, 0), floor)", "self.use.get(tenant, 0)",
         PAUSE + "the other one has 0%"),
        (CHOICE, CHOICE.partition(", next")[0] + ", units[0]) if units[0].task is None else None",
         "a unit is idle while executions wait"),
        (CHOICE, CHOICE.partition(", next")[0] + ", units[-1])", "or a unit that is not free"),
        ("slice = 100_000", "slice = 5_000_000", "takes 5.0 ms beside long ones"),
        ("slice = 100_000", "slice = 1_000", "a slice of 1000 ns is too short"),
        ("common = True", "common = False", "set common = True"),
    ],
)  # fmt: skip
def test_wrong_schedulers_are_refused(old: str, new: str, problem: str, tmp_path: Path) -> None:
    solution = (FOLDER / "unit_scheduler" / "solution.py").read_text()
    assert solution.count(old) == 1
    found = said_of("unit-scheduler", solution.replace(old, new), tmp_path)
    assert any(problem in said for said in found), found


@pytest.mark.parametrize(
    ("lab", "code", "problem"),
    [
        ("schedule", "def tile(*_):\n    return 1 / 0\n", ", line 2: ZeroDivisionError: division"),
        ("schedule", "Tile = 3\n", ": LookupError: it defines no tile"),
        ("garbage-collection", "import sys\nsys.exit('no')\n", ", line 2: SystemExit: no"),
        ("operator", "def lower(:\n", ": SyntaxError: invalid syntax (mine.py, line 1)"),
    ],
)
def test_every_exception_is_a_sentence(lab: str, code: str, problem: str, tmp_path: Path) -> None:
    (said,) = said_of(lab, code, tmp_path)
    assert said.startswith(f"mine.py{problem}") and "\n" not in said


def test_a_check_ends_when_its_time_is_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text("while True:\n    pass\n")
    assert CHECK["supervised"]("schedule", tmp_path / "mine.py", 1) == 1
    said = "the check takes more than 1 s; does mine.py loop for ever?\n"
    assert capfd.readouterr().out == said


def test_all_that_a_check_has_started_ends_with_it(tmp_path: Path) -> None:
    """The drive is in a handler that does not return, so that SIGTERM does not end it."""
    noted, mine = tmp_path / "pid", tmp_path / "mine.py"
    note = f"open({str(noted)!r}, 'w').write(str(__import__('os').getpid()))"
    mine.write_text(DOES_NOT_RETURN.replace("    sum", f"    {note}\n    sum"))
    command = [sys.executable, str(FOLDER / "check.py"), "vendor-command", str(mine)]
    patience = time.monotonic() + 60

    def wait_until(met: Callable[[], bool]) -> None:
        while not met():
            assert time.monotonic() < patience
            time.sleep(0.01)

    with subprocess.Popen(command) as check:
        wait_until(lambda: noted.exists() and noted.read_text() != "")
        check.kill()
    drive = Path("/proc") / noted.read_text()
    wait_until(lambda: not drive.exists())


@pytest.mark.slow  # the drive gets 5 s for an answer
def test_a_handler_that_does_not_return_is_a_sentence(tmp_path: Path) -> None:
    (problem,) = said_of("vendor-command", DOES_NOT_RETURN, tmp_path)
    assert problem.startswith("the drive stops answering, as where a handler does not return: ")


def test_a_solution_is_the_start_with_something_written() -> None:
    """Nobody has to guess names: what the start defines, the solution does too."""
    for folder in set(LABS.values()) - {"debugger"}:
        start, solution = (
            runpy.run_path(str(FOLDER / folder / f"{name}.py")) for name in ("start", "solution")
        )
        own = {
            name for name, what in start.items() if getattr(what, "__module__", "") == "<run_path>"
        }
        assert own and own <= set(solution), folder


def test_the_session_of_the_lab_about_debugging_shows_the_bug(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip(NO_COMPILER)
    build = blocks("labs/debugger.md", "sh")[1]
    (said,) = blocks("labs/debugger.md", "text")[1:]
    (tmp_path / "bytes.c").write_text((FOLDER / "debugger" / "start.c").read_text())
    shown = run_shell(f"{build} <<'END'\n{said}\nEND", cwd=tmp_path)
    first, second = shown.split("prog, bytes.c:15: counts[value]++;\n")[1:]
    assert "0x0000000000000061" in first and "0xffffffffffffffff" not in first
    assert "0xffffffffffffffff" in second
    assert second.splitlines()[-1].split()[1:9] == ["01", *["00"] * 7]


def test_the_command_says_solved_or_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def check(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["check.py", *map(str, words)])
        code: int = CHECK["main"]()
        return code

    assert check("debugger", "none.c") == 2
    assert capfd.readouterr().err.startswith("usage: check.py ")
    assert check("debugger", FOLDER / "debugger" / "solution.c") == 0
    assert capfd.readouterr().out == "solved\n"
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (typed,) = blocks("labs/README.md", "sh")
    said = run_shell(f"! {{ {typed}\n}}", cwd=tmp_path)
    assert said == blocks("labs/schedule.md", "text")[0] + "\n"

"""The labs of `docs/labs`: a start is refused as its page says, and a solution is accepted."""

from __future__ import annotations

import runpy
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["check.py", *map(str, words)])
        code: int = CHECK["main"]()
        return code

    assert check("debugger", "none.c") == 2
    assert capsys.readouterr().err.startswith("usage: check.py ")
    assert check("debugger", FOLDER / "debugger" / "solution.c") == 0
    assert capsys.readouterr().out == "solved\n"
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (typed,) = blocks("labs/README.md", "sh")
    said = run_shell(f"! {{ {typed}\n}}", cwd=tmp_path)
    assert said == blocks("labs/schedule.md", "text")[0] + "\n"

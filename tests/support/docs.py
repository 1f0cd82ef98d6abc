"""The code that the documentation shows, for tests that type it in."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from potash.vm.guest import Guest
from support.shell import commands

ROOT = Path(__file__).parents[2]

FRAGMENT = re.compile(
    r"(What|Whatever|Whether|Who|Whose|Which|Why|How|Where|When|Of|As|And|Or|But|Than|Those|"
    r"That|By|From|The same for|Likewise|Not)\b"
)
"""Words that begin a subordinate clause or an attribute, for which the reader lacks the noun."""

SOURCES = [str(ROOT / name) for name in ("device", "firmware", "host")]

SOCKET = "/tmp/potash.sock"
"""Where the documentation's device listens."""


def blocks(page: str, language: str) -> list[str]:
    """The blocks of one language on a page of `docs`, from the top."""
    text = (ROOT / "docs" / page).read_text()
    return [block.partition("\n```")[0] for block in text.split(f"```{language}\n")[1:]]


def documents() -> list[Path]:
    """Every page, inside and outside of `docs`."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")]
    return sorted(pages) + [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "RELEASING")]


class Block(NamedTuple):
    """A block of shell commands: its page, from the root, and the comment before it."""

    page: str
    mark: str | None
    script: str

    def __str__(self) -> str:
        return f"{self.page}: {self.script.splitlines()[0]}"

    @property
    def in_guests(self) -> list[tuple[str, ...]]:
        """Commands of nvme-cli that any guest can run."""
        return [
            tuple(words[3:])
            for words in commands(self.script)
            if words[:4] == ["potash", "guest", "--", "nvme"]
        ]


def typed(guest: Guest, script: str) -> None:
    """Type the lines of a block in a guest: each must succeed, but for those that the page says
    fail."""
    for line in script.replace("\\\n", "").splitlines():
        done = guest.capture(["sh", "-c", line])
        assert (done.code != 0) == line.endswith("# fails"), (line, done)


def shell_blocks() -> list[Block]:
    """The blocks of every page."""
    fence = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [
        Block(path.relative_to(ROOT).as_posix(), found[1], found[2])
        for path in documents()
        for found in fence.finditer(path.read_text())
    ]


def environment() -> dict[str, str]:
    """With this tree's packages, and the commands that were installed with this interpreter."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), "PATH": path}


def run_python(code: str, *, cwd: Path = ROOT, replace: Mapping[str, str] | None = None) -> str:
    """What a block prints when it is pasted into a file and run, which must succeed."""
    for old, new in (replace or {}).items():
        assert old in code
        code = code.replace(old, new)
    said = io.StringIO()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file, redirect_stdout(said), chdir(cwd):
        file.write(code)
        file.flush()
        runpy.run_path(file.name, run_name="__main__")
    return said.getvalue()


def run_shell(code: str, *, cwd: Path) -> str:
    """What a block prints, standard error included, when it is typed into a shell, where it must
    succeed."""
    done = subprocess.run(
        ["sh", "-ec", f"exec 2>&1\n{code}"],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def running(code: str, socket: str) -> Iterator[None]:
    """A block that serves a socket until it is ended, in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", code], env=environment()) as process:
        try:
            until = time.monotonic() + 30
            while not _listens(socket):
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.01)
            yield
        finally:
            process.kill()


def _listens(socket: str) -> bool:
    """True once clients can connect, which is later than when the file is there."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return any(line.endswith(f" {socket}") and line.split()[3] == "00010000" for line in lines)

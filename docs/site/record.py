"""Record the terminal of the front page, `docs/pictures/terminal.svg`: what some commands print.

    python docs/site/record.py

The commands are run, and boot a guest, so this picture is made when a release is, and not with the
others. Where a run prints a path of this machine, nothing is written.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "pictures" / "terminal.svg"
COLUMNS = 100
COMMANDS = (
    "potash guest -- nvme id-ctrl /dev/nvme0 | grep -E '^(sn|mn|fr|ver) '",
    "potash demo grep",
    "potash demo resnet18 --embedded | tail -8",
)


def output(command: str, folder: str) -> str:
    """What a shell prints for a command. Raises CalledProcessError where it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": str(COLUMNS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


def private(text: str) -> list[str]:
    """What a recording must not have: paths of this machine, and its user's and its own name."""
    names = {getpass.getuser(), os.uname().nodename}
    return paths(text) + [name for name in names if re.search(rf"\b{re.escape(name)}\b", text)]


def paths(text: str) -> list[str]:
    """Absolute paths, but for those of a guest."""
    return re.findall(r"(?<![\w.])/(?!dev/|share/)\w\S*", text)


def picture(lines: list[tuple[str, str]]) -> str:
    """A terminal with commands and what they have printed, as SVG that loads nothing."""
    console = Console(width=COLUMNS, record=True, file=StringIO(), force_terminal=True)
    for command, said in lines:
        console.print(Text.assemble(("$ ", "bright_green"), (command, "bold")))
        console.print(Text.from_ansi(said.rstrip()))
    fonts = re.compile(r"    @font-face \{\{.*?\n    \}\}\n", re.DOTALL)
    return console.export_svg(
        title="Potash",
        theme=MONOKAI,
        code_format=fonts.sub("", CONSOLE_SVG_FORMAT),
        unique_id="terminal",
    )


def main() -> int:
    """1 where the recording would say whose machine this is."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [(command, output(command, folder)) for command in COMMANDS]
    found = private("\n".join(said for _, said in lines))
    if found:
        print(f"not recorded, as it would contain {shlex.join(found)}", file=sys.stderr)
        return 1
    PICTURE.write_text(picture(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

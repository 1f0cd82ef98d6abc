"""Every command that the documentation shows, in a block of shell or in running text, is one that
there is.

Those of `potash` are parsed by its own command line; scripts, tests, targets of `make` and extras
for `pip` have to exist. Any other command needs a comment before its block, `MARKS`, that says who
tests it or why nobody does; but for those of a plain `potash guest -- nvme …`, which
`tests/vm/test_docs_in_a_guest.py` runs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
import record

from potash.cli.app import run_app
from support.docs import ROOT, Block, documents, shell_blocks
from support.shell import commands, problem

MARKS = re.compile(r"tested by (tests/[\w/]+\.py)|run in a guest|not run: .{9,}")
ORDINARY = frozenset(
    [".", "cat", "cd", "cmp", "cp", "dd", "echo", "exec", "grep", "head", "mkdir", "od", "printf"]
    + ["rm", "sh", "stat", "wc", "xxd"]
)
"""What any Unix has."""
TARGETS = frozenset(
    re.findall(r"^([\w/-]+):(?!=)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
)

EXTRAS = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}

BLOCKS = shell_blocks()
PAGES = sorted({block.page for block in BLOCKS})


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_blocks_are_valid(page: str) -> None:
    wrong = [
        (words, said)
        for block in BLOCKS
        if block.page == page
        for words in commands(block.script)
        if (said := invalid(block, words)) is not None
    ]
    assert wrong == []


def invalid(block: Block, words: Sequence[str]) -> str | None:
    """What is wrong with a command."""
    match words:
        case [] | ["nvme", *_] if not words or block.mark or tuple(words) in block.in_guests:
            return None
        case ["potash", *rest]:
            return problem(rest)
        case ["make", target, *_]:
            return None if target in TARGETS else f"make has no {target}"
    program = words[0].rpartition("/")[2]
    if program == "pip":
        named = re.findall(r"(?:potash|\.)\[([\w,-]+)\]", " ".join(words))
        extras = {extra for one in named for extra in one.split(",")} - EXTRAS
        return f"there is no extra {extras}" if extras else None
    if program in ("python", "python3", "pytest"):
        few = len(words) if program == "pytest" else 2
        files = [word for word in words[1:few] if "/" in word or word.endswith(".py")]
        places = (ROOT, (ROOT / block.page).parent)
        gone = [one for one in files if not any((place / one).exists() for place in places)]
        return None if block.mark or not gone else f"there is no {gone}"
    return None if block.mark or program in ORDINARY else "nobody tests it, and nothing says why"


CHEAP = {("demo", "list"), ("drive", "info"), ("vta", "info"), ("vta", "roofline"), ("vta", "time")}
"""Commands that take no time, and no files."""


@pytest.mark.parametrize(
    "words",
    sorted(
        {
            tuple(words[1:])
            for block in BLOCKS
            for words in commands(block.script)
            if words[:1] == ["potash"] and tuple(words[1:3]) in CHEAP
            if "--insns" not in words and not any(word.endswith(".tflite") for word in words)
        }
    ),
    ids=" ".join,
)
def test_what_is_cheap_is_run(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_app(words) == 0


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mark], ids=str)
def test_a_mark_is_true(block: Block) -> None:
    assert block.mark is not None
    found = MARKS.fullmatch(block.mark)
    assert found, block.mark
    if found[1]:
        tests = (ROOT / found[1]).read_text()
        assert Path(block.page).name in tests


def test_commands_are_in_blocks_of_shell() -> None:
    """Not in those of another language, or of a name for shell that nothing here looks for."""
    other = []
    for path in documents():
        for language, text in re.findall(
            r"^ *```([^\n`]*)\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            known = language in ("", "c", "diff", "python", "sh", "text", "toml", "yaml")
            hidden = language in ("", "text") and re.search(
                r"^ *(\$ |potash [\w-]+( \S|$))", text, re.MULTILINE
            )
            other += [] if known and not hidden else [(path.name, language, text)]
    assert other == []


def test_commands_in_running_text_are_valid() -> None:
    wrong, checked = [], 0
    for path in documents():
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for quoted in re.findall(r"`(potash [^`]+)`", text):
            for words in commands(" ".join(quoted.split())):
                checked += 1
                if words[0] == "potash" and (said := problem(words[1:], whole=False)):
                    wrong.append((path.name, quoted, said))
    assert wrong == []
    assert checked > 200


def test_the_recorded_terminal_shows_commands_that_there_are_and_no_machine() -> None:
    picture = (ROOT / "docs" / "pictures" / "terminal.svg").read_text()
    assert not re.search(r"url\((?!#)|href|@import", picture), "it loads something"
    text = "".join(ElementTree.fromstring(picture).itertext()).replace("\xa0", " ")
    shown = re.findall(r"\$ (potash .*)$", text, re.MULTILINE)
    assert [line.strip() for line in shown] == list(record.COMMANDS)
    for command in record.COMMANDS:
        block = Block("docs/README.md", "not run: docs/site/record.py does", command)
        assert not any(invalid(block, words) for words in commands(command))
    assert record.paths(text) == []
    assert record.paths("/home/x and /opt/y, but /dev/nvme0 and /share/z") == ["/home/x", "/opt/y,"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("potash serve --socket S --sise 1G", "No such option '--sise'"),
        ("potash sevre", "No such command 'sevre'"),
        ("potash run /dev/nvme0n1 program.o", "INPUT is missing"),
        ("potash bpf exec a.o b.o --input c", "b.o is too much"),
        ("potash vta run --insns a --dram b -o c --engine slow", "'slow' is not one of"),
        ("potash fault add", "DEVICE is missing"),
        ("potash guest -- sh -c 'cd / && potash cp lisst /dev/nvme0n1'", "'lisst'"),
        ("set=$(potash cp ranges craete /dev/nvme0n1 0:1M)", "'craete'"),
        ("potash trace demo add --embeded", "'--embeded'"),
        ("potash serve --size many", "many"),
        ("make tset", "make has no tset"),
        ("python docs/labs/chekc.py", "there is no"),
        ("pip install 'potash[sweeep]'", "there is no extra"),
        ("nvme smart-log /dev/nvme0", "nobody tests it"),
        ("qemu-system-x86_64 -m 1G", "nobody tests it"),
    ],
)
def test_what_is_wrong_is_found(script: str, said: str) -> None:
    block = Block("docs/page.md", None, script)
    found = [one for words in commands(script) if (one := invalid(block, words))]
    assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    "script",
    [
        "potash serve --socket S --fault 'io read status=INTERNAL_ERROR count=3'",
        "potash demo --embedded && potash demo grep --json | grep equal",
        "potash guest -- nvme list",
        "potash model run MODEL --input $(mktemp)",
        "potash --help",
        "size=$((1 + 2))",
    ],
)
def test_what_is_right_is_not(script: str) -> None:
    block = Block("docs/page.md", None, script)
    # mktemp is no command that the documentation uses.
    found = [invalid(block, words) for words in commands(script) if words[:1] != ["mktemp"]]
    assert not any(found), found


def test_what_is_no_shell_is_found() -> None:
    with pytest.raises(ValueError, match="this is not shell"):
        list(commands("potash serve --socket 'S"))

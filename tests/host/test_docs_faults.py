"""What `docs/faults.md` shows is what there is."""

from __future__ import annotations

import re
import struct
import tomllib
from pathlib import Path

import pytest

from csd_spec.faults import Fault, FaultFlags, FaultKind
from csd_spec.opcodes import FaultOpcode
from potash.sdk import faults
from potash.vm.drive import device_process
from support.docs import ROOT, SOCKET, blocks, run_python

PAGE = (ROOT / "docs" / "faults.md").read_text()


def test_the_sdk_s_example_runs(tmp_path: Path) -> None:
    (code,) = blocks("faults.md", "python")
    with device_process(tmp_path / "s", "--size", "1M", "--allow-faults"):
        said = run_python(code, replace={SOCKET: str(tmp_path / "s")}).splitlines()
    assert said == ["Read failed: Internal Error (SCT 0h, SC 06h)", "1"]


def test_the_file_is_one_of_faults() -> None:
    (text,) = blocks("faults.md", "toml")
    first, second = faults.read_table(tomllib.loads(text))
    assert first == faults.parse("io read status=UNRECOVERED_READ_ERROR count=3 dnr")
    assert second == faults.parse("media write lba=100..199")


WORDS = {
    "OPCODE": "read",
    "STATUS": "INTERNAL_ERROR",
    "TIME": "1.5ms",
    "RANGE": "100+8",
    "vector=N": "vector=1",
    "ana STATE": "ana inaccessible",
    "group=N": "group=7",
}


def table() -> list[str]:
    """The lines of the first table, with what they leave open filled in."""
    rows = PAGE.split("## Kinds of faults")[1].split("| word |")[0]
    lines = [line for line in re.findall(r"^\| `([^`]+)`", rows, re.MULTILINE) if "…" not in line]
    for word, value in WORDS.items():
        lines = [line.replace(word, value) for line in lines]
    return [line.replace("[", "").replace("]", "") for line in lines]


@pytest.mark.parametrize("line", table())
def test_every_line_is_a_fault(line: str) -> None:
    assert faults.parse(line)


def test_every_kind_has_its_line() -> None:
    assert {faults.parse(line).kind for line in table()} == set(FaultKind)
    shown = re.findall(r"'((?:io|media) [^'\n]+)'", PAGE)
    assert len(shown) == 2
    assert all(faults.parse(line) for line in shown)


def test_the_numbers_are_those_of_the_commands() -> None:
    assert [f"| {opcode:02X}h |" in PAGE for opcode in FaultOpcode] == [True, True]
    kinds = re.search(r"kind: (.*) \|", PAGE)
    assert kinds is not None
    assert [int(one.split()[0]) for one in kinds[1].split(", ")] == [*FaultKind]
    flags = re.search(r"\| 3 \| bit (.*) \|", PAGE)
    assert flags is not None
    assert [1 << int(one.split()[0]) for one in flags[1].split(", ")] == [*FaultFlags]


def test_the_bytes_of_a_fault_are_where_the_page_says() -> None:
    fault = Fault(
        FaultKind.LOST, FaultFlags.DNR, 1, 2, 3, 4, lba=5, blocks=6, delay=7, times=8, after=9
    )
    places = {"4:5": 1, "6:7": 2, "8:11": 3, "12:13": 4, "16:23": 5, "24:31": 6, "32:35": 7,
              "36:39": 8, "40:43": 9}  # fmt: skip
    sizes = {2: "<H", 4: "<I", 8: "<Q"}
    for place, value in places.items():
        assert re.search(rf"^\|[^|]*\b{place}\b", PAGE, re.MULTILINE), place
        first, last = map(int, place.split(":"))
        assert struct.unpack_from(sizes[last - first + 1], fault.encode(), first) == (value,)

"""Nothing is called that the oldest Python lacks that is asked for, its first release included.

What came with 3.12 or later `make test` finds with vermin, and with mypy where 3.11 runs it. What
came with a bugfix release of 3.11 neither knows; there is little of it: Python's documentation,
"Changed in version 3.11.x".
"""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("device", "docs", "examples", "firmware", "host", "tests")

LATE = re.compile(
    r"\b(?:extract|extractall|unpack_archive)\([^()]*\bfilter\s*="  # 3.11.4
    r"|\b(?:data|fully_trusted|tar)_filter\b"
    r"|\b[GS]etReparseDeferralEnabled\b"  # 3.11.9
    r"|\b(?:getaddresses|parseaddr)\([^()]*\bstrict\s*="  # 3.11.10
)


@pytest.mark.parametrize(
    "source",
    [
        'tar.extractall(place, filter="data")',
        "unpack_archive(\n    name,\n    filter=choose,\n)",
        "tarfile.data_filter(member, place)",
        "from tarfile import data_filter",
    ],
)
def test_what_came_with_a_bugfix_release_is_found(source: str) -> None:
    assert LATE.search(source)


def test_nothing_of_it_is_used() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 500
    files.remove(Path(__file__))
    assert [path for path in files if LATE.search(path.read_text())] == []


def test_what_make_looks_for_is_what_is_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = re.search(r"^OLDEST := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert oldest and project["requires-python"] == f">={oldest[1]}"

"""The sentences in `docs/troubleshooting.md` are sentences that Potash says."""

from __future__ import annotations

import re

import pytest

from support.docs import ROOT

PAGE = (
    (ROOT / "docs" / "troubleshooting.md").read_text().partition("## What potash doctor checks")[0]
)
NOT_OURS = ("potash: command not found", "AF_UNIX path too long", "No such file or directory")
"""What a shell and Python say."""


def symptoms() -> list[str]:
    """What the first column of a table quotes, up to what is not ours: paths and programs."""
    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]
    said = [quoted for row in rows for quoted in re.findall(r"^\| `([^`]+)`", row)]
    return [sentence for sentence in said if sentence not in NOT_OURS]


@pytest.fixture(scope="module")
def source() -> str:
    """All that can be said: the source, with sentences that are broken over lines made whole."""
    files = [
        path
        for tree in ("device", "firmware", "host")
        for path in sorted((ROOT / tree).rglob("*.py"))
    ]
    text = "\n".join(path.read_text() for path in [*files, ROOT / "Makefile"])
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


@pytest.mark.parametrize("sentence", symptoms())
def test_a_quoted_sentence_is_one_that_is_said(sentence: str, source: str) -> None:
    pieces = re.split(r"…|apt-get, apt-config, dpkg-deb, tar", sentence)
    assert any(len(piece.strip()) >= 10 for piece in pieces)
    for piece in pieces:
        assert piece in source, piece


def test_there_are_many() -> None:
    assert len(symptoms()) > 20

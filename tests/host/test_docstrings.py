"""Docstrings are sentences or noun phrases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docs import FRAGMENT, ROOT

FOLDERS = ("device", "firmware", "host")
PARAMETER = re.compile(r"^ +\\w+: (\\w+)", re.MULTILINE)
"""The first word about a parameter or an attribute."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and texts of the docstrings of a module, also of its attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_is_a_fragment(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in files
        for line, text in docstrings(path)
        if FRAGMENT.match(text)
        or any(FRAGMENT.match(described.capitalize()) for described in PARAMETER.findall(text))
    ] == []


@pytest.mark.parametrize("name", ["Engine", "Run", "Source", "State"])
def test_a_short_name_means_one_thing(name: str) -> None:
    folders = (ROOT / folder for folder in FOLDERS)
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    found = [text for text in texts if re.search(rf"^\s*class {name}\b", text, re.MULTILINE)]
    assert len(found) <= 1

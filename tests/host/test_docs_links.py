"""Links of the documentation lead somewhere: to pages, to source files, to names that are in
them."""

from __future__ import annotations

import re
import runpy

import pytest

from support.docs import ROOT, documents

DOCS = ROOT / "docs"
SITE = runpy.run_path(str(DOCS / "site" / "source_links.py"))
PAGES = [path.relative_to(DOCS).as_posix() for path in SITE["pages"]()]


def anchors(text: str) -> set[str]:
    """Where a page's headings can be linked to, as forges name them."""
    body = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)$", body, re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {word.strip().replace(" ", "-") for word in words}


def test_links_into_the_source_are_true() -> None:
    assert [
        one for page in PAGES for one in SITE["problems"](page, (DOCS / page).read_text())
    ] == []


def test_links_between_pages_are_true() -> None:
    for place in [*documents(), ROOT / "CHANGELOG.md"]:
        text = re.sub(r"^```.*?^```", "", place.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            other = (place.parent / path).resolve() if path else place
            assert other.exists(), f"{place.name}: {target}"
            if anchor:
                assert anchor in anchors(other.read_text()), f"{place.name}: {target}"


def test_the_readme_is_what_one_reads_at_once() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 110
    table = lines[lines.index("## Compared with") :]
    rows = [line.count("|") for line in table if line.startswith("| ")]
    assert rows == [8] * 12, "the projects, and eleven things about each"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[`Board`](../device/potash_device/board.py)", None),
        ("[`Board.reset()`](../device/potash_device/board.py)", None),
        ("[board.py](../device/potash_device/board.py)", None),
        ("[`board`](../device/potash_device/board.py)", None),
        ("[the board](../device/potash_device)", None),
        ("[`print`](../examples/include/potash.h)", None),
        ("[`AluOpcode.MUL`](../device/potash_device/vta/isa.py)", None),
        ("[`Core.error`](../device/potash_device/vta/core.py)", None),
        ("`[`Bored`](../device/potash_device/board.py)`", "has no Bored"),
        ("[`Board.bored`](../device/potash_device/board.py)", "has no Board.bored"),
        ("[`Board`](../device/potash_device/bored.py)", "there is no device"),
        ("[`tflite_gone`](../examples/include/potash.h)", "has no tflite_gone"),
    ],
)
def test_what_is_not_there_is_found_out(text: str, problem: str | None) -> None:
    said = SITE["problems"]("page.md", text)
    assert (problem in said[0] and len(said) == 1) if problem else said == []


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(PAGES))


def test_no_page_is_empty() -> None:
    for page in PAGES:
        assert len((DOCS / page).read_text().splitlines()) > 3, page


def test_lines_have_at_most_100_columns() -> None:
    """Exempt are rows of tables, output of programs, and single words such as long links."""
    found = []
    for path in [*documents(), ROOT / "CHANGELOG.md"]:
        text = re.sub(r"^```text\n.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        lines = [line for line in text.splitlines() if len(line) > 100 and not line.startswith("|")]
        found += [(path.name, line) for line in lines if " " in line.strip().lstrip("-* ")]
    assert found == []


def test_every_term_has_its_place_in_the_source() -> None:
    """The links themselves are checked with those of all pages: a file, and a name in it."""
    text = (DOCS / "inside.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", text[text.index("| term |") :], re.MULTILINE)[1:]
    assert len(rows) > 40
    for term, files in rows:
        links = list(SITE["links"]("inside.md", files))
        assert links or term.startswith("**"), term
        folders = [link for _, link in links if not link.path.endswith(".py")]
        named = [link for _, link in links if link.path.endswith(".py")]
        assert all((ROOT / link.path).is_dir() for link in folders), term
        assert all(link.text.startswith("`") for link in named), term

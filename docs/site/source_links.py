"""Links from the documentation into the source: true in the repository, and true on the site.

A page links to a file as anybody would, relative to itself, so that the link works on a forge and
in an editor: ``[`Board.region_write`](../device/potash_device/board.py)``. A text that is all code
names what is meant in that file. On the site the file becomes a page of its own, and the link leads
to the line where the name is defined; `problems` says which links lead nowhere. This is a hook of
mkdocs, and plain functions for who checks the pages without it.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = "source"
"""The site's folder of source files."""

LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".toml": "toml", ".yaml": "yaml", ".sh": "sh"}

_LINK = re.compile(
    r"\[(?P<text>[^\]\n]*(?:\n[^\]\n]+)?)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)
_MARK = "potash-line-"


class Link(NamedTuple):
    """A link to a source file: its text, and a path from the top of the repository."""

    text: str
    path: str

    @property
    def name(self) -> str | None:
        """What is meant in the file; None where the link means all of it."""
        code = re.fullmatch(r"`([\w.]+)(?:\(\))?`", self.text)
        if code is None or Path(self.path).suffix not in (".py", ".c", ".h"):
            return None
        name = code.group(1)
        return None if name in (Path(self.path).name, Path(self.path).stem) else name


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted(DOCS.rglob("*.md"))


def links(page: str, text: str) -> Iterator[tuple[re.Match[str], Link]]:
    """The links of a page, which is named from the top of `docs`, to source files: outside the
    documentation, and in its labs."""
    code = [found.span() for found in _FENCE.finditer(text)]
    for found in _LINK.finditer(text):
        target = found["target"]
        if "://" in target or any(first <= found.start() < end for first, end in code):
            continue
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if not path.startswith("docs/") or posixpath.splitext(path)[1] in LANGUAGES:
            yield found, Link(found["text"], path)


def problems(page: str, text: str) -> list[str]:
    """What is wrong with a page's links into the source, a sentence each."""
    wrong = []
    for _, link in links(page, text):
        place = ROOT / link.path
        if not place.exists():
            wrong.append(f"{page}: there is no {link.path}")
        elif link.name is not None and line_of(place, link.name) is None:
            wrong.append(f"{page}: {link.path} has no {link.name}")
    return wrong


def line_of(file: Path, name: str) -> int | None:
    """The line of `file` that defines `name`, dotted for what is in a class; None if none does."""
    if file.suffix == ".py":
        return _python_names(file).get(name)
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if re.search(rf"\b{re.escape(name)}\b", line):
            return number
    return None


@cache
def _python_names(file: Path) -> dict[str, int]:
    found: dict[str, int] = {}

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    found[prefix + node.name] = node.lineno
                    walk(node.body, f"{prefix}{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found[prefix + node.name] = node.lineno
                    for inner in ast.walk(node):
                        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                            found.setdefault(prefix + inner.attr, inner.lineno)
                case ast.Assign():
                    for target in node.targets:
                        if isinstance(target, ast.Name):
                            found[prefix + target.id] = node.lineno
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found[prefix + name] = node.lineno

    walk(ast.parse(file.read_text()).body, "")
    return found


# What mkdocs calls.


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each source file that a page links to, and for each folder."""
    from mkdocs.structure.files import File, InclusionLevel

    wanted = {
        link.path
        for page in pages()
        for _, link in links(page.relative_to(DOCS).as_posix(), page.read_text())
        if (ROOT / link.path).exists()
    }
    for folder in sorted(path for path in wanted if (ROOT / path).is_dir()):
        wanted.update(f"{folder}/{name}" for name in _listed(folder))
    for path in sorted(wanted):
        made = File.generated(config, f"{SOURCE}/{path}.md", content=_page(path))
        made.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to source files to their pages on the site; leave the API out of the search."""
    here = page.file.src_uri
    if posixpath.dirname(here) == "reference" and posixpath.basename(here) != "README.md":
        # Every name and parameter of the API would be found before what explains it.
        page.meta["search"] = {"exclude": True}
    if here.startswith(f"{SOURCE}/"):
        return markdown
    made, at = [], 0
    for found, link in links(here, markdown):
        target = posixpath.relpath(f"{SOURCE}/{link.path}.md", posixpath.dirname(here) or ".")
        line = line_of(ROOT / link.path, link.name) if link.name else None
        if line is not None:
            target += f"?{_MARK}{line}"
        made += [markdown[at : found.start()], f"[{link.text}]({target})"]
        at = found.end()
    return "".join(made) + markdown[at:]


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Lines have anchors that mkdocs does not know of, and so would not let pass any earlier."""
    return re.sub(rf"\?{_MARK}(\d+)", r"#__span-0-\1", html)


def _listed(folder: str) -> list[str]:
    """The text files of a folder, from it."""
    return sorted(
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in LANGUAGES and "__pycache__" not in path.parts
    )


def _page(path: str) -> str:
    place = ROOT / path
    if place.is_dir():
        base = posixpath.basename(path)
        names = (f"* [`{name}`]({base}/{name}.md)" for name in _listed(path))
        return f"# `{path}`\n\n" + "\n".join(names) + "\n"
    text = place.read_text()
    if place.suffix == ".md":
        return _readme(path, text)
    fence = "`" * max(4, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    language = LANGUAGES.get(place.suffix, "text")
    head = f"---\nhide: [toc]\n---\n\n# `{path}`\n\n"
    return f'{head}{fence}{language} linenums="1"\n{text}{fence}\n'


def _readme(path: str, text: str) -> str:
    """A page that lies outside the documentation: its links lead to pages, or nowhere."""
    here = posixpath.dirname(path)

    def lead(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target:
            return found[0]
        there = posixpath.normpath(posixpath.join(here, target))
        if not there.startswith("docs/"):
            return found["text"]
        page = posixpath.relpath(there.removeprefix("docs/"), f"{SOURCE}/{here}")
        return f"[{found['text']}]({page}{found['anchor'] or ''})"

    return _LINK.sub(lead, text)

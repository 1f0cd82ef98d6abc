"""The documentation as a site: it builds without a warning, and needs nothing from elsewhere.

Those that build it take half a minute and the extra `docs`:

    pytest -m slow tests/host/test_docs_site.py
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.docs import ROOT

PAGES = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]

LIMIT = 300


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def html(place: Path) -> str:
    return place.read_text()


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", html(page)):
            address = re.search(r"(?:src|href)=\"?([^\" >]+)", tag)
            canonical = 'rel="canonical"' in tag
            assert canonical or address is None or "//" not in address[1], f"{page.name}: {tag}"


@pytest.mark.slow
def test_a_link_into_the_source_leads_to_the_line(site: Path) -> None:
    tour = html(site / "tour.html")
    (target,) = set(re.findall(r'href="(source/[^"]*board\.py\.html#__span-0-\d+)"', tour))
    page, _, anchor = target.partition("#")
    source = html(site / page)
    assert f'id="{anchor}"' in source
    line = int(anchor.rpartition("-")[2])
    written = (ROOT / "device/potash_device/board.py").read_text().splitlines()[line - 1]
    assert written.startswith("    def region_write(")


@pytest.mark.slow
def test_every_anchor_in_a_source_file_is_there(site: Path) -> None:
    places = {
        page: set(re.findall(r'id="(__span-0-\d+)"', html(page)))
        for page in (site / "source").rglob("*.html")
    }
    checked = 0
    for page in site.rglob("*.html"):
        if "source" in page.relative_to(site).parts:
            continue
        for path, anchor in re.findall(r'href="([^"#]*source/[^"#]*)#(__span-0-\d+)"', html(page)):
            assert anchor in places[(page.parent / path).resolve()], f"{page.name}: {path}"
            checked += 1
    assert checked > 80


@pytest.mark.slow
def test_the_reference_has_what_the_docstrings_say(site: Path) -> None:
    page = html(site / "reference" / "sdk.html")
    for name in ("open", "Accelerator.run", "Device.read", "JobFailed"):
        assert f'id="potash.sdk.{name}"' in page
    page = html(site / "reference" / "testing.html")
    for name in ("BootedDevice.add_fault", "booted_guest", "plugin.potash_device"):
        assert f'id="potash.testing.{name}"' in page


@pytest.mark.slow
def test_an_example_s_readme_is_a_page(site: Path) -> None:
    page = html(site / "source" / "examples" / "grep" / "README.md.html")
    assert "<h1" in page and "Find lines in a log" in page and "<strong>Teaches:</strong>" in page


@pytest.mark.slow
def test_the_search_finds_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    pages = {entry["location"].partition("#")[0] for entry in index["docs"]}
    wanted = {str(Path(page).with_suffix(".html")) for page in PAGES}
    wanted = {page.replace("README.html", "index.html") for page in wanted}
    names = {page for page in wanted if page.startswith("reference/")} - {"reference/index.html"}
    assert wanted - names <= pages, "the pages"
    assert not names & pages, "and not every name of the API"
    (victim,) = {
        one["location"] for one in index["docs"] if one["title"] == "Lab 3: a garbage collector"
    }
    assert victim == "labs/garbage-collection.html"


def test_a_readme_s_links_lead_to_pages_or_nowhere() -> None:
    lead = runpy.run_path(str(ROOT / "docs" / "site" / "source_links.py"))["_readme"]
    text = "[a](../../docs/vta.md#tokens) [b](program.c) [c](https://example.org/)"
    led = lead("examples/add/README.md", text)
    assert led == "[a](../../../vta.md#tokens) b [c](https://example.org/)"


def test_the_extra_has_what_the_configuration_uses() -> None:
    described = (ROOT / "pyproject.toml").read_text()
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["theme"]["name"] == "material" and "mkdocs-material" in described
    assert "mkdocstrings[python]" in described
    assert settings["site_dir"] == "build/site"
    assert "/build/" in (ROOT / ".gitignore").read_text().splitlines()

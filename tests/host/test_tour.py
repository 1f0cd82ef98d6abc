"""The notebook, cell by cell. It is stored without outputs, so they cannot become outdated."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import nbformat
import pytest

from support.docs import ROOT, environment

TOUR = ROOT / "examples" / "tour.ipynb"
read: Any = nbformat.read
LIMIT = 300
"""Seconds for a cell: the first use of the tensor accelerator compiles its simulator."""


def test_it_is_stored_without_outputs_and_paths() -> None:
    tour: Any = read(TOUR, as_version=4)
    nbformat.validate(tour)
    for cell in tour.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    text = TOUR.read_text()
    assert str(ROOT) not in text and str(Path.home()) not in text


def test_a_link_leads_to_a_page() -> None:
    tour: Any = read(TOUR, as_version=4)
    text = "".join(cell.source for cell in tour.cells if cell.cell_type == "markdown")
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len(links) >= 3 and all((TOUR.parent / link).is_file() for link in links)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each cell with code gives: its text, or its picture. No cell raises."""
    # Each worker of pytest reads this file, and one runs it.
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("tour")
    tour: Any = read(TOUR, as_version=4)
    # Sockets in a folder of this user's, where a kernel would listen on TCP otherwise.
    manager = AsyncKernelManager(transport="ipc", ip=str(folder / "kernel"))
    metadata = {"metadata": {"path": str(folder)}}
    client = NotebookClient(tour, km=manager, timeout=LIMIT, resources=metadata)
    client.execute(env={**environment(), "TMPDIR": str(folder)}, cleanup_kc=True)
    assert list(folder.glob("potash-*")) == []
    return [
        [one.get("text") or one["data"]["image/svg+xml"] for one in cell.outputs]
        for cell in tour.cells
        if cell.cell_type == "code"
    ]


def test_every_cell_shows_what_it_says(outputs: list[Any]) -> None:
    texts = ["".join(found) for found in outputs]
    boot, built, ran, moved, asked, digits, roof, fault, trace, times, last = texts
    assert "64 MiB in blocks of 4096 bytes" in boot
    assert "bytes of object file" in built
    assert ran.splitlines() == ["['bytes counted: 16777216']", "as Python counts: True"]
    assert "'hall': ['north', 'south', None]" in asked
    assert "bit-identical to the reference kernels: True" in digits and "accuracy" in digits
    assert "Unrecovered Read Error" in fault and "triggered 1 time" in fault
    assert "worker 0: job" in trace
    for picture in (moved, roof, times):
        assert xml.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert last == ""
    assert "16 777 216 bytes" in moved and "the job, modelled" in times

"""What `docs/models.md` shows is what comes out."""

from __future__ import annotations

from pathlib import Path

from potash.models.networks import NETWORKS
from support.docs import ROOT, blocks, run_python, run_shell


def test_the_session_prints_what_the_page_says(tmp_path: Path) -> None:
    session = blocks("models.md", "sh")[0]
    said = run_shell(session, cwd=tmp_path).splitlines()
    shown = blocks("models.md", "text")[0].strip().splitlines()
    assert len(said) == len(shown)
    # What the fast kernels give depends on the input, which is random.
    for line, expected in zip(said, shown, strict=True):
        if "cpu" not in line + expected:
            assert line.split() == expected.split()


def test_the_graph_is_built(tmp_path: Path) -> None:
    (code,) = blocks("models.md", "python")
    said = run_python(code, cwd=tmp_path)
    assert said.startswith("(1, 2, 2, 4) ")


def test_every_kind_of_network_is_named() -> None:
    text = (ROOT / "docs" / "models.md").read_text()
    for name in NETWORKS:
        if not name.startswith(("add-", "conv2d-", "resnet18-c")):
            assert f"`{name}`" in text

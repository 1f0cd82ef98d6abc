"""Measure all public networks, and write the table in docs/models.md.

python docs/site/networks_table.py

This downloads some of 200 MB and takes a quarter of an hour. It ends with an error where the VTA
gives anything else than the reference kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from potash.bench.models import measure
from potash.bench.report import Result, Settings
from potash.models.public import PUBLIC

PAGE = Path(__file__).parents[1] / "models.md"
PAIRS = 4
HEAD = (
    "| network | nodes on the VTA | nodes on XNNPACK | modelled, ms | ratio to XNNPACK "
    "| first load, s | load, s |"
)


def main() -> None:
    """Replace the rows of the table."""
    rows = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for name in sorted(PUBLIC):
        found = list(measure(Settings([name], print, PAIRS), lambda label, share: None))
        if found:
            rows.append(row(name, found))
            print(rows[-1], flush=True)
    before, _, rest = PAGE.read_text().partition(HEAD)
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(before + "\n".join(rows) + after)


def row(name: str, results: Sequence[Result]) -> str:
    """A network's row."""
    by = {one.metric: one for one in results}
    nodes, taken, time = by["nodes"], by["XNNPACK's nodes"], by["time"]
    assert nodes.baseline is not None and time.ratio is not None
    cells = (
        name,
        f"{nodes.value:.0f} of {nodes.baseline.value:.0f}",
        "all" if taken.ratio == 1 else f"{taken.value:.0f}",
        f"{by['modelled time'].value:.1f}",
        f"{time.ratio:.1f}",
        f"{by['first load'].value:.1f}",
        f"{by['load'].value / 1e3:.2f}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

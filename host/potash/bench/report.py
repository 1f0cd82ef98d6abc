"""What a benchmark found, as JSON and as a table.

A machine under test is never alone: others use its processors, and its clock rate moves. So two
contenders run in turn, each pair of neighbours gives one ratio, and what is reported is the median
of those ratios with the lowest and the highest of them.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from potash.tables import columns


@dataclass(frozen=True)
class Peer:
    """Who was measured beside us, and the median of what it did."""

    name: str
    value: float


@dataclass(frozen=True)
class Result:
    """One figure of one workload.

    `value` is the median; `ratio` the median of the pairs' ratios, ours over the peer's; `spread`
    the lowest and the highest of those ratios, or of the values where there is no peer.
    """

    name: str
    metric: str
    value: float
    unit: str
    peer: Peer | None
    ratio: float | None
    pairs: int
    spread: tuple[float, float]


def paired(
    name: str, metric: str, unit: str, peer: str, pairs: Sequence[tuple[float, float]]
) -> Result:
    """The result of `pairs` of neighbouring measurements, ours and the peer's."""
    ratios = [ours / theirs for ours, theirs in pairs]
    return Result(
        name,
        metric,
        statistics.median(ours for ours, _ in pairs),
        unit,
        Peer(peer, statistics.median(theirs for _, theirs in pairs)),
        statistics.median(ratios),
        len(pairs),
        (min(ratios), max(ratios)),
    )


def alone(name: str, metric: str, unit: str, values: Sequence[float]) -> Result:
    """The result of measurements that have no peer."""
    median = statistics.median(values)
    return Result(name, metric, median, unit, None, None, len(values), (min(values), max(values)))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.processor(),
        "processors": len(models) or None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def document(results: Iterable[Result]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"machine": machine(), "results": [asdict(result) for result in results]}


def table(results: Sequence[Result]) -> str:
    """The same for people."""
    heads = ("", "metric", "unit", "ours", "peer", "ratio", "lowest", "highest", "pairs")
    rows: list[tuple[str, ...]] = [heads]
    for one in results:
        rows.append(
            (
                one.name,
                one.metric,
                one.unit,
                _figure(one.value),
                _figure(one.peer.value) if one.peer else "",
                f"{one.ratio:.2f}" if one.ratio is not None else "",
                *(f"{end:.2f}" if one.peer else _figure(end) for end in one.spread),
                str(one.pairs),
            )
        )
    return "\n".join(columns(rows, "<<<>"))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

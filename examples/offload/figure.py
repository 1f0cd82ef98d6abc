"""The table and the picture of docs/offload.md from the experiment's results.

    python figure.py DIR [--json]

draws DIR/offload.svg and prints a row for each point: bytes to the host as a share of the data, and
milliseconds on the host, in the drive with its counted time, and with the declared one.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from potash.experiment.plot import Plot, draw


def rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each point, in the order of the results."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    with (folder / "results.csv").open() as file:
        for one in csv.DictReader(file):
            names = ("work", "drives", "selectivity")
            row = found.setdefault(tuple(one[name] for name in names), {})
            row |= {"work": one["work"], "drives": int(one["drives"])}
            row["selectivity"] = float(one["selectivity"])
            where = "host" if one["method"] == "host" else one["run_time"]
            row[f"{where}_ms"] = int(one["elapsed_ns"]) / 1e6
            row["data" if where == "host" else "output"] = int(one["to_host"])
    return [{**row, "share": row["output"] / row["data"]} for row in found.values()]


def picture(table: list[dict[str, Any]]) -> bytes:
    """The speedup over the host with four drives, by selectivity."""
    points = [
        {
            "selectivity": row["selectivity"],
            "speedup": row["host_ms"] / row[f"{where}_ms"],
            "line": f"{row['work']}, {where}",
        }
        for row in table
        if row["drives"] == max(one["drives"] for one in table)
        for where in ("declared", "counted")
    ]
    return draw(Plot("selectivity", "speedup", ("line",)), points)


def main(folder: Path, *options: str) -> None:
    table = rows(folder)
    (folder / "offload.svg").write_bytes(picture(table))
    if "--json" in options:
        print(json.dumps(table, indent=2))
        return
    print("| work | drives | selected | to host | host | counted | declared |")
    print("|---|---|---|---|---|---|---|")
    for row in table:
        times = " | ".join(f"{row[f'{where}_ms']:.2f}" for where in ("host", "counted", "declared"))
        share = f"{row['selectivity']:.0%} | {row['share']:.1%}"
        print(f"| {row['work']} | {row['drives']} | {share} | {times} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""The tables of `docs/bench.md`, from the results of `potash bench all --json`.

python docs/site/bench_page.py FILE…    # has new results replace those in docs/figures.json

A table is between two comments in the page, of which the first has its name. Where its benchmark is
not among the results, it stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[1]
PAGE, FIGURES = DOCS / "bench.md", DOCS / "figures.json"
BLOCK = re.compile(
    r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(\n<!-- end of figures -->)", re.DOTALL
)
MISSING = "–"

Result = Mapping[str, Any]
"""An item of `results`, as docs/json.md describes it."""
Show = Callable[[Result], str]


class Column(NamedTuple):
    """A column of a table: a metric of the workload that a row names, with `suffix` behind it."""

    head: str
    metrics: tuple[str, ...]
    show: Show
    suffix: str = ""


class Table(NamedTuple):
    """A table: rows of a text, a workload's name, and what limits it.

    The command of the benchmark is the head of the first column.
    """

    benchmark: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, str, str]]


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def ratio(result: Result) -> str:
    """The ratio to the baseline, as median [lowest, highest]."""
    low, high = result["spread"]
    return f"{result['ratio']:.2f} [{low:.2f}, {high:.2f}]"


def value(result: Result) -> str:
    """The median with its unit."""
    found, unit = result["value"], result["unit"].removesuffix("/io")
    if unit == "bytes" and found >= 1e6:
        return f"{found / 1e6:.1f} MB"
    return _number(found) + ("" if unit in ("", "1/s", "requests/s") else f" {unit}")


def ranged(result: Result) -> str:
    """The median with its unit, and the lowest and the highest value."""
    return f"{value(result)} [{', '.join(map(_number, result['spread']))}]"


def baseline(result: Result) -> str:
    """The median of the baseline, with its unit."""
    return value({**result, "value": result["baseline"]["value"]})


def share(result: Result) -> str:
    """The ratio alone, or a value that is one."""
    return f"{result['value'] if result['ratio'] is None else result['ratio']:.2g}"


RATE, COST = ("iops",), ("device time",)
GUEST = ("iops", "throughput")
TIME = ("time",)

WAKING = "three processes wake each other for each command"
EMULATED = "the guest's own time for a command, on emulated CPUs"
COPIES = "one copy of the data; with two vCPUs, the device competes with them for the cores"
PASS = "a pass of the loop in Python, about 6 µs"
FAST = "decoding and completing in Python, 0.5 µs, and one copy of the data"
ONE_COPY = "one copy of the data"
DEADLINES = "a deadline in Python for each command; the model takes 0.2 µs of it"
HOPS = "Python in RPU, APU and worker, and their wake-ups where there are fewer processors"
JOBS = "Python for each job, 5 to 40 µs"
TURNS = "transfers and ALU steps, which take turns with products"
SMALL = "loading and storing accumulators, which have few products"
BETWEEN = "ALU steps, stores and transfers between products"
IMPORTS = "importing modules, of which a third is making classes"

MODELS = [
    ("`resnet18`", "resnet18", BETWEEN),
    ("`mobilenet-v2`", "mobilenet-v2", BETWEEN),
    ("`resnet18-c1`, the first layer", "resnet18-c1", "3 of 16 channels are used"),
    ("`resnet18-c9`, a 3x3 layer", "resnet18-c9", BETWEEN),
    ("`resnet18-c3`, a 1x1 layer", "resnet18-c3", "transfers"),
    ("`add-200007`", "add-200007", "ALU steps and transfers"),
    ("`digits`", "digits", "the call of a model, which both have"),
    *((f"`{name}`", name, BETWEEN) for name in ("hand-landmark", "pose-detection")),
]

TABLES: Mapping[str, Table] = {
    "start": Table(
        "start",
        [
            Column("time", ("time", "ready"), value),
            Column("memory", ("memory",), value),
        ],
        [
            ("`potash --help`", "help", "the start of Python"),
            ("`potash serve` is ready", "serve", IMPORTS),
            ("the same with `--time modelled`", "serve-modelled", IMPORTS + ", and of NumPy"),
        ],
    ),
    "guest": Table(
        "nvme --guest",
        [
            Column("one vCPU", GUEST, ratio),
            Column("two vCPUs, a job on each", GUEST, ratio, "-cpu2"),
        ],
        [
            ("random read, 4 KiB, depth 1", "randread-4k-qd1", WAKING),
            ("random read, 4 KiB, depth 32", "randread-4k-qd32", EMULATED),
            ("random write, 4 KiB, depth 1", "randwrite-4k-qd1", WAKING),
            ("random write, 4 KiB, depth 32", "randwrite-4k-qd32", EMULATED),
            ("sequential read, 128 KiB, depth 8", "seqread-128k-qd8", COPIES),
            ("sequential write, 128 KiB, depth 8", "seqwrite-128k-qd8", COPIES),
        ],
    ),
    "socket": Table(
        "nvme",
        [
            Column("commands per second", RATE, value),
            Column("processor time", COST, value),
            Column("processor time with SGLs", COST, value, "-sgl"),
        ],
        [
            ("read, 4 KiB, depth 1", "socket-randread-4k-qd1", PASS),
            ("read, 4 KiB, depth 32", "socket-randread-4k-qd32", FAST),
            ("read, 128 KiB, depth 8", "socket-randread-128k-qd8", ONE_COPY),
            ("read, 4 KiB, depth 1, two queues", "socket-randread-4k-qd1-2q", PASS),
            ("read, 4 KiB, depth 32, two queues", "socket-randread-4k-qd32-2q", FAST),
        ],
    ),
    "modelled": Table(
        "nvme",
        [
            Column("commands per second", RATE, value),
            Column("processor time of a command", COST, value),
            Column("without a model", COST, baseline),
        ],
        [
            (
                f"{drive}, random {name}, depth {depth}",
                f"modelled-{drive}-rand{name}-4k-qd{depth}",
                PASS if depth == 1 else DEADLINES,
            )
            for drive in ("z-nand", "tlc")
            for name in ("read", "write")
            for depth in (1, 32)
        ],
    ),
    "memory": Table(
        "nvme",
        [
            Column("ratio, median [lowest, highest]", RATE, ratio),
            Column("processor time", COST, value),
        ],
        [
            ("Memory Read 4 KiB, depth 32, to reads of blocks", "memory-read-4k-qd32", FAST),
            ("Memory Write 4 KiB, depth 32, to reads of blocks", "memory-write-4k-qd32", FAST),
            (
                "Memory Copy of 1 MiB, depth 1, to a memory copy",
                "memory-copy-1m-qd1",
                "one copy of the data, and 24 µs of Python",
            ),
            ("Memory Copy of 1 MiB, depth 4, to a memory copy", "memory-copy-1m-qd4", ONE_COPY),
        ],
    ),
    "cp": Table(
        "cp",
        [
            Column("latency", ("latency",), ranged),
            Column("executions per second", RATE, ranged),
            Column("device time", COST, value),
        ],
        [
            ("`execute-qd1`: one after the other", "execute-qd1", HOPS),
            ("`execute-ranges-qd1`: with a set of two memory ranges", "execute-ranges-qd1", HOPS),
            ("`execute-qd8`: eight at a time", "execute-qd8", HOPS),
            ("`execute-qd32`: 32 at a time", "execute-qd32", HOPS),
        ],
    ),
    "bpf": Table(
        "bpf",
        [Column("ratio to `clang -O2`", ("time", "mean time"), ratio), Column("time", TIME, value)],
        [
            *((name, name, JOBS) for name in ("sum", "sum64", "histogram", "filter")),
            ("grep", "grep", "exact counts of instructions"),
            ("crc32", "crc32", "guards of addresses"),
            ("sha256", "sha256", JOBS),
            ("matmul", "matmul", "gathers, whose confined addresses need 64-bit indices"),
            *((name, name, JOBS) for name in ("sieve", "copy")),
            ("geometric mean", "all kernels", "the rows above"),
        ],
    ),
    "vta": Table(
        "vta",
        [Column("share of the peak", ("throughput", "share of peak"), share)],
        [
            (
                "C2, fixed tiling",
                "C2",
                "loads: an input of its own for each product, so at most 0.72",
            ),
            *((f"{layer}, fixed tiling", layer, TURNS) for layer in ("C6", "C9", "C12")),
            ("matrix product of 1024", "matmul-1024", TURNS),
            ("geometric mean of these five", "layers", "the rows above"),
            ("single products in random order", "irregular", "no tile can be made"),
            ("C1, empty channels included", "C1", "3 of 16 channels are used"),
            *((f"{layer}, 1x1", layer, SMALL) for layer in ("C3", "C5", "C8", "C11")),
            *(
                (f"{layer}, the scheduler's tiling", name, TURNS)
                for layer, name in (
                    ("C2", "C2-scheduled"),
                    ("C4", "C4"),
                    ("C6", "C6-scheduled"),
                    ("C7", "C7"),
                    ("C9", "C9-scheduled"),
                    ("C10", "C10"),
                    ("C12", "C12-scheduled"),
                )
            ),
        ],
    ),
    "models": Table(
        "model",
        [
            Column("delegate", TIME, value),
            Column("ratio to XNNPACK", TIME, ratio),
            Column("ratio to reference kernels", ("time beside reference",), share),
            Column("modelled cycles", ("cycles",), value),
        ],
        MODELS,
    ),
    "models-2": Table(
        "model --threads 2",
        [Column("delegate", TIME, value), Column("ratio to XNNPACK in two threads", TIME, ratio)],
        MODELS[:4],
    ),
    "drive": Table(
        "drive",
        [Column("requests per second", ("throughput",), value)],
        [
            ("`simulate`: a trace runs on the model", "simulate", "one thread, in order of time"),
            ("`trace-reading`: lines of CSV", "trace-reading", "one thread"),
        ],
    ),
    **{
        name: Table(
            benchmark,
            [
                Column("moved", ("moved",), value),
                Column("moved by the baseline", ("moved",), baseline),
                Column("read by the drive", ("read by the drive",), value),
                Column("time", TIME, value),
                Column("time of the baseline", TIME, baseline),
            ],
            [(part, f"q6-{part.replace(' ', '')}", limit) for part in ("1 %", "10 %", "100 %")],
        )
        for name, benchmark, limit in (
            ("columns", "columns", "both compute on the same processor"),
            ("columns-guest", "columns --guest", "the start of Python in an emulated guest"),
        )
    },
}


def page() -> str:
    """The page, with the tables of the results."""
    return replaced(PAGE.read_text(encoding="utf-8"), _stored())


def replaced(text: str, figures: Mapping[str, Any]) -> str:
    """A text, with the tables of results where it has others."""
    found = {one["name"]: one["results"] for one in figures.get("benchmarks", ())}

    def table(block: re.Match[str]) -> str:
        described = TABLES[block["name"]]
        results = found.get(described.benchmark)
        if not results:
            return block[0]
        machine = figures["machine"]
        pairs = max(one["pairs"] for one in results)
        caption = (
            f"Medians of {pairs} measurements, on {machine['processors']} processors "
            f"({machine['processor']}; {machine['system']}, Python {machine['python']}):"
        )
        return block[1] + "\n".join([caption, "", *lines(described, results)]) + block[3]

    return BLOCK.sub(table, text)


def lines(table: Table, results: Sequence[Result]) -> list[str]:
    """A table in Markdown."""
    by = {(one["name"], one["metric"]): one for one in results}
    command = f"`potash bench {table.benchmark}`"
    heads = [command, *(column.head for column in table.columns), "limited by"]
    made = [_row(heads), "|---" * len(heads) + "|"]
    for text, name, limit in table.rows:
        cells = [text]
        for column in table.columns:
            values = (by.get((name + column.suffix, metric)) for metric in column.metrics)
            cell = next((column.show(one) for one in values if one is not None), MISSING)
            cells.append(cell)
        made.append(_row([*cells, limit]))
    return made


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _stored() -> dict[str, Any]:
    return json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}


def main() -> None:
    """Keep results, and write the tables."""
    figures = _stored()
    kept = {one["name"]: one for one in figures.get("benchmarks", ())}
    for file in sys.argv[1:]:
        new = json.loads(Path(file).read_text(encoding="utf-8"))
        # Without the suffix that whoever built the kernel gave its version.
        system = new["machine"]["system"].partition("-")[0]
        figures["machine"] = new["machine"] | {"system": system}
        kept |= {one["name"]: one for one in new["benchmarks"]}
    figures["benchmarks"] = list(kept.values())
    FIGURES.write_text(_lines(figures), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def _lines(figures: dict[str, Any]) -> str:
    """The document with a line for each result, as indented numbers would be thousands of lines."""
    results = [each["results"] for each in figures["benchmarks"]]
    heads = [{**each, "results": []} for each in figures["benchmarks"]]
    parts = json.dumps({**figures, "benchmarks": heads}, indent=1).split('"results": []')
    rows = [",\n".join(f"    {json.dumps(result)}" for result in found) for found in results]
    lists = [f'"results": [\n{row}\n   ]' for row in rows]
    return parts[0] + "".join(map("".join, zip(lists, parts[1:], strict=True))) + "\n"


if __name__ == "__main__":
    main()

"""Tables on drives as Polars's LazyFrames, whose conditions and columns the drive applies.

    import polars as pl
    import potash.polars

    sales = potash.polars.scan("/mnt/sales.parquet")
    sales.filter(pl.col("price") > 100).group_by("region").agg(pl.len()).collect()

Polars hands the conditions of a scan, its columns and a limit to this module. The drive applies
the conditions that it decides exactly as Polars does; Polars applies the others to the rows that
the drive gives. Groups, aggregates, joins and sorting are Polars's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import polars as pl
from polars.io.plugins import register_io_source

from potash.dataframes import polars_conditions
from potash.dataframes.table import Pushed, Scan, Table, pushed
from potash.sdk import Device

__all__ = ["explain", "scan"]

_explained: dict[int, list[Scan]] = {}
"""Scans since each call of `explain` that has not ended."""
_explaining = threading.Lock()


def scan(source: str | os.PathLike[str], device: str | Device | None = None) -> pl.LazyFrame:
    """A table on a drive.

    Args:
        source: a Parquet or Arrow file in a file system of the drive, or lba:BLOCK:SIZE.
        device: the drive, open or as `potash.sdk.open` takes it; without one, that of the path.

    Raises PotashError where the drive cannot be opened, or the file cannot be read.
    """
    table = Table(source, device)
    schema = pl.DataFrame(table.schema.empty_table()).schema

    def read(
        columns: list[str] | None,
        predicate: pl.Expr | None,
        rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        split = Pushed()
        if predicate is not None and rows is not None:  # Polars's limit comes before a condition
            split = Pushed(kept=("the limit comes first",))
        elif predicate is not None:
            split = pushed(
                polars_conditions.conditions(predicate),
                lambda part: polars_conditions.condition(part, table.schema),
            )
        made = Scan(table, columns, split, rows)
        with _explaining:
            for scans in _explained.values():
                scans.append(made)
        yield pl.DataFrame(made.schema.empty_table())  # Polars wants one
        for batch in made.batches():
            frame = pl.DataFrame(batch)
            yield frame.filter(predicate) if predicate is not None and split.kept else frame

    return register_io_source(
        read,
        schema=schema,
        is_pure=True,
        explain_name="potash",
        explain_detail=table.name,
    )


def explain(frame: pl.LazyFrame) -> str:
    """Run a query, and describe what the drives have done for each scan of its plan.

    Scans of other queries that run meanwhile are described, too.
    """
    scans: list[Scan] = []
    with _explaining:
        _explained[id(scans)] = scans
    try:
        frame.collect()
    finally:
        with _explaining:
            del _explained[id(scans)]
    return "\n".join([frame.explain(), *(line for made in scans for line in made.lines("Polars"))])

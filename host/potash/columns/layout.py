"""The jobs of a query: which pages of a file each one reads, and the table of its batches.

A job reads only the pages that have the query's columns, in the order of the file. What does not
fit in one job is divided between several, in parts of a batch if need be.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from csd_spec.opcodes import PAGE_SIZE
from potash.columns.arrow import Batch, Span
from potash.columns.errors import InvalidFile
from potash.columns.generator import ALL_VALID, entry_size
from potash.columns.plan import WORD, Aggregated, Plan
from potash.columns.schema import Column
from potash.sdk.targets import Range, pages_of

MAX_ROWS = 1 << 28
"""Rows of a job, so that no word of a sum overflows."""
SMALLEST = 8
"""Rows of the smallest part of a batch: a byte of a bitmap."""

Locate = Callable[[Range], list[Range]]
"""Pages of the file to pages of the drive."""


class Limits(NamedTuple):
    """Limits of one job."""

    ranges: int
    """Runs of pages on the drive."""
    table: int
    """Bytes of the table."""
    fits: Callable[[int, int], bool]
    """A function that is true if so many bytes of input and of output are possible."""


UNLIMITED = Limits(1 << 30, 1 << 30, lambda read, made: True)


@dataclass
class Job:
    """Pages of the drive that are read one after another, and the table."""

    pages: list[Range] = field(default_factory=list)
    """Pages of the file, in its order."""
    ranges: int = 0
    """Runs of pages on the drive, at most."""
    rows: int = 0
    batches: list[tuple[int, list[Span | None]]] = field(default_factory=list)
    """Rows of each part of a batch, and where its columns are in the file."""

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(one.pages for one in self.pages) * PAGE_SIZE

    @property
    def table(self) -> bytes:
        """The program's table: for each part of a batch, the places of its columns in the input."""
        skipped: list[int] = []  # pages before each run that are no input
        end = 0
        for run in self.pages:
            skipped.append((skipped[-1] if skipped else 0) + run.page - end)
            end = run.page + run.pages
        words = [len(self.batches)]
        for rows, spans in self.batches:
            words.append(rows)
            for span in spans:
                if span is None:
                    words.append(ALL_VALID)
                    continue
                run_of_it = (
                    bisect_right(self.pages, span.offset // PAGE_SIZE, key=lambda run: run.page) - 1
                )
                words.append(span.offset - skipped[run_of_it] * PAGE_SIZE)
        return struct.pack(f"<{len(words)}Q", *words)


def jobs_of(plan: Plan, batches: Iterable[Batch], locate: Locate, limits: Limits) -> Iterator[Job]:
    """The jobs for all batches. Raises InvalidFile for a file in too many pieces."""
    job = Job()
    for batch in batches:
        waiting = [(0, batch.rows)] if batch.rows else []
        while waiting:
            first, last = waiting.pop()
            spans = _spans(plan, batch, first, last)
            if _add(job, plan, last - first, spans, locate, limits):
                continue
            if job.batches:
                yield job
                job = Job()
                waiting.append((first, last))
                continue
            middle = first + (last - first) // 2 // SMALLEST * SMALLEST
            if middle == first:
                raise InvalidFile(
                    "8 of its rows do not fit in a job; copy it, so that it is in fewer pieces on"
                    " the drive, or use fewer columns or a drive with larger buffers"
                )
            waiting += [(middle, last), (first, middle)]
    if job.batches:
        yield job


def whole_file(plan: Plan, batches: Iterable[Batch], size: int) -> Job:
    """A job that has all pages of a file, and of them the query's columns in the table."""
    parts = [(one.rows, _spans(plan, one, 0, one.rows)) for one in batches if one.rows]
    return Job([Range(0, pages_of(size))], batches=parts)


def _spans(plan: Plan, batch: Batch, first: int, last: int) -> list[Span | None]:
    """Some rows of each column and, of those with nulls, of the bitmap, in the order of the table.

    `first` is a multiple of 8. A bitmap that is not there is None.
    """
    found: list[Span | None] = []
    for column in plan.columns:
        part = batch.parts[column.name]
        found.append(_rows_of(part.data, column.stored.bits, first, last))
        if column.name in plan.nullable:
            bitmap = part.validity
            found.append(None if bitmap is None else _rows_of(bitmap, 1, first, last))
    return found


def _rows_of(span: Span, bits: int, first: int, last: int) -> Span:
    return Span(span.offset + first * bits // 8, ((last - first) * bits + 7) // 8)


def _add(
    job: Job, plan: Plan, rows: int, spans: list[Span | None], locate: Locate, limits: Limits
) -> bool:
    """Add rows of a batch to a job, if they fit."""
    read = [
        Range(one.offset // PAGE_SIZE, pages_of(one.offset % PAGE_SIZE + one.length))
        for one in spans
        if one is not None
    ]
    # With pages between two columns, too, where the drive has fewer places in a job than there are.
    for gap in (0, 16, 256, 1 << 20):
        runs = _merged(read, gap)
        ranges = job.ranges + sum(len(locate(run)) for run in runs)
        if ranges <= limits.ranges:
            break
    else:
        return False
    total, pages = job.rows + rows, _merged([*job.pages, *runs], 0)
    size = sum(one.pages for one in pages) * PAGE_SIZE
    table = WORD + (len(job.batches) + 1) * entry_size(plan)
    if total > MAX_ROWS or table > limits.table or not limits.fits(size, output_room(plan, total)):
        return False
    job.pages, job.ranges, job.rows = pages, ranges, total
    job.batches.append((rows, spans))
    return True


def _merged(runs: Iterable[Range], gap: int) -> list[Range]:
    """Runs in the order of the file; those that are no farther apart than `gap` are one."""
    found: list[Range] = []
    for page, pages in sorted(runs):
        if found and page <= found[-1].page + found[-1].pages + gap:
            start, before = found[-1]
            found[-1] = Range(start, max(before, page + pages - start))
        else:
            found.append(Range(page, pages))
    return found


def output_room(plan: Plan, rows: int) -> int:
    """Bytes that the output of so many rows can have."""
    if isinstance(plan.result, Aggregated):
        return plan.result.size
    return rows * plan.result.record(plan.nullable).size


def nullable_of(columns: Iterable[Column], batches: Iterable[Batch]) -> frozenset[str]:
    """The columns that have nulls."""
    wanted = list(columns)
    return frozenset(
        column.name for batch in batches for column in wanted if batch.parts[column.name].validity
    )

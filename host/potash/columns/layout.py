"""The jobs of a query: which pages of a file each one reads, and the table of its batches.

A job reads only the pages that have the query's columns, in the order of the file. What does not
fit in one job is divided between several, in parts of a batch if need be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from csd_spec.opcodes import PAGE_SIZE
from potash.columns.arrow import Batch, Span
from potash.columns.errors import InvalidFile
from potash.columns.generator import ALL_VALID, entry_size
from potash.columns.plan import Aggregated, Plan
from potash.columns.schema import Column
from potash.sdk.targets import Range, pages_of

MAX_ROWS = 1 << 28
"""Rows of a job, so that no word of a sum overflows."""
SMALLEST = 8
"""Rows of the smallest part of a batch: a byte of a bitmap."""
_WORD = struct.Struct("<Q")

Locate = Callable[[Range], list[Range]]
"""Pages of the file to pages of the drive."""


class Limits(NamedTuple):
    """What one job can have."""

    ranges: int
    """Runs of pages on the drive."""
    table: int
    """Bytes of the table."""
    fits: Callable[[int, int], bool]
    """Whether so many bytes of input and of output are possible."""


UNLIMITED = Limits(1 << 30, 1 << 30, lambda read, made: True)


@dataclass
class Job:
    """Pages of the drive that are read one after another, and the table."""

    pages: list[Range] = field(default_factory=list)
    """Of the file."""
    ranges: int = 0
    """Runs of pages on the drive."""
    rows: int = 0
    entries: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(one.pages for one in self.pages) * PAGE_SIZE

    @property
    def table(self) -> bytes:
        return _WORD.pack(len(self.entries)) + b"".join(self.entries)


def jobs_of(plan: Plan, batches: Iterable[Batch], locate: Locate, limits: Limits) -> Iterator[Job]:
    """The jobs for all batches. Raises InvalidFile for a file in too many pieces."""
    job = Job()
    for batch in batches:
        if not batch.rows:
            continue
        parts = list(_parts(plan, batch))
        waiting = [(0, batch.rows)]
        while waiting:
            first, last = waiting.pop(0)
            if _add(job, plan, parts, (first, last), locate, limits):
                continue
            if job.entries:
                yield job
                job = Job()
                waiting.insert(0, (first, last))
                continue
            middle = first + (last - first) // 2 // SMALLEST * SMALLEST
            if middle == first:
                raise InvalidFile(
                    "8 of its rows do not fit in a job; copy it, so that it is in fewer pieces on"
                    " the drive, or use fewer columns or a drive with larger buffers"
                )
            waiting[:0] = [(first, middle), (middle, last)]
    if job.entries:
        yield job


def whole_file(plan: Plan, batches: Iterable[Batch], size: int) -> Job:
    """A job that has all pages of a file, and of them the query's columns in the table."""
    pages = Range(0, pages_of(size))
    job = Job([pages])
    for batch in batches:
        if batch.rows:
            _add(
                job, plan, list(_parts(plan, batch)), (0, batch.rows), lambda run: [run], UNLIMITED
            )
    return job


class _Part(NamedTuple):
    """A column's values or its bitmap in a batch; `span` is None for a bitmap that is not there."""

    bits: int
    span: Span | None


def _parts(plan: Plan, batch: Batch) -> Iterator[_Part]:
    """In the order of the table."""
    for column in plan.columns:
        part = batch.part(column)
        yield _Part(column.stored.bits, part.data)
        if column.name in plan.nullable:
            yield _Part(1, part.validity)


def _add(
    job: Job,
    plan: Plan,
    parts: Sequence[_Part],
    rows: tuple[int, int],
    locate: Locate,
    limits: Limits,
) -> bool:
    """Add rows of a batch to a job, if they fit."""
    first, last = rows
    spans = [
        None if one.span is None else _rows_of(one.span, one.bits, first, last) for one in parts
    ]
    # With pages between two columns, too, where the drive has fewer places in a job than there are.
    for gap in (0, 16, 256, 1 << 20):
        runs = _runs([one for one in spans if one is not None], gap)
        pages = list(job.pages)
        places = [_append(pages, run) for run in runs]
        pieces = job.ranges + sum(len(locate(run)) for run in runs)
        if pieces <= limits.ranges:
            break
    else:
        return False
    total = job.rows + last - first
    size = sum(one.pages for one in pages) * PAGE_SIZE
    table = _WORD.size + (len(job.entries) + 1) * entry_size(plan)
    if total > MAX_ROWS or table > limits.table or not limits.fits(size, output_room(plan, total)):
        return False
    entry = [_WORD.pack(last - first)]
    for span in spans:
        place = ALL_VALID if span is None else _place(span.offset, runs, places)
        entry.append(_WORD.pack(place))
    job.pages, job.ranges, job.rows = pages, pieces, total
    job.entries.append(b"".join(entry))
    return True


def output_room(plan: Plan, rows: int) -> int:
    """Bytes that the output of so many rows can have."""
    if isinstance(plan.result, Aggregated):
        return plan.result.size
    return rows * plan.result.record(plan.nullable).size


def _rows_of(span: Span, bits: int, first: int, last: int) -> Span:
    """The bytes of some rows; `first` is a multiple of 8."""
    return Span(span.offset + first * bits // 8, ((last - first) * bits + 7) // 8)


def _runs(spans: Iterable[Span], gap: int) -> list[Range]:
    """The pages of all spans, in the order of the file; runs that are nearer than `gap` are one."""
    runs: list[Range] = []
    for span in sorted(spans):
        page = span.offset // PAGE_SIZE
        end = -(-(span.offset + span.length) // PAGE_SIZE)
        if runs and page <= runs[-1].page + runs[-1].pages + gap:
            start = runs[-1].page
            runs[-1] = Range(start, max(runs[-1].pages, end - start))
        else:
            runs.append(Range(page, end - page))
    return runs


def _append(pages: list[Range], run: Range) -> int:
    """Add a run to a job's pages; the byte of the input where it begins."""
    before = sum(one.pages for one in pages) * PAGE_SIZE
    if pages:
        last = pages[-1]
        if last.page <= run.page <= last.page + last.pages:
            begins = before - (last.page + last.pages - run.page) * PAGE_SIZE
            pages[-1] = Range(last.page, max(last.pages, run.page + run.pages - last.page))
            return begins
    pages.append(run)
    return before


def _place(offset: int, runs: Sequence[Range], places: Sequence[int]) -> int:
    """Where in the input a byte of the file is."""
    for run, place in zip(runs, places, strict=True):
        if run.page * PAGE_SIZE <= offset < (run.page + run.pages) * PAGE_SIZE:
            return place + offset - run.page * PAGE_SIZE
    raise AssertionError(f"byte {offset} is in no run")


def nullable_of(columns: Iterable[Column], batches: Iterable[Batch]) -> frozenset[str]:
    """The columns that have nulls."""
    wanted = list(columns)
    return frozenset(
        column.name for batch in batches for column in wanted if batch.part(column).nulls
    )

"""A plan's answer: its output, which a drive gives in pieces as large as its buffer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, Self

from csd_spec.opcodes import DWORD_SIZE
from csd_spec.reporting import Count, Form, Key
from csd_spec.table_plans import Piece, PieceFlag, Plan, PlanError, Request
from potash.columns.errors import InvalidQuery
from potash.sdk.errors import DeviceMisbehaved, PotashError, restated
from potash.sdk.progress import Progress, silent
from potash.sdk.targets import Range

PIECE_WORK = 256 << 20
"""Bytes of columns that a drive decodes for a piece, in about a second."""


class Stored(Protocol):
    """A file on a drive."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def ranges(self) -> Sequence[Range]:
        """Pages of the namespace that the file is in, in order."""

    def confirm(self) -> None:
        """Raises PotashError if the file has changed."""


class QueryEngine(Protocol):
    """The program on the drive: `OnAccelerator` or `InComputeNamespace`."""

    @property
    def moved(self) -> int:
        """Bytes of requests and outputs that were transferred between host and drive."""

    def attach(self, stored: Stored) -> None:
        """Make a file the input of the jobs that follow. Raises PotashError."""

    def ask(self, request: bytes) -> int:
        """Run a job; the length of its output in bytes. Raises PotashError."""

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the job's output from byte `start`, a multiple of 4."""

    def close(self) -> None:
        """Remove what it has left on the drive."""


class ResultColumn(NamedTuple):
    """A column of a query's result."""

    name: Annotated[str, "The column's name, or the expression."]
    type: Annotated[
        str, "Type of the column's values, such as int64, double, string or timestamp[us]."
    ]
    values: Sequence[Any] = ()
    """The values, as JSON has them: dates, times and decimals are text, and None is null."""

    @property
    def texts(self) -> Annotated[Sequence[str | None], Key("values")]:
        """The column's values as text, one per row; null for null."""
        return [None if value is None else str(value) for value in self.values]


@dataclass
class Result:
    """The result of a query, and the bytes that were transferred for it."""

    columns: Annotated[
        Sequence[Annotated[ResultColumn, Form(title="QueryColumn")]], "The columns of the result."
    ]
    result_rows: Annotated[Count, Key("rows"), "Number of rows of the result."] = 0
    rows: Annotated[Count, Key("file_rows"), "Number of rows of the file."] = 0
    held: Annotated[Count, "Size of the file in bytes."] = 0
    read: Annotated[Count, "Bytes of the file that the drive read."] = 0
    moved: Annotated[Count, "Bytes between drive and host: plans and results."] = 0
    jobs: Annotated[Count, "Number of jobs that the query took."] = 0
    groups: Annotated[Count, "Row groups, or record batches, of the file."] = 0
    excluded: Annotated[
        Count, "Row groups that were not read, as the file's statistics exclude them."
    ] = 0

    def to_pydict(self) -> dict[str, list[Any]]:
        """Values by column, as pyarrow's method of this name."""
        return {column.name: list(column.values) for column in self.columns}


class Answer:
    """The answer to a plan: the shown rows, and the output, piece by piece.

    The shown rows have been read; the output is read while it is iterated over, once. A `with`
    block ends the query if not all of it is read.
    """

    columns: Sequence[tuple[str, str]] = ()
    """Name and type of each column, if the plan shows rows."""
    rows: Sequence[Sequence[Any]] = ()
    """The shown rows: values as JSON has them."""
    piece: Piece
    """The header of the last piece: the counters of the query so far."""

    def __init__(
        self, plan: Plan, stored: Stored, engine: QueryEngine, *, progress: Progress = silent
    ) -> None:
        if not stored.size:
            raise InvalidQuery("the file is empty")
        with restated(PlanError, to=InvalidQuery):
            self._plan = plan.encode()
        self._stored = stored
        self._engine = engine
        self._progress = progress
        self._moved = engine.moved
        self._offset = 0
        self._work = PIECE_WORK
        self._at = 0  # of the bytes in the drive's buffer that were not read, of this piece
        self._left = 0
        self._open = True
        self.held = stored.size
        """Bytes of the file."""
        self.jobs = 0
        """Jobs that the query has taken so far."""
        try:
            engine.attach(stored)
            lines = bytearray(self._ask())
            while plan.show and self.piece.flags & PieceFlag.MORE and not self.piece.length:
                lines += self._ask()
            if plan.show:
                names, *self.rows = map(json.loads, lines.splitlines())
                self.columns = [(str(name), str(kind)) for name, kind in names]
                if any(len(row) != len(names) for row in self.rows):
                    raise ValueError("a row has other columns")
        except BaseException as error:
            self.close()
            wrong = isinstance(error, ValueError | TypeError | RecursionError)
            if wrong and not isinstance(error, PotashError):
                raise DeviceMisbehaved(f"the drive shows rows that are none: {error}") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while self._open:
            if self._left:
                at, left, self._left = self._at, self._left, 0
                skipped = at % DWORD_SIZE
                yield self._engine.read(at - skipped, skipped + left)[skipped:]
            elif self.piece.flags & PieceFlag.MORE:
                self._ask()
            else:
                self._stored.confirm()
                self.close()

    def read(self) -> bytes:
        """The rest of the output."""
        return b"".join(self)

    @property
    def moved(self) -> int:
        """Bytes between drive and host so far."""
        return self._engine.moved - self._moved

    def result(self) -> Result:
        """The shown rows, by column, and the counters so far."""
        piece = self.piece
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return Result(
            [
                ResultColumn(name, kind, values)
                for (name, kind), values in zip(self.columns, columns, strict=True)
            ],
            result_rows=piece.rows,
            rows=piece.file_rows,
            held=self.held,
            read=piece.read,
            moved=self.moved,
            jobs=self.jobs,
            groups=piece.groups,
            excluded=piece.excluded,
        )

    def close(self) -> None:
        """End the query."""
        if self._open:
            self._open = False
            with suppress(PotashError):  # nothing depends on it
                self._engine.close()

    def _ask(self) -> bytes:
        """Run a job for the next piece; its shown rows."""
        decoded, read = (self.piece.decoded, self.piece.read) if self.jobs else (0, 0)
        far = f": {read >> 20} MiB of the file are read" if self.jobs else ""
        self._progress(f"querying{far}", None)
        request = Request(
            plan_size=len(self._plan),
            file_size=self._stored.size,
            offset=self._offset,
            work=self._work,
        )
        made = self._engine.ask(request.encode() + self._plan)
        self.jobs += 1
        size = Piece.RECORD.size
        if made < size:
            raise DeviceMisbehaved(f"the drive gives {made} bytes for a piece of a result")
        self.piece = piece = Piece.decode_head(self._engine.read(0, size))
        found = piece.shown + piece.length
        stands = piece.flags & PieceFlag.MORE and not found and piece.decoded <= decoded
        if size + found != made or (stands and not self._work):
            raise DeviceMisbehaved(f"the drive gives {made} bytes for a piece with {found}")
        if stands:  # it has begun anew, as others run programs there
            self._work = 0
        self._offset += found
        self._at, self._left = size + piece.shown, piece.length
        return self._engine.read(size, piece.shown) if piece.shown else b""


def run(plan: Plan, stored: Stored, engine: QueryEngine, *, progress: Progress = silent) -> Answer:
    """Run a plan on a file where it is stored.

    Args:
        plan: the query. With `show`, the answer has the first rows as values.
        stored: the file, a `StoredFile` or `StoredBlocks`.
        engine: `OnAccelerator` or `InComputeNamespace`.
        progress: called before each job.

    Raises:
        InvalidQuery: the plan is wrong, or does not fit the file.
        PotashError: any other failure, also (when the output has been read) a file that has
            changed meanwhile.
    """
    return Answer(plan, stored, engine, progress=progress)

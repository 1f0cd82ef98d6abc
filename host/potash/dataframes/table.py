"""Tables on drives as the libraries' modules use them: schemas, batches and numbers of rows.

A drive may have several tables, and a library reads several at a time, from threads of its own. So
the tables of a process share each drive that is open, job by job: a query takes part of its result
from the drive, and others theirs before it asks for the next.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

import potash.sdk
from csd_spec.table_plans import Aggregate, Column, Expression, Field, Output, Plan, PlanError
from potash.columns import OnAccelerator
from potash.columns.answer import Answer, Stored
from potash.columns.query import text_of
from potash.columns.stored import drive_with, stored_at
from potash.dataframes import terms
from potash.sdk import Device

PIECE = 1 << 20
"""Bytes of a result that are read from the drive's buffer at a time, at least."""


class Pushed(NamedTuple):
    """The parts of a condition: those that the drive applies, and those that the library does."""

    parts: tuple[Expression, ...] = ()
    kept: tuple[str, ...] = ()
    """For each of the others, the reason why the drive does not apply it."""

    @property
    def where(self) -> Expression | None:
        return terms.conjunction(self.parts)


def pushed(parts: Iterable[Any], condition: Callable[[Any], Expression]) -> Pushed:
    """Parts of a condition, of which all must be true, divided by what `condition` refuses."""
    split = Pushed()
    try:
        for part in parts:
            try:
                more = split._replace(parts=(*split.parts, condition(part)))
                Plan(where=more.where).encode()
                split = more
            except (terms.Unpushable, PlanError) as error:
                split = split._replace(kept=(*split.kept, str(error)))
    except terms.Unpushable as error:  # there are no parts
        return Pushed(kept=(str(error),))
    return split


class Table:
    """A Parquet or Arrow file on a drive.

    Args:
        name: its path in a file system of the drive, or lba:BLOCK:SIZE.
        device: the drive, open or as `potash.sdk.open` takes it; without one, that of the path.
    """

    def __init__(self, name: str | os.PathLike[str], device: str | Device | None = None) -> None:
        self.name = os.fspath(name)
        self._device = drive_with(self.name, "device=") if device is None else device

    @cached_property
    def schema(self) -> pa.Schema:
        """The types of its columns, as the drive gives them: dictionaries are decoded."""
        return self.read(Plan(limit=0)).schema

    def read(self, plan: Plan) -> pa.RecordBatchReader:
        """The batches of a plan's result. Raises PotashError."""
        return _reader(self.run(plan))

    def run(self, plan: Plan) -> Answer:
        """The answer to a plan, an Arrow stream. Raises PotashError."""
        with ExitStack() as stack:
            drive = stack.enter_context(_shared(self._device))
            with drive.lock:
                stored = stack.enter_context(closing(stored_at(drive.device, self.name)))
            query = _Query(drive, stack.pop_all())
        return Answer(plan._replace(output=Output.ARROW), stored, query)


class Scan:
    """One reading of a table: what the drive is asked for, and what it has done so far."""

    def __init__(
        self,
        table: Table,
        columns: Sequence[str] | None,
        split: Pushed,
        limit: int | None = None,
    ) -> None:
        names = table.schema.names
        # A plan without columns would give all.
        self.columns = names if columns is None else list(dict.fromkeys(columns)) or names[:1]
        self._table = table
        self._split = split
        self._limit = limit
        self._answer: Answer | None = None

    @property
    def schema(self) -> pa.Schema:
        """The types of the columns that are read."""
        return pa.schema([self._table.schema.field(name) for name in self.columns])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises PotashError."""
        select = tuple(Field(name, Column(name)) for name in self.columns)
        self._answer = self._table.run(Plan(select, self._split.where, limit=self._limit))
        yield from _reader(self._answer)

    def count(self) -> int:
        """The number of rows for which the drive's part of the condition is true."""
        field = Field("rows", Aggregate("count_all"))
        return int(
            self._table.read(Plan((field,), self._split.where)).read_all()["rows"][0].as_py()
        )

    def lines(self, library: str) -> Iterator[str]:
        """An explanation; conditions that the drive does not apply are those of `library`."""
        yield f"{self._table.name}: {len(self.columns)} of {len(self._table.schema)} columns"
        for part in self._split.parts:
            yield f"  condition on the drive: {text_of(part)}"
        for reason in self._split.kept:
            yield f"  condition applied by {library}: {reason}"
        if self._limit is not None:
            yield f"  limit on the drive: {self._limit} rows"
        if self._answer is not None:
            piece = self._answer.piece
            yield (
                f"  {self._answer.moved} bytes between drive and host; the file has"
                f" {self._answer.held}, of which the drive read {piece.read}"
            )
            if piece.excluded:
                yield f"  {piece.excluded} of {piece.groups} row groups excluded by statistics"


class _Drive:
    """A drive that is open for the queries of this process."""

    def __init__(self, device: str | Device) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.device = potash.sdk.open(device) if isinstance(device, str) else device
        self.engine = OnAccelerator(self.device.accelerator())
        self.attached: _Query | None = None
        """The query whose file is the input of the next job."""


_drives: dict[str | Device, _Drive] = {}
_opening = threading.Lock()


@contextmanager
def _shared(device: str | Device) -> Iterator[_Drive]:
    """A drive, which is closed when nothing in this process uses it, unless it was open before."""
    with _opening:
        drive = _drives.get(device) or _drives.setdefault(device, _Drive(device))
        drive.users += 1
    try:
        yield drive
    finally:
        with _opening:
            drive.users -= 1
            if not drive.users:
                del _drives[device]
                if isinstance(device, str):
                    drive.device.close()


class _Query:
    """The engine of one query, whose jobs take turns with those of others on its drive."""

    def __init__(self, drive: _Drive, resources: ExitStack) -> None:
        self.moved = 0
        self._drive = drive
        self._resources = resources
        self._stored: Stored | None = None
        self._output = b""

    def attach(self, stored: Stored) -> None:
        self._stored = stored

    def ask(self, request: bytes) -> int:
        drive, engine = self._drive, self._drive.engine
        with drive.lock:
            before = engine.moved
            attached, drive.attached = drive.attached, None
            if attached is not self and self._stored is not None:
                engine.attach(self._stored)
            made = engine.ask(request)
            self._output = engine.read(0, made)
            drive.attached = self
            self.moved += engine.moved - before
        return made

    def read(self, start: int, length: int) -> bytes:
        return self._output[start : start + length]

    def close(self) -> None:
        with self._drive.lock:
            if self._drive.attached is self:
                self._drive.attached = None
        self._output = b""
        self._resources.close()


def _reader(answer: Answer) -> pa.RecordBatchReader:
    """The output of a query, read in the thread that asks for it, which may be one of Arrow's."""
    file = pa.PythonFile(io.BufferedReader(_Pieces(answer), PIECE), "r")
    return pa.ipc.open_stream(file, options=pa.ipc.IpcReadOptions(use_threads=False))


class _Pieces(io.RawIOBase):
    """The output of a query as a file, which ends the query when it is closed."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._pieces = iter(answer)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def close(self) -> None:
        self._answer.close()
        super().close()

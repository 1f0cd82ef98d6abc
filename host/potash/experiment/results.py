"""The results of an experiment as files of a directory.

`experiment.json` has everything that they depend on. Each finished point is a file of its own in
`points`, so that an experiment that was interrupted goes on where it was; `results.csv`,
`results.arrow` and `completions.csv` are made of these.
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from potash.experiment.plan import Task
from potash.experiment.runs import Run
from potash.files import replacing, unwritable
from potash.sdk.errors import PotashError

SETTINGS = "experiment.json"


class Results:
    """The directory of an experiment's results. Raises PotashError where it has others'."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        try:
            (folder / "points").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        path = folder / SETTINGS
        finished = any((folder / "points").iterdir())
        if finished and path.exists() and _json(path) != settings:
            raise PotashError(
                f"{folder} has results of another experiment, or version of Potash or Python; "
                "give another directory, or delete it"
            )
        self._write(SETTINGS, json.dumps(settings, indent=1) + "\n")

    def load(self, task: Task) -> list[Run] | None:
        """The results of a point, if it is finished."""
        path = self.folder / _name(task)
        if not path.exists():
            return None
        try:
            return [Run(*fields) for fields in _json(path)]
        except TypeError:
            raise PotashError(f"{path} is damaged; delete it") from None

    def add(self, task: Task, runs: Sequence[Run]) -> None:
        """Keep a finished point."""
        self._write(_name(task), json.dumps(runs))

    def finish(self, runs: Iterable[Run]) -> list[dict[str, Any]]:
        """Write the tables; the rows of the results, all with the same columns."""
        every = list(runs)
        rows = _filled([run.row for run in every])
        self._write("results.csv", _csv(rows))
        self._write("completions.csv", _csv([done for run in every for done in run.completions]))
        self._write_arrow(rows)
        return rows

    def _write_arrow(self, rows: Sequence[dict[str, Any]]) -> None:
        """An Arrow file, where this machine has pyarrow."""
        try:
            import pyarrow as pa
        except ModuleNotFoundError:
            return
        table = pa.table({name: _column([row[name] for row in rows]) for name in rows[0]})
        with (
            replacing(self.folder / "results.arrow") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)

    def _write(self, name: str, text: str) -> None:
        with replacing(self.folder / name) as file:
            file.write(text.encode())


def _name(task: Task) -> str:
    return os.path.join("points", f"{task.number:05}-{task.repetition:03}.json")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise PotashError(f"{path} is damaged; delete it") from None


def _filled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one type: numbers, or texts of all."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, bool}:
        kind: type = int
    else:
        kind = float if kinds <= {int, bool, float} else str
    return [None if value is None else kind(value) for value in values]

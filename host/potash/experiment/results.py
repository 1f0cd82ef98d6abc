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

from potash.columns.results import ResultColumn
from potash.columns.types import FLOAT64, INT64, UTF8
from potash.columns.writer import arrow_file
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
            return [Run(*one) for one in _json(path)]
        except TypeError:
            raise PotashError(f"{path} is damaged; delete it") from None

    def add(self, task: Task, runs: Sequence[Run]) -> None:
        """Keep a finished point."""
        self._write(_name(task), json.dumps(runs))

    def finish(self, runs: Iterable[Run]) -> list[dict[str, Any]]:
        """Write the tables; the rows of the results, all with the same columns."""
        found = list(runs)
        rows = _filled([one.row for one in found])
        self._write("results.csv", _csv(rows))
        self._write("completions.csv", _csv([one for run in found for one in run.completions]))
        with replacing(self.folder / "results.arrow") as file:
            file.write(arrow_file(_columns(rows)))
        return rows

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


def _columns(rows: Sequence[dict[str, Any]]) -> list[ResultColumn]:
    found = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        there = [value for value in values if value is not None]
        if all(isinstance(value, int) for value in there):
            found.append(ResultColumn(name, INT64, [None if v is None else int(v) for v in values]))
        elif all(isinstance(value, int | float) for value in there):
            numbers = [None if value is None else float(value) for value in values]
            found.append(ResultColumn(name, FLOAT64, numbers))
        else:
            texts = [None if value is None else str(value) for value in values]
            found.append(ResultColumn(name, UTF8, texts))
    return found

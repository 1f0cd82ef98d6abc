"""A point of an experiment on its drives, measured. It runs in a process of its own."""

import signal
import tempfile
import threading
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import potash
from csd_spec.traffic import TimedCompletion, TrafficLog
from potash.experiment.plan import COUNTED, DEPTH, DRIVES, Task, Value, is_value, placed
from potash.experiment.plot import PUBLISHED
from potash.experiment.point import Point
from potash.sdk.errors import PotashError
from potash.sdk.transport import HostClock
from potash.signals import handling
from potash.testing.booting import booted_device

ANSWER = "answer"
"""The name of a value that has to be the same for the program and its baseline."""


class Run(NamedTuple):
    """One function at a point: its row of the results, and its completions by drive."""

    row: dict[str, Value]
    completions: list[dict[str, int | str]]


class Refused(NamedTuple):
    """The reason why a point has no result."""

    reason: str


class Terminated(BaseException):
    """The worker is being ended: its drives end with it."""


def _terminate(*_: object) -> None:
    raise Terminated


def carry_out(task: Task) -> list[Run] | Refused:
    """Measure every function at a point, each on drives of its own."""
    if threading.current_thread() is not threading.main_thread():  # a Dask worker's
        return _carried_out(task)
    try:
        with handling({signal.SIGTERM: _terminate}):
            return _carried_out(task)
    except Terminated:
        # A pool's worker would go on, and wait for a lock that one which was killed has.
        signal.raise_signal(signal.SIGTERM)
        raise


def _carried_out(task: Task) -> list[Run] | Refused:
    scope: dict[str, Any] = {"__name__": "potash_experiment", "__file__": task.path}
    try:
        exec(compile(task.source, task.path, "exec"), scope)  # noqa: S102 - the user's own code
        found = [run for method in task.methods for run in _run(task, method, scope)]
    except PotashError as error:
        return Refused(f"{_place(task, error)}{error}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code
        line = str(error).splitlines()
        said = f"{type(error).__name__}: {line[0]}" if line else type(error).__name__
        return Refused(f"{_place(task, error)}{said}")
    answers = {str(run.row[ANSWER]) for run in found if ANSWER in run.row}
    if len(answers) > 1:
        named = ", ".join(f"{run.row['method']}: {run.row.get(ANSWER)}" for run in found)
        return Refused(f"{_values(task)}: the answers differ ({named})")
    return found


def _run(task: Task, method: str, scope: Mapping[str, Any]) -> list[Run]:
    """A run for each dict that a function returned, or for None; the first has the completions."""
    for name in (method, task.prepare):
        if name and not callable(scope.get(name)):
            raise PotashError(f"{task.path} has no function {name}")
    stepped = task.drive.get("clock") == "stepped" and task.drive["time"] == "modelled"
    clock = HostClock() if stepped else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="potash-")))
        for name, data in task.files.items():
            (folder / name).write_bytes(data)
        options = placed(task.drive, task.files, folder)
        number = int(task.parameters.get(DRIVES, 1))
        if task.model or (method == PUBLISHED and not task.prepare):
            number = 0  # it needs none, or says what others have measured
        drives = [
            stack.enter_context(
                booted_device(
                    **options, queue_depth=int(task.parameters.get(DEPTH, 1)), host_clock=clock
                )
            )
            for _ in range(number)
        ]
        model = options if task.model else {}
        point = Point(task.parameters, drives, task.files, task.seed, clock, model)
        if task.prepare:
            scope[task.prepare](point)
        for drive in drives:
            _ = drive.capacity, drive.max_transfer  # which are asked for once
        before = [drive.traffic() for drive in drives]
        began = point.now
        said = scope[method](point)
        elapsed = point.now - began
        moved = [drive.traffic(old) for drive, old in zip(drives, before, strict=True)]
    row: dict[str, Value] = {
        "version": potash.__version__,
        "point": task.number,
        "repetition": task.repetition,
        "seed": task.seed,
        "method": method,
        **task.parameters,
    }
    if not task.model:
        row["elapsed_ns"] = elapsed
        row |= {name: sum(getattr(traffic, name) for traffic in moved) for name in COUNTED}
    parts = said if isinstance(said, list) else [said]
    runs = [Run({**row, **_said(method, part, row)}, []) for part in parts or [None]]
    return [runs[0]._replace(completions=_completions(row, moved)), *runs[1:]]


def _said(method: str, said: object, row: Mapping[str, Value]) -> dict[str, Value]:
    """The columns that a function adds."""
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        raise PotashError(f"{method} returned {said!r:.60}, not a dict of columns")
    for name, value in said.items():
        if not isinstance(name, str) or not is_value(value) or name in row:
            raise PotashError(f"{method} returned {name!r}: {value!r:.60}, which is no column")
    return dict(said)


def _completions(row: Mapping[str, Value], moved: list[TrafficLog]) -> list[dict[str, int | str]]:
    """The completions of all drives, in nanoseconds from the first arrival on."""
    times = [completion.arrived for log in moved for completion in log.completions]
    first = min(times, default=0)
    about = {name: row[name] for name in ("point", "repetition", "method")}
    return [
        {**about, "drive": drive, **_relative(completion, first)}  # type: ignore[dict-item]  # as in `row`
        for drive, log in enumerate(moved)
        for completion in log.completions
    ]


def _relative(one: TimedCompletion, first: int) -> dict[str, int]:
    kept = {name: getattr(one, name) for name in ("kind", "csi", "opcode", "status", "nsid")}
    times = {name: getattr(one, name) - first for name in ("arrived", "began", "completed")}
    return {**kept, **times}


def _place(task: Task, error: BaseException) -> str:
    """The line of the experiment's file at which an error came up, and the point."""
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == task.path]
    if isinstance(error, SyntaxError) and error.filename == task.path:
        return f"{task.path}:{error.lineno}: "
    where = f"{task.path}:{lines[-1].lineno}, in {lines[-1].name}: " if lines else ""
    return f"{where}{_values(task)}: " if task.parameters else where


def _values(task: Task) -> str:
    return "at " + ", ".join(f"{name} {value}" for name, value in task.parameters.items())

"""The file that describes an experiment, and the points that its parameters make."""

import hashlib
import itertools
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import potash
from potash.configuration import read_toml
from potash.experiment import models
from potash.experiment.plot import Plot
from potash.experiment.plot import parse as parse_plot
from potash.programs.compiler import compiled
from potash.sdk.errors import PotashError, restated
from potash.sdk.transport import MAX_QUEUE_DEPTH
from potash.testing.booting import drive_configuration, drive_options
from potash_firmware.extension_limits import is_file

MOST_POINTS = 10_000
MOST_DRIVES = 64
MOST_REPETITIONS = 1000

Value = int | float | str | bool
_INTEGERS = range(-(1 << 63), 1 << 63)
DRIVES, DEPTH = "drives", "depth"
COUNTED = ("commands", "admin_commands", "to_host", "from_host", "moved", "completed")
MEASURED = ("version", "point", "repetition", "seed", "method", "elapsed_ns", *COUNTED)
"""Columns of the results besides parameters and what functions return."""
SETTINGS = {"profile": "drive", "ftl": "ftl", "policy": "policies"}
"""Parameters that are settings of the drives, and the keywords that they become."""


def is_value(value: object) -> bool:
    """True if a value can be stored in a table of the results."""
    match value:
        case int():
            return value in _INTEGERS
        case float():
            return math.isfinite(value)
        case str():
            return value.isprintable()
    return False


class Task(NamedTuple):
    """A point in one repetition, with all that a worker needs for it."""

    number: int
    repetition: int
    seed: int
    parameters: Mapping[str, Value]
    drive: Mapping[str, Any]
    """Options of each drive, as `potash.testing` takes them, or of a `model`."""
    methods: tuple[str, ...]
    """The names of the functions that are measured."""
    prepare: str
    path: str
    source: str
    """The file with the functions, and its contents."""
    files: Mapping[str, bytes]
    model: bool = False
    """There are no devices; `drive` has options of `potash.experiment.models.build`."""


@dataclass(frozen=True)
class Experiment:
    """An experiment, as its file describes it.

    `functions` is a Python file, in which `program`, `baseline` and `prepare` are functions.
    """

    functions: str
    program: str
    baseline: str = ""
    prepare: str = ""
    files: tuple[str, ...] = ()
    repetitions: int = 1
    seed: int = 0
    vary: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Parameters that are options of the drives, or keys of the model, of the same names."""
    drive: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] | None = None
    """A modelled drive without a device, in place of `drive`."""
    small: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """Values in place of those in `vary`, with which the experiment takes seconds."""
    plot: Plot | None = None
    folder: Path = Path()
    extensions: tuple[str, ...] = ()
    """Further extensions of each drive, which the file does not name."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the functions that are measured."""
        return (self.program, *([self.baseline] if self.baseline else []))

    def tasks(self) -> list[Task]:
        """All points with all repetitions. Raises PotashError for files that cannot be read, and
        programs that cannot be built."""
        path = self.folder / self.functions
        source = _read(path).decode(errors="replace")
        files = {name: _contents(self.folder / name) for name in self.files}
        extensions = list(self.drive.get("extensions", []))
        for extension in self.extensions:
            extensions.append(Path(extension).name)
            if (
                is_file(extension)
                and files.setdefault(extensions[-1], data := _read(Path(extension))) != data
            ):
                raise PotashError(f"two files are called {extensions[-1]}; rename one of them")
        found = []
        for number, values in enumerate(itertools.product(*self.vary.values())):
            parameters = dict(zip(self.vary, values, strict=True))
            drive = self._options(parameters, extensions)
            if self.model is None:
                _check(placed(drive, files, self.folder))
            elif drive:
                models.profile(drive)
            for repetition in range(self.repetitions):
                found.append(
                    Task(
                        number,
                        repetition,
                        self.seed + repetition,
                        parameters,
                        drive,
                        self.methods,
                        self.prepare,
                        str(path),
                        source,
                        files,
                        self.model is not None,
                    )
                )
        return found

    def _options(self, parameters: Mapping[str, Value], extensions: list[str]) -> dict[str, Any]:
        """Options of the drives, or of the model, at a point."""
        found = {"time": "modelled", **self.drive} if self.model is None else dict(self.model)
        if self.extensions:
            found["extensions"] = extensions
        if found.get("time") == "modelled":
            found.setdefault("clock", "stepped")
        for name, keyword in SETTINGS.items():
            if name in parameters:
                value = parameters[name]
                found[keyword] = [value] if keyword == "policies" else value
        return found | {name: parameters[name] for name in self.options}

    def reduced(self) -> Self:
        """The experiment with the values of `small`. Raises PotashError where it has none."""
        if not self.small:
            raise PotashError("the experiment has no table [small] with values for --small")
        return replace(self, vary={**self.vary, **self.small})

    def settings(self, tasks: list[Task]) -> dict[str, Any]:
        """Everything that the results depend on, for a file beside them."""
        described = {each.name: getattr(self, each.name) for each in fields(self)}
        del described["folder"], described["plot"], described["small"]
        if not self.extensions:
            del described["extensions"]
        files = {name: hashlib.sha256(data).hexdigest() for name, data in tasks[0].files.items()}
        return {
            "potash": potash.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "experiment": json.loads(json.dumps(described, default=str)),
            "functions": tasks[0].source,
            "files": files,
        }


def read(path: Path) -> Experiment:
    """An experiment's file. Raises PotashError, which names the file and says what is wrong."""
    table = dict(read_toml(path))
    with restated((ValueError, TypeError), path):
        return _experiment(table, path.parent)


def _experiment(table: dict[str, Any], folder: Path) -> Experiment:
    keys = [each.name for each in fields(Experiment) if each.name not in ("folder", "extensions")]
    if "model" in table and "drive" in table:
        raise ValueError("there are both [model] and [drive]; an experiment has one of them")
    for name in table:
        if name not in keys:
            of_drive = name in drive_options()
            meant = "it belongs in [drive]" if of_drive else f"there are {', '.join(keys)}"
            raise ValueError(f"there is no key {name}; {meant}")
    for name in ("functions", "program"):
        if name not in table:
            raise ValueError(f"the key {name} is missing")
    for name in ("functions", "program", "baseline", "prepare"):
        if not isinstance(table.get(name, ""), str):
            raise TypeError(f"{name} is a text")
    for name, most in (("repetitions", MOST_REPETITIONS), ("seed", 1 << 62)):
        least = int(name == "repetitions")
        if type(table.get(name, 1)) is not int or not least <= table.get(name, 1) <= most:
            raise ValueError(f"{name} is a whole number from {least} to {most}")
    for name in ("vary", "drive", "model", "small"):
        if not isinstance(table.get(name, {}), Mapping):
            raise TypeError(f"[{name}] is a table")
    names = table.get("files", [])
    if not isinstance(names, list) or not all(name == Path(str(name)).name for name in names):
        raise ValueError("files is a list of names of files that are beside this one")
    vary, small = (
        {name: _values(name, values) for name, values in table.get(key, {}).items()}
        for key in ("vary", "small")
    )
    options = table.get("options", [])
    if not isinstance(options, list) or not all(name in vary for name in options):
        raise ValueError("options is a list of parameters in [vary]")
    for name in small:
        if name not in vary:
            raise ValueError(f"small.{name} is no parameter in [vary]")
    drawn = None if "plot" not in table else parse_plot(str(table["plot"]))
    points = 1
    for values in vary.values():
        points *= len(values)
    if points > MOST_POINTS:
        raise ValueError(f"[vary] makes {points} points; {MOST_POINTS} are the most")
    read = {"files": tuple(names), "vary": vary, "small": small, "plot": drawn, "folder": folder}
    return Experiment(**{**table, **read, "options": tuple(options)})


def _values(name: str, values: object) -> tuple[Value, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"vary.{name} is a list of values")
    if name in MEASURED:
        raise ValueError(f"vary.{name} needs another name; {name} is a column of the results")
    if not all(map(is_value, values)) or len(set(values)) < len(values):
        raise ValueError(f"vary.{name} has numbers or texts, each once")
    most = {DRIVES: MOST_DRIVES, DEPTH: MAX_QUEUE_DEPTH}.get(name)
    if most and not all(type(value) is int and 1 <= value <= most for value in values):
        raise ValueError(f"vary.{name} has whole numbers from 1 to {most}")
    if name in SETTINGS and not all(isinstance(value, str) for value in values):
        raise ValueError(f"vary.{name} has texts, as --{SETTINGS[name]} takes them")
    return tuple(values)


def placed(drive: Mapping[str, Any], files: Iterable[str], folder: Path) -> dict[str, Any]:
    """Options of a drive, with the experiment's files that they name in a folder: `mine.py`, or
    `gc=mine.py:Mine`."""
    names = "|".join(map(re.escape, files))
    pattern = re.compile(rf"(?:^|(?<==))({names})(?=:|$)") if names else None

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(item) for item in value]
        if isinstance(value, str) and pattern is not None:
            return pattern.sub(lambda found: str(folder / found[0]), value)
        return value

    return {name: changed(value) for name, value in drive.items()}


def _check(drive: Mapping[str, Any]) -> None:
    with restated(TypeError, "[drive]"):
        drive_configuration(drive)


def _read(path: Path) -> bytes:
    with restated(OSError, f"{path} cannot be read"):
        return path.read_bytes()


def _contents(path: Path) -> bytes:
    """A file, or the object file of a program in C."""
    data = _read(path)
    return compiled(path) if path.suffix == ".c" else data

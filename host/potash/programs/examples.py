"""The examples that come with Potash, each a folder with an `example.toml`.

An example has its input, what must come of it and its arguments in files, or makes them by a script
that says in plain Python what the program is to find.
"""

import runpy
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import potash
from potash.columns import Request
from potash.sdk.errors import PotashError

ARGUMENT_SIZE = 4

Describe = Callable[[bytes, bytes], list[str]]
"""Lines to show of an input and its output."""
Figures = Callable[[bytes, bytes], dict[str, Any]]
"""Further fields of a JSON report about an input and its output."""


class Inferences(NamedTuple):
    """A model that a program runs on the tensor accelerator, one of its inputs, and how often."""

    model: bytes
    inputs: bytes
    runs: int


class Example(NamedTuple):
    """A program, or a query, what to run it on, and what must come of it."""

    name: str
    input: bytes
    expected: bytes
    lba: int
    program: bytes = b""
    arguments: Sequence[bytes] = ()
    request: Request | None = None
    """The query of a table, which the drive's own program answers in lines of JSON."""
    describe: Describe | None = None
    figures: Figures | None = None
    needed: int | None = None
    """Bytes that a host without the device reads; without it, all of the input."""
    inferences: Inferences | None = None

    @classmethod
    def load(cls, name: str) -> Self:
        """Raises PotashError where the example is not there or not whole."""
        folder = examples_folder() / name
        try:
            described = tomllib.loads((folder / "example.toml").read_text())
            make = _by_script if "script" in described else _from_files
            made = make(folder, described)
            if "program" in described:
                made["program"] = (folder / described["program"]).read_bytes()
            return cls(name=name, lba=int(described["lba"]), **made)
        except ModuleNotFoundError as error:
            raise PotashError(
                f"the example {name} needs {error.name}: pip install 'potash[columns]'"
            ) from None
        except (OSError, KeyError, ValueError) as error:
            raise PotashError(f"the example {name} cannot be read: {error}") from None


def _from_files(folder: Path, described: dict[str, Any]) -> dict[str, Any]:
    data, expected = ((folder / described[what]).read_bytes() for what in ("input", "expected"))
    numbers = [int(one).to_bytes(ARGUMENT_SIZE, "little") for one in described["arguments"]]
    return {"input": data, "expected": expected, "arguments": numbers}


def _by_script(folder: Path, described: dict[str, Any]) -> dict[str, Any]:
    script = runpy.run_path(str(folder / described["script"]))
    data = script["input_data"]()
    made = {"input": data, "expected": script["expected"](data)}
    if "program" in script:
        made["program"] = script["program"](data)
    if "arguments" in script:
        made["arguments"] = script["arguments"](data)
    made |= {"describe": script["describe"], "request": script.get("REQUEST")}
    if "figures" in script:
        made["figures"] = script["figures"]
    if "needed" in script:
        made["needed"] = script["needed"](data)
    if "inference" in script:
        made["inferences"] = Inferences(*script["inference"](data))
    return made


def example_names() -> list[str]:
    return sorted(path.parent.name for path in examples_folder().glob("*/example.toml"))


def examples_folder() -> Path:
    """Beside the package where it was installed, at the top of the checkout otherwise."""
    package = Path(potash.__file__).parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"

"""The examples that come with Potash, each a folder with an `example.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import potash
from potash.sdk.errors import PotashError

ARGUMENT_SIZE = 4


@dataclass(frozen=True)
class Example:
    """A program, what to run it on, and what must come of it."""

    name: str
    folder: Path
    program_name: str
    input_name: str
    program: bytes
    input: bytes
    expected: bytes
    lba: int
    arguments: tuple[int, ...]

    @classmethod
    def load(cls, name: str) -> Self:
        """Raises PotashError where the example is not there or not whole."""
        folder = examples_folder() / name
        try:
            described = tomllib.loads((folder / "example.toml").read_text())
            return cls(
                name,
                folder,
                described["program"],
                described["input"],
                (folder / described["program"]).read_bytes(),
                (folder / described["input"]).read_bytes(),
                (folder / described["expected"]).read_bytes(),
                int(described["lba"]),
                tuple(int(one) for one in described["arguments"]),
            )
        except (OSError, KeyError, ValueError) as error:
            raise PotashError(f"the example {name} cannot be read: {error}") from None

    @property
    def argument_values(self) -> list[bytes]:
        """The arguments as the program gets them."""
        return [one.to_bytes(ARGUMENT_SIZE, "little") for one in self.arguments]


def examples_folder() -> Path:
    """Beside the package where it was installed, at the top of the checkout otherwise."""
    package = Path(potash.__file__).parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"

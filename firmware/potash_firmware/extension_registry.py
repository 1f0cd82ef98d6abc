"""The registry of extensions: all that the decorators of `potash_firmware.extensions` add."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, cast

from csd_spec.run_times import RunTime
from nvme_spec.identify.capabilities import CommandSet
from potash_firmware.extension_interface import Command, Drive

T = TypeVar("T")

Data = Literal["none", "write", "read"]
"""The data of a command: none, sent by the host (write), or returned to it (read)."""


@dataclass(frozen=True, eq=False)
class Registered:
    """A function of an extension, with the name under which it is reported."""

    function: FunctionType
    name: str

    @property
    def place(self) -> tuple[str, int]:
        """The file and the line of the function."""
        return self.function.__code__.co_filename, self.function.__code__.co_firstlineno

    def __str__(self) -> str:
        file, line = self.place
        return f"{self.name} ({file}, line {line})"


@dataclass(frozen=True, eq=False)
class RegisteredCommand(Registered):
    """A command. `size` gives the bytes of its data; without it, CDW10 is their number of
    dwords."""

    opcode: int
    data: Data
    size: int | Callable[[Command], int] | None
    namespace: bool
    writes: bool
    command_sets: tuple[CommandSet, ...] = ()


@dataclass(frozen=True, eq=False)
class RegisteredPage(Registered):
    """A log page of `size` bytes."""

    lid: int
    size: int


@dataclass(frozen=True, eq=False)
class RegisteredFeature(Registered):
    """A feature of the controller; `size` is that of its data, 0 where it is a dword."""

    fid: int
    default: int | bytes
    size: int
    saved: bool


@dataclass(frozen=True, eq=False)
class RegisteredHelper(Registered):
    """A helper for eBPF programs."""

    number: int


@dataclass(frozen=True, eq=False)
class RegisteredProgram(Registered):
    """A device-defined program, and the run time that it declares."""

    run_time: RunTime


@dataclass(frozen=True, eq=False)
class RegisteredClass:
    """A class, such as a flash translation layer, and the file and line of its decorator."""

    made: type[Any]
    name: str
    place: tuple[str, int]

    def __str__(self) -> str:
        file, line = self.place
        return f"{self.name} ({file}, line {line})"


class _Stateful(Protocol):
    """The part of a drive that has states."""

    def state(self, declared: "DriveState[Any]") -> Any: ...
    def set_state(self, declared: "DriveState[Any]", value: Any) -> None: ...


@dataclass(frozen=True, eq=False)
class DriveState(Generic[T]):
    """A value that outlives power cycles and moves with the drive: `state(drive)`.

    It consists of what JSON has: numbers, texts, booleans, None, lists, and dictionaries whose keys
    are texts. All states of a drive have 1 MiB at most.
    """

    name: str
    version: int
    default: Callable[[], T]
    source: str

    def __str__(self) -> str:
        return f"the state {self.name!r} ({self.source})"

    def __call__(self, drive: Drive) -> T:
        """The drive's value, which may be changed in place."""
        value: T = cast(_Stateful, drive).state(self)
        return value

    def set(self, drive: Drive, value: T) -> None:
        """Replace the drive's value."""
        cast(_Stateful, drive).set_state(self, value)


class Listed(NamedTuple):
    """An addition of an extension to a drive; the number is None where it has none."""

    kind: str
    number: int | None
    name: str
    source: str
    calls: int | None
    """None where they are not counted, which programs make."""
    failures: int | None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number:02X}h"
        return f"{self.kind}{number}, {self.name}"


@dataclass(eq=False)
class Extensions:
    """All that some files have registered."""

    sources: tuple[str, ...] = ()
    admin: dict[int, RegisteredCommand] = field(default_factory=dict)
    io: dict[tuple[CommandSet, int], RegisteredCommand] = field(default_factory=dict)
    pages: dict[int, RegisteredPage] = field(default_factory=dict)
    features: dict[int, RegisteredFeature] = field(default_factory=dict)
    states: dict[str, DriveState[Any]] = field(default_factory=dict)
    completed: dict[tuple[bool, int], list[Registered]] = field(default_factory=dict)
    """Functions that are called after commands, by whether these are Admin commands, and opcode."""
    helpers: dict[str, RegisteredHelper] = field(default_factory=dict)
    operators: dict[str, Registered] = field(default_factory=dict)
    ftls: dict[str, RegisteredClass] = field(default_factory=dict)
    schedulers: dict[str, RegisteredClass] = field(default_factory=dict)
    programs: dict[str, RegisteredProgram] = field(default_factory=dict)
    """Device-defined programs, in the order of their indexes."""
    calls: Counter[Registered] = field(default_factory=Counter)
    failures: Counter[Registered] = field(default_factory=Counter)
    """Calls of functions since the drive was started, and the calls that failed; not of those that
    programs call."""

    @property
    def listed(self) -> list[Listed]:
        """All of them but functions after commands."""
        # A command stands there once for each of its command sets.
        io = {(entry.opcode, entry): entry for entry in self.io.values()}
        tables: Mapping[str, Mapping[Any, Registered]] = {
            "Admin command": self.admin,
            "I/O command": {opcode: entry for (opcode, _), entry in io.items()},
            "log page": self.pages,
            "feature": self.features,
            "helper": {entry.number: entry for entry in self.helpers.values()},
            "operator": self.operators,
            "device-defined program": self.programs,
        }
        uncounted = (self.helpers, self.operators, self.programs)
        of_programs = {entry for table in uncounted for entry in table.values()}
        functions = [
            Listed(
                kind,
                number if isinstance(number, int) else None,
                entry.name,
                entry.place[0],
                None if entry in of_programs else self.calls[entry],
                None if entry in of_programs else self.failures[entry],
            )
            for kind, table in tables.items()
            for number, entry in table.items()
        ]
        classes = {"flash translation layer": self.ftls, "scheduler": self.schedulers}
        return functions + [
            Listed(kind, None, entry.name, entry.place[0], None, None)
            for kind, table in classes.items()
            for entry in table.values()
        ]

"""Extensions: a drive's commands, log pages and more, in Python files of its user.

Such a file registers functions with the decorators below while `load` imports it. What a drive does
with them is in `potash_firmware.rpu.extended`; `potash.extend` exports this module to users.
Programs of the drive (helpers, operators) run in other processes than its commands, which each
import the file once, so module globals are not shared between them.
"""

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import DataDirection
from nvme_spec.queues import SubmissionEntry
from nvme_spec.status import NvmeError, Status

__all__ = [
    "Command",
    "CommandSet",
    "Drive",
    "ExtensionError",
    "Extensions",
    "Namespace",
    "NvmeError",
    "Status",
    "admin_command",
    "completed",
    "io_command",
    "load",
    "log_page",
]

P = ParamSpec("P")
T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])

GROUP = "potash.extensions"
"""The group of entry points by which packages provide extensions: a name, and a module."""

Data = Literal["none", "write", "read"]
"""The data of a command: none, sent by the host (write), or returned to it (read)."""

DIRECTIONS: Mapping[str, DataDirection] = {
    "none": DataDirection.NONE,
    "write": DataDirection.HOST_TO_CONTROLLER,
    "read": DataDirection.CONTROLLER_TO_HOST,
}

STEP_LIMIT = 1.0
"""Seconds that a function, or a step of a generator, may take."""
IMPORT_LIMIT = 60.0
"""Seconds that the import of a file may take."""
REPEAT = 0.05
"""Seconds after which a function that goes on nevertheless is interrupted again."""

MOST_PAGE_BYTES = 1 << 20


class ExtensionError(ValueError):
    """An extension that cannot be used; the text is a sentence that names it."""


# What functions get.


class Namespace(Protocol):
    """A namespace of the drive."""

    @property
    def nsid(self) -> int:
        """The identifier."""

    @property
    def command_set(self) -> CommandSet:
        """The command set."""

    @property
    def block_size(self) -> int:
        """Bytes of a logical block; 1 in a memory namespace."""

    @property
    def blocks(self) -> int:
        """The number of blocks, or of a memory namespace's bytes; 0 in a compute namespace."""


class Command(SubmissionEntry):
    """A command from the host: its opcode, `nsid`, `cdw2`, `cdw3`, and `cdw10` to `cdw15`."""

    queue: int = 0
    """The identifier of its submission queue; 0 for an Admin command."""
    data: bytes = b""
    """The data that the host has sent, of a command with data="write"."""

    @property
    def lba(self) -> int:
        """The first logical block, where the fields are those of Read: CDW10 and CDW11."""
        return self.cdw11 << 32 | self.cdw10

    @property
    def blocks(self) -> int:
        """The number of logical blocks, where the fields are those of Read: CDW12 15:0, 0's
        based."""
        return (self.cdw12 & 0xFFFF) + 1

    def range(self) -> range:
        """The logical blocks, where the fields are those of Read."""
        return range(self.lba, self.lba + self.blocks)


class Drive(Protocol):
    """The drive, as an extension's functions use it."""

    @property
    def namespaces(self) -> Mapping[int, Namespace]:
        """The attached namespaces, by identifier."""

    def now(self) -> int:
        """Nanoseconds of guest time."""

    def log(self, text: str) -> None:
        """Write a line to the device's log."""

    def notify(self, page: int, info: int = 0) -> bool:
        """Raise a vendor specific asynchronous event, which refers to a log page.

        It is not raised again before the host has read that page. False if it waits already.
        """


# The registry.


@dataclass(frozen=True, eq=False)
class Registered:
    """A function of an extension, with the name under which it is reported."""

    function: FunctionType
    name: str

    @property
    def file(self) -> str:
        """The file of the function."""
        return self.function.__code__.co_filename

    def __str__(self) -> str:
        return f"{self.name} ({self.file}, line {self.function.__code__.co_firstlineno})"


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


@dataclass(eq=False)
class Extensions:
    """All that some files have registered."""

    sources: tuple[str, ...] = ()
    admin: dict[int, RegisteredCommand] = field(default_factory=dict)
    io: dict[tuple[CommandSet, int], RegisteredCommand] = field(default_factory=dict)
    pages: dict[int, RegisteredPage] = field(default_factory=dict)
    completed: dict[tuple[bool, int], list[Registered]] = field(default_factory=dict)
    """Functions that are called after commands, by whether these are Admin commands, and opcode."""


_registering = Extensions()
"""Where the decorators register: nobody uses this one, in which files register that are imported by
something else than `load`, as a test does."""


def add(table: dict[Any, Any], key: Any, registered: Registered, what: str) -> None:
    """Register something. Raises ExtensionError if the table has another one of that key."""
    if key in table:
        raise ExtensionError(f"{registered} and {table[key]} both have {what}")
    table[key] = registered


def admin_command(
    opcode: int,
    *,
    name: str,
    data: Data,
    size: int | Callable[[Command], int] | None = None,
    namespace: bool = False,
    writes: bool = False,
) -> Callable[[Function], Function]:
    """Register an Admin command: a function of the drive and the command.

    It returns dword 0 of the completion, or None for 0; with data="read", the data instead. It
    raises `NvmeError` to end the command with a status. If it has to wait, it is a generator, which
    yields what `Drive` gives it to wait for.

    Args:
        opcode: the opcode, whose bits 1:0 are the direction of the data (Base 2.0, 3.3.3.1).
        name: the command's name.
        data: the data, none, written or read by the host.
        size: bytes of the data, or a function that gives them; by default CDW10 is the number of
            dwords, as in the standard's format of vendor specific commands (Base 2.0, 3.3.3.1).
        namespace: the command is for one active namespace.
        writes: the command changes the content of a namespace (effects log, LBCC).
    """

    def register(function: Function) -> Function:
        made = _command(function, opcode, name, data, size, namespace, writes)
        add(_registering.admin, opcode, made, f"Admin opcode {opcode:02X}h")
        return function

    return register


def io_command(
    opcode: int,
    *,
    name: str,
    data: Data,
    size: int | Callable[[Command], int] | None = None,
    writes: bool = False,
    command_sets: Collection[CommandSet] = (CommandSet.NVM, CommandSet.ZONED),
) -> Callable[[Function], Function]:
    """Register an I/O command of namespaces of some command sets; see `admin_command`."""

    def register(function: Function) -> Function:
        made = _command(
            function, opcode, name, data, size, True, writes, tuple(map(CommandSet, command_sets))
        )
        for one in made.command_sets:
            add(_registering.io, (one, opcode), made, f"I/O opcode {opcode:02X}h")
        return function

    return register


def log_page(lid: int, *, name: str, size: int) -> Callable[[Function], Function]:
    """Register a log page: a function of the drive that returns up to `size` bytes of it."""

    def register(function: Function) -> Function:
        _require(type(lid) is int and 0 <= lid <= 0xFF, f"a log page cannot be {lid!r}")
        _require(
            type(size) is int and 0 < size <= MOST_PAGE_BYTES and size % 4 == 0,
            f"the size of a log page is 4 to {MOST_PAGE_BYTES} bytes in whole dwords, not {size!r}",
        )
        page = RegisteredPage(_named(function, name), name, lid, size)
        add(_registering.pages, lid, page, f"log page {lid:02X}h")
        return function

    return register


def completed(opcode: int, *, admin: bool = False) -> Callable[[Function], Function]:
    """Have a function called after each I/O command (or Admin command) of an opcode.

    It gets the drive, the command, and the microseconds from its fetch to its completion. One that
    fails is not called again. While there is one for I/O commands, the fast path is not used.
    """

    def register(function: Function) -> Function:
        _require_opcode(opcode)
        made = _named(function, "completed")
        hook = Registered(made, f"the function {made.__name__}")
        _registering.completed.setdefault((admin, opcode), []).append(hook)
        return function

    return register


def _command(
    function: Callable[..., Any],
    opcode: int,
    name: str,
    data: Data,
    size: int | Callable[[Command], int] | None,
    namespace: bool,
    writes: bool,
    command_sets: tuple[CommandSet, ...] = (),
) -> RegisteredCommand:
    _require_opcode(opcode)
    _require(data in DIRECTIONS, f"data is {data!r}, and must be one of {', '.join(DIRECTIONS)}")
    expected = DIRECTIONS[data]
    _require(
        opcode & 3 == expected,
        f"bits 1:0 of opcode {opcode:02X}h are {opcode & 3:02b}b, and those of a command with "
        f'data="{data}" are {expected:02b}b',
    )
    _require(
        size is None or callable(size) or (type(size) is int and size >= 0),
        f"size is {size!r}, and must be a number of bytes, or a function of the command",
    )
    made = _named(function, name)
    return RegisteredCommand(made, name, opcode, data, size, namespace, writes, command_sets)


def _named(function: object, name: object) -> FunctionType:
    """The function. Raises ExtensionError where it is none, or the name no text."""
    if not isinstance(function, FunctionType):
        raise ExtensionError(f"{function!r} is not a function")
    _require(isinstance(name, str) and name != "", f"the name is {name!r}, and must be a text")
    return function


def _require_opcode(opcode: object) -> None:
    _require(isinstance(opcode, int) and 0 <= opcode <= 0xFF, f"an opcode cannot be {opcode!r}")


def _require(met: bool, wrong: str) -> None:
    if not met:
        raise ExtensionError(wrong)


# Loading.


class TookTooLong(BaseException):
    """A function is interrupted; no Exception, so that it does not handle it by mistake."""


_active = False


def _interrupt(_number: int, _frame: object) -> None:
    if _active:
        raise TookTooLong


def limited(seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function, which a signal interrupts after so many seconds. Raises TookTooLong.

    Only Python code of the process's main thread can be interrupted; another thread has no limit.
    """
    global _active
    if threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    signal.signal(signal.SIGALRM, _interrupt)
    _active = True
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT)
            return function(*args, **kwargs)
        finally:
            _active = False
    finally:  # also where the signal came in the line before
        _active = False
        signal.setitimer(signal.ITIMER_REAL, 0)


_numbers = count()


def load(sources: Iterable[str]) -> Extensions:
    """Import extensions: paths of Python files, or names of the entry points of packages.

    Raises ExtensionError, with the file and the line.
    """
    global _registering
    before, made = _registering, Extensions(tuple(sources))
    _registering = made
    try:
        for source in made.sources:
            try:
                limited(IMPORT_LIMIT, _import, source)
            except BaseException as error:  # noqa: BLE001 - it is a user's code
                file = str(Path(source).absolute()) if is_file(source) else ""
                raise ExtensionError(f"the extension {source}: {why(error, file)}") from None
    finally:
        _registering = before
    return made


def is_file(source: str) -> bool:
    """True for the path of a file, and False for the name of an entry point."""
    return source.endswith(".py") or "/" in source


def _import(source: str) -> None:
    if not is_file(source):
        from importlib import metadata  # takes longer than all else here

        points = metadata.entry_points(group=GROUP, name=source)
        if not points:
            raise ExtensionError("no installed package has an extension of that name")
        for point in points:
            sys.modules.pop(point.module, None)  # it registers while it is imported
            point.load()
        return
    path = Path(source).absolute()
    if not path.is_file():
        raise ExtensionError("there is no such file")
    loader = SourceFileLoader(f"potash_extension_{next(_numbers)}_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)
    sys.path.append(str(path.parent))  # for modules beside it
    try:
        loader.exec_module(module)
    finally:
        sys.path.pop()


def why(error: BaseException, file: str = "") -> str:
    """The reason of a failure, with the line where it happened, in `file` if that has to do with
    it."""
    said = str(error) or type(error).__name__
    if isinstance(error, TookTooLong):
        said = "it takes too long, and was interrupted"
    elif not isinstance(error, ExtensionError) and str(error):
        said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {said}"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    own = [one for one in frames if one.filename == file] or [
        one for one in frames if not one.filename.startswith("<")
    ]
    return f"{own[-1].filename}, line {own[-1].lineno}: {said}" if own else said

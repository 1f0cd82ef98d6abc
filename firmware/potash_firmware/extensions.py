"""Extensions: a drive's commands, log pages and more, in Python files of its user.

Such a file registers functions with the decorators below while `load` imports it. What a drive does
with them is in `potash_firmware.rpu.extended`; `potash.extend` exports this module to users.
Programs of the drive (helpers, operators) run in other processes than its commands, which each
import the file once, so module globals are not shared between them.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType
from typing import Any, TypeVar

from csd_spec import run_times
from csd_spec.program import Helper
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import DataDirection
from nvme_spec.status import NvmeError, Status
from potash_firmware.extension_interface import Command, Drive, Namespace
from potash_firmware.extension_limits import ExtensionError
from potash_firmware.extension_registry import (
    Data,
    DriveState,
    Extensions,
    Registered,
    RegisteredClass,
    RegisteredCommand,
    RegisteredFeature,
    RegisteredHelper,
    RegisteredPage,
    RegisteredProgram,
)

__all__ = [
    "Command",
    "CommandSet",
    "Drive",
    "DriveState",
    "ExtensionError",
    "Namespace",
    "NvmeError",
    "Status",
    "admin_command",
    "completed",
    "device_program",
    "feature",
    "ftl",
    "helper",
    "io_command",
    "log_page",
    "operator",
    "scheduler",
    "state",
]

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type[Any])

DIRECTIONS: Mapping[str, DataDirection] = {
    "none": DataDirection.NONE,
    "write": DataDirection.HOST_TO_CONTROLLER,
    "read": DataDirection.CONTROLLER_TO_HOST,
}


MOST_PAGE_BYTES = 1 << 20
MOST_FEATURE_BYTES = 4096
HELPER_NUMBERS = range(32, 64)
"""Numbers for added helpers: Potash's own are below."""
_OWN_HELPERS = frozenset(helper.name.lower() for helper in Helper)
OWN_FTLS = ("page",)
OWN_SCHEDULERS = ("fifo", "priority")
"""The names of Potash's flash translation layers and schedulers."""


loading: Extensions | None = None
"""The extensions that are being loaded, to which the decorators add."""


def _registry() -> Extensions:
    """The extensions that are being loaded. A file that is imported by something else, such as a
    test, registers for nobody."""
    return loading or Extensions()


programs = Extensions()
"""The extensions of a process that runs programs, or checks them."""


def add(table: dict[Any, Any], key: Any, registered: object, what: str) -> None:
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
        add(_registry().admin, opcode, made, f"Admin opcode {opcode:02X}h")
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
            add(_registry().io, (one, opcode), made, f"I/O opcode {opcode:02X}h")
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
        add(_registry().pages, lid, page, f"log page {lid:02X}h")
        return function

    return register


def feature(
    fid: int, *, name: str, default: int | bytes = 0, size: int = 0, saved: bool = False
) -> Callable[[Function], Function]:
    """Register a feature of the controller: a function of the drive and a new value.

    It is called before the value is stored, also with a saved one when the drive starts, and raises
    `NvmeError` to refuse it. The value is dword 11, or `size` bytes of data. A host can have it
    `saved`, so that it outlives resets and power cycles; else a reset brings the default back.
    """

    def register(function: Function) -> Function:
        made = _named(function, name)
        _require(type(fid) is int and 0 < fid <= 0xFF, f"a feature cannot be {fid!r}")
        _require(
            type(size) is int and 0 <= size <= MOST_FEATURE_BYTES,
            f"the size of a feature is 0 to {MOST_FEATURE_BYTES} bytes, not {size!r}",
        )
        value = default or b"" if size else default
        fits = isinstance(value, bytes) and len(value) <= size
        if not size:
            fits = type(value) is int and 0 <= value < 1 << 32
        _require(fits, f"the default of the feature is {default!r}, which does not fit")
        registered = RegisteredFeature(made, name, fid, value, size, saved)
        add(_registry().features, fid, registered, f"feature {fid:02X}h")
        return function

    return register


def helper(number: int) -> Callable[[Function], Function]:
    """Register a helper: a function that eBPF programs call by its name or its number, 32 to 63.

    It gets the memory of the run and registers r1 to r5, and returns r0
    (`potash_firmware.bpf.AddedHelper`). It runs in the processes of programs, which have nothing of
    the drive, and keeps nothing from one call to the next.
    """

    def register(function: Function) -> Function:
        made = _named(function, "helper")
        check_helper(made.__name__, number)
        registered = RegisteredHelper(made, made.__name__, number)
        for one in _registry().helpers.values():
            if one.number == number:
                add({number: one}, number, registered, f"helper number {number}")
        add(_registry().helpers, made.__name__, registered, "that name of a helper")
        return function

    return register


def check_helper(name: str, number: object) -> None:
    """Raise ExtensionError for a helper that programs cannot call so."""
    if name in _OWN_HELPERS:
        raise ExtensionError("Potash has a helper of that name")
    if not (name.isascii() and name.isidentifier()):
        raise ExtensionError("its name cannot be that of a function in C")
    if number not in HELPER_NUMBERS:
        first, last = HELPER_NUMBERS[0], HELPER_NUMBERS[-1]
        raise ExtensionError(f"its number is {number}, and added helpers have {first} to {last}")


def operator(name: str) -> Callable[[Function], Function]:
    """Register an operator of TensorFlow Lite for the tensor accelerator, by its name in the
    schema: a function of a node and settings (`potash_firmware.tflite.lowering.Lower`)."""

    def register(function: Function) -> Function:
        add(_registry().operators, name, Registered(_named(function, name), name), f"{name}")
        return function

    return register


def device_program(*, name: str, run_time: str = "") -> Callable[[Function], Function]:
    """Register a device-defined program of compute namespaces.

    Its index is the next one after Potash's and those registered before. It is a function of the
    memory ranges (memoryviews), the two parameters and the data of Execute Program, and returns a
    64-bit result. It raises ValueError to refuse them. It runs in a confined process, which has
    nothing of the drive. `run_time` is the time that it takes on a modelled drive, as a program
    declares it (docs/time.md), such as "fixed=20us,per_byte=0.25ns"; without it, none.
    """
    try:
        declared = run_times.parse(run_time)
    except run_times.RunTimeError as error:
        raise ExtensionError(f"run_time={run_time!r:.60}: {error}") from None

    def register(function: Function) -> Function:
        register_program(RegisteredProgram(_named(function, name), name, declared))
        return function

    return register


def register_program(program: RegisteredProgram) -> None:
    """Register a device-defined program. Raises ExtensionError if there is one of that name."""
    add(_registry().programs, program.name, program, "that name of a device-defined program")


def ftl(made: Class) -> Class:
    """Register a flash translation layer by the name of its class, for a drive with `--ftl NAME`.

    It is called with the drive's `Profile`, and has the members of
    `potash_firmware.ftl.interface.Ftl`, of which `submit` alone is necessary; usually it is a
    subclass of `potash.ftl.PageMapped`.
    """
    _register_class(made, "ftl", "submit", "derive it from potash.ftl.PageMapped", OWN_FTLS)
    return made


def scheduler(made: Class) -> Class:
    """Register a scheduler of compute units by the name of its class, for a drive with `--scheduler
    NAME`.

    Its method `pick(self, ready, units, now)` chooses a task of `ready` and a free unit for it, or
    None; an attribute `slice` and a method `preempt` are as in `potash_device.units.UnitScheduler`.
    """
    _register_class(made, "scheduler", "pick", "give it one", OWN_SCHEDULERS)
    return made


def _register_class(made: Any, kind: str, method: str, advice: str, own: Collection[str]) -> None:
    """Register the class that the caller's caller decorates, unless it lacks a method."""
    if not isinstance(made, type):
        raise ExtensionError(f"{made!r:.60} is not a class, and @{kind} is for a class")
    if not callable(getattr(made, method, None)):
        raise ExtensionError(f"the class {made.__name__} has no method {method}; {advice}")
    code = sys._getframe(2)
    found = RegisteredClass(made, made.__name__, (code.f_code.co_filename, code.f_lineno))
    what = f"the name of {'an FTL' if kind == 'ftl' else 'a scheduler'} {found.name!r}"
    if found.name in own:
        raise ExtensionError(f"{found} and Potash's own have {what}")
    add(_registry().ftls if kind == "ftl" else _registry().schedulers, found.name, found, what)


def state(name: str, *, version: int = 1, default: Callable[[], T]) -> DriveState[T]:
    """Declare a value that outlives power cycles and moves with the drive.

    `default` gives that of a drive that has none. A drive that has a state of another version, or
    one that no extension declares, is refused.
    """
    _require(isinstance(name, str) and name != "", f"a state cannot be called {name!r}")
    _require(type(version) is int and version >= 0, f"a version cannot be {version!r}")
    _require(callable(default), f"default is {default!r}, and must be a function, such as dict")

    def fresh() -> T:
        # Of an object that it shares, no change could be told from the default.
        return deepcopy(default())

    fresh()  # which may fail
    made = DriveState(name, version, fresh, (_registry().sources or ("",))[-1])
    add(_registry().states, name, made, f"the name {name!r}")
    return made


def completed(opcode: int, *, admin: bool = False) -> Callable[[Function], Function]:
    """Have a function called after each I/O command (or Admin command) of an opcode.

    It gets the drive, the command, and the microseconds from its fetch to its completion. One that
    fails is not called again. While there is one for I/O commands, the fast path is not used.
    """

    def register(function: Function) -> Function:
        _require_opcode(opcode)
        made = _named(function, "completed")
        hook = Registered(made, f"the function {made.__name__}")
        _registry().completed.setdefault((admin, opcode), []).append(hook)
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
        f'data="{data}" are {expected:02b}b, as in {opcode & ~3 | expected:02X}h',
    )
    _require(
        size is None or callable(size) or (type(size) is int and size >= 0),
        f"size is {size!r}, and must be a number of bytes, or a function of the command",
    )
    made = _named(function, name, waits=True)
    return RegisteredCommand(made, name, opcode, data, size, namespace, writes, command_sets)


def _named(function: object, name: object, *, waits: bool = False) -> FunctionType:
    """The function. Raises ExtensionError where it is none, or a generator unless it `waits`, or
    the name is no text."""
    if not isinstance(function, FunctionType):
        raise ExtensionError(f"{function!r} is not a function")
    if function.__code__.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
        raise ExtensionError(f"{function.__name__} is async; what waits is a generator here")
    if function.__code__.co_flags & CO_GENERATOR and not waits:
        raise ExtensionError(f"{function.__name__} is a generator, and only commands can wait")
    _require(isinstance(name, str) and name != "", f"the name is {name!r}, and must be a text")
    return function


def _require_opcode(opcode: object) -> None:
    _require(isinstance(opcode, int) and 0 <= opcode <= 0xFF, f"an opcode cannot be {opcode!r}")


def _require(met: bool, wrong: str) -> None:
    if not met:
        raise ExtensionError(wrong)

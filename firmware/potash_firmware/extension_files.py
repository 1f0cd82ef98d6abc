"""Loading of extensions (`potash_firmware.extensions`), and the time limit of their functions."""

import difflib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import count
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from potash_firmware import extensions, native_programs
from potash_firmware.extension_registry import ExtensionError, Extensions
from potash_firmware.extensions import register_program

P = ParamSpec("P")
T = TypeVar("T")

GROUP = "potash.extensions"
"""The group of entry points by which packages provide extensions: a name, and a module."""

STEP_LIMIT = 1.0
"""Seconds that a function, or a step of a generator, may take."""
IMPORT_LIMIT = 60.0
"""Seconds that the import of a file may take."""
LONGEST_NUMBER, LONGEST_TEXT = 128, 60
"""Bits and characters of a value that are shown."""
REPEAT = 0.05
"""Seconds after which a function that goes on nevertheless is interrupted again."""


class _NoPackage(ExtensionError):
    """No package has an extension of that name."""


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
    if signal.getsignal(signal.SIGALRM) is not _interrupt:  # to set it takes 4 µs
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
    before, made = extensions.loading, Extensions()
    extensions.loading = made
    try:
        for source in sources:
            made.sources = (*made.sources, source)
            if native := native_programs.source_of(source):
                register_program(native_programs.load(native))
                continue
            if is_file(source) and not Path(source).is_file():
                raise ExtensionError(f"there is no file {source}")
            try:
                limited(IMPORT_LIMIT, _import, source)
            except _NoPackage as error:
                raise ExtensionError(str(error)) from None
            except BaseException as error:  # noqa: BLE001 - it is a user's code
                file = str(Path(source).absolute()) if is_file(source) else ""
                what = "" if file else f"the extension {source}: "
                raise ExtensionError(what + why(error, file)) from None
    finally:
        extensions.loading = before
    if made.operators:
        from potash_firmware.tflite.operators import check_names  # NumPy

        try:
            check_names(made.operators)
        except ValueError as error:
            raise ExtensionError(str(error)) from None
    return made


def is_file(source: str) -> bool:
    """True for the path of a file, and False for the name of an entry point."""
    return source.endswith(".py") or "/" in source


class SourceLoader(SourceFileLoader):
    """A loader of a file as it is: Python would take its bytecode of before for it where it was
    changed within the same second and has the same size."""

    def path_stats(self, path: str) -> NoReturn:
        """No stats, so that no bytecode is read or written (`importlib.abc.SourceLoader`)."""
        raise OSError(f"the bytecode of {path} is not kept")


def _import(source: str) -> None:
    if not is_file(source):
        from importlib import metadata  # takes longer than all else here

        points = metadata.entry_points(group=GROUP, name=source)
        if not points:
            near = difflib.get_close_matches(source, metadata.entry_points(group=GROUP).names, 1)
            beside = Path(f"{source}.py")
            near = [str(beside)] if beside.is_file() else near
            meant = f"; did you mean {near[0]}?" if near else ""
            raise _NoPackage(f"no installed package has an extension {source!r}{meant}")
        for point in points:
            for name in list(sys.modules):  # they register while they are imported
                if f"{name}.".startswith(f"{point.module}."):
                    del sys.modules[name]
            point.load()
        return
    path = Path(source).absolute()
    loader = SourceLoader(f"potash_extension_{next(_numbers)}_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)
    sys.path.append(str(path.parent))  # for modules beside it
    try:
        with redirect_stdout(sys.stderr):  # the device's report is on standard output
            loader.exec_module(module)
    finally:
        sys.path.pop()


def shown(value: object) -> str:
    """A short text for a user's value, whose own text may be long, or fail."""
    if type(value) is int and value.bit_length() > LONGEST_NUMBER:
        return f"a number of {value.bit_length()} bits"
    if type(value) is str:
        return f"{value[:LONGEST_TEXT]!r}"
    if value is None or type(value) in (int, float):
        return repr(value)
    return f"a {type(value).__name__}"


def why(error: BaseException, file: str, line: int = 1) -> str:
    """The reason of a failure, with the line where it happened: the last one in `file`, else the
    given one. Without a file, the last one anywhere."""
    name = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001 - it is a user's code, too
        text = ""
    said = f"{name}: {text}" if text else name
    if isinstance(error, TookTooLong):
        said = "it takes too long, and was interrupted"
    elif isinstance(error, ExtensionError):
        said = text
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {said}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if one.filename == file]
    if own or not file:
        file, line = (own or frames)[-1].filename, (own or frames)[-1].lineno or 0
    return f"{file}, line {line}: {said}"

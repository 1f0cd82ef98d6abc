"""The limits of extensions, their errors, and calls of their functions with a time limit: what a
drive needs that has no extensions, too."""

import signal
import threading
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STEP_LIMIT = 1.0
"""Seconds that a function, or a step of a generator, may take."""
IMPORT_LIMIT = 60.0
"""Seconds that the import of a file may take."""
LONGEST_NUMBER, LONGEST_TEXT = 128, 60
"""Bits and characters of a value that are shown."""
MOST_STATE_BYTES = 1 << 20
"""Bytes of all states of a drive, as JSON."""
REPEAT = 0.05
"""Seconds after which a function that goes on nevertheless is interrupted again."""


class ExtensionError(ValueError):
    """An extension that cannot be used; the text is a sentence that names it."""


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


def is_file(source: str) -> bool:
    """True for the path of a file, and False for the name of an entry point."""
    return source.endswith(".py") or "/" in source


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
    own = [frame for frame in frames if frame.filename == file]
    if own or not file:
        file, line = (own or frames)[-1].filename, (own or frames)[-1].lineno or 0
    return f"{file}, line {line}: {said}"

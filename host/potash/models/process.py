"""Work on a model in a separate process.

TensorFlow Lite can crash the process on an invalid model, and writes to standard error. Both are
hidden from the user of a command.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from potash.sdk.errors import PotashError

P = ParamSpec("P")
Result = TypeVar("Result")

_CHILD = "from potash.models.process import work; work()"
_OK, _REFUSED, _FAILED = range(3)


def isolated(function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Call a module's function in a separate process, and return its result. Raises PotashError if
    the function does, and if the process ends without a result."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            out, err = child.communicate(pickle.dumps((function, args, kwargs)))
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        raise PotashError(_ended(child.returncode, err))
    verdict, value = pickle.loads(out)
    if verdict == _FAILED:
        raise RuntimeError(value)
    if verdict == _REFUSED:
        raise PotashError(value)
    result: Result = value
    return result


def work() -> None:
    """The child's side."""
    # Ctrl-C reaches the whole group of processes; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        function, args, kwargs = pickle.load(sys.stdin.buffer)
        pickle.dump(_answer(function, args, kwargs), answers)


def _answer(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[int, Any]:
    from potash_firmware.tflite.validation import ModelError

    try:
        return _OK, function(*args, **kwargs)
    except (ModelError, PotashError) as error:
        return _REFUSED, str(error)
    except Exception:  # noqa: BLE001  # the parent raises it
        return _FAILED, traceback.format_exc()


def _ended(code: int, err: bytes) -> str:
    """A sentence about a process that ended unexpectedly."""
    with contextlib.suppress(ValueError):
        return (
            f"TensorFlow Lite ended with {signal.Signals(-code).name} on this model"
            f"{_last_line(err)}; the model is broken, or larger than memory"
        )
    return f"TensorFlow Lite ended with code {code} on this model{_last_line(err)}"


def _last_line(err: bytes) -> str:
    lines = [line.strip() for line in err.decode(errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith(("INFO", "W0", "I0"))]
    return f" ({said[-1]})" if said else ""

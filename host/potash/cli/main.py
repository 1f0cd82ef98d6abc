"""The console script's entry: as little as possible before an interrupt can be answered."""

import gc
import os
import signal
import sys
from types import FrameType

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a command, so that it leaves nothing behind."""

_came: list[int] = []
"""The signals of `ENDING` that have arrived."""
_lost: list[type[BaseException]] = []
"""Interrupts that Python could not raise where they came: in a finalizer or a callback of C."""
_is_over = False
"""The command has ended, and a signal changes nothing any more. Where an exception is handled this
is set before anything is called, as Python handles signals only at calls and loops."""


def main() -> None:
    """Run the command line and end with its exit code."""
    global _is_over
    sys.unraisablehook = _unraisable
    interrupted = False
    try:
        for name in ENDING:
            number = signal.Signals[name]
            # Whoever was started with it ignored, as under nohup, goes on ignoring it.
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _end)
        gc.disable()  # what modules make stays, so that looking for garbage in it takes time alone
        from potash.cli.app import run_app

        gc.freeze()
        gc.enable()
        code = run_app(sys.argv[1:])
        _is_over = True
        interrupted = bool(_came)  # and the command has ended as it does when it is interrupted
    except KeyboardInterrupt:
        _is_over = interrupted = True
    except Exception as error:
        _is_over = True
        # Making a class turns whatever comes meanwhile into a RuntimeError, and a callback that an
        # interrupt has ended may make its caller raise another error.
        interrupted = bool(_lost or isinstance(error.__cause__, KeyboardInterrupt))
        if not interrupted:
            raise
    finally:
        _is_over = True
        for name in ENDING:  # Python would give them back their default while it ends
            signal.signal(signal.Signals[name], signal.SIG_IGN)
        _drop_unwritten()
        # Python looks for garbage in all that was imported when it ends, to give its memory back.
        gc.freeze()
    sys.exit(_interrupted() if interrupted else code)


def _unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Have an interrupt that was lost come again soon; show anything else as Python does."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import threading

    _lost.append(unraisable.exc_type)
    number = _came[-1] if _came else signal.SIGINT
    again = threading.Timer(0.05, os.kill, [os.getpid(), number])
    again.daemon = True
    again.start()


def _drop_unwritten() -> None:
    """Forget output that cannot be written, which was reported to the user.

    Python would try it again at its end, and exit with 120 and a message of its own.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _end(number: int, _frame: FrameType | None) -> None:
    if not _is_over:
        # Not SystemExit, which libraries and callbacks of C take for an error like any other.
        _came.append(number)
        raise KeyboardInterrupt


def _interrupted() -> int:
    """The exit code of a command that was interrupted, by a signal or at a prompt."""
    # Where an interrupt has ended the last text that was executed, as dataclasses are made of,
    # Python would end this process by SIGINT, whatever its exit code is.
    exec("")  # noqa: S102
    number = _came[0] if _came else signal.SIGINT
    if number == signal.SIGINT:
        print("potash: interrupted", file=sys.stderr)
    return 128 + number


if __name__ == "__main__":
    main()

"""Trace points: named events of commands, which a sink can record.

While there is no sink, a point costs an attribute test: `if trace.sink is not None:
trace.sink("rpu.fetch", {"qid": 1})`. Events with a duration are spans: `with
COMPUTE.span("tflite.node")`. Each board has separate points; `COMPUTE` has those of programs and
models that run in this process."""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

log = logging.getLogger(__name__)

Sink = Callable[[str, Mapping[str, object]], None]
"""Takes a point's name and what is known there. May be called from any thread."""

RECENT_LIMIT = 256

_NOTHING = nullcontext()


class Note(NamedTuple):
    """A command that was fetched, or answered: `what` is its entry, or its status and dword 0."""

    time: float
    point: str
    qid: int
    cid: int
    what: tuple[int, ...]


class Trace:
    """Points that are watched together; `sink` is None while nobody watches."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.recent: deque[Note] = deque(maxlen=RECENT_LIMIT)
        """The newest notes, for telemetry."""

    def span(self, point: str, **known: object) -> AbstractContextManager[object]:
        """A span that lasts as long as the block: recorded at its end, with the time it `began`."""
        return _NOTHING if self.sink is None else _Span(self.sink, point, known)


class _Span:
    def __init__(self, sink: Sink, point: str, known: dict[str, object]) -> None:
        self._sink = sink
        self._point = point
        self._known = known

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = {"error": kind.__name__} if kind is not None else {}
        self._sink(self._point, {"began": self._began, **self._known, **failed})


COMPUTE = Trace()
"""The points of programs, models and streams in this process."""


class JsonLines:
    """A sink that appends one line of JSON to a file for each point, of any number of processes.

    `descriptor` is open for appending, so that a line is written in one piece wherever the others
    are; it stays the caller's. `ended` is called, with the reason, when the file takes no more.
    """

    def __init__(self, descriptor: int, ended: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._ended = ended
        self._pid = os.getpid()

    def __call__(self, point: str, known: Mapping[str, object]) -> None:
        head = {"time": time.monotonic(), "pid": self._pid, "point": point}
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            head["thread"] = thread.name
        line = json.dumps(head | dict(known), separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._ended(error.strerror or str(error))
            return
        if written < len(line):
            self._ended("there is no room for more")


def record(trace: Trace, descriptor: int, name: str, *, level: int = logging.ERROR) -> None:
    """Have the points of `trace` written to a file, as `JsonLines` does.

    The first line says that this process is called `name`. When the file takes no more, a line of
    that `level` in the log says so: what is traced is worth more than its trace.
    """

    def end(reason: str) -> None:
        if trace.sink is None:  # a span had begun before
            return
        trace.sink = None
        log.log(level, "the trace ends here, it cannot be written: %s", reason)

    trace.sink = sink = JsonLines(descriptor, end)
    sink("process", {"name": name})


def record_part(whole: Trace, part: Trace, **labels: object) -> None:
    """Have the points of `part` among those of `whole`, which are recorded; each has
    the `labels` of the part."""

    def sink(point: str, of_point: Mapping[str, object]) -> None:
        if whole.sink is not None:
            whole.sink(point, {**labels, **of_point})

    part.sink = sink

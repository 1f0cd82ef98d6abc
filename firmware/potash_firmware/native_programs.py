"""Device-defined programs in native code: functions of shared objects that the device's user names.

A program for what eBPF cannot express, such as floating point and vectors. It is compiled from

    uint64_t function(const struct potash_range *ranges, uint32_t count,
                      const uint64_t parameters[2], const void *data, uint64_t length);

with `struct potash_range { void *start; uint64_t length; }`, and runs in a confined worker as any
program does. The object is the user's own code, as an extension is: it is loaded when the device
starts, and nothing that a host sends is ever loaded.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from csd_spec.run_times import RunTimeError, parse
from potash_firmware.extension_limits import ExtensionError
from potash_firmware.extension_registry import RegisteredProgram

_SOURCE = re.compile(r"(?P<path>.+\.so(?:\.[0-9]+)*):(?P<function>[A-Za-z_]\w*)(?::(?P<time>.*))?")


class NativeSource(NamedTuple):
    """FILE.so:FUNCTION[:RUN_TIME], taken apart."""

    path: str
    function: str
    run_time: str


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_uint64))


@dataclass(frozen=True, eq=False)
class NativeProgram(RegisteredProgram):
    """A function of a shared object; its place is that object, and no line."""

    path: str

    @property
    def place(self) -> tuple[str, int]:
        return self.path, 0

    def __str__(self) -> str:
        return f"{self.name} ({self.path})"


def source_of(text: str) -> NativeSource | None:
    """The parts of a source; None for one of another kind."""
    found = _SOURCE.fullmatch(text)
    return NativeSource(found["path"], found["function"], found["time"] or "") if found else None


def load(source: NativeSource) -> NativeProgram:
    """The program of a source, loaded into this process. Raises ExtensionError."""
    path = Path(source.path).absolute()
    if not path.is_file():
        raise ExtensionError(f"there is no file {source.path}")
    try:
        function = getattr(ctypes.CDLL(str(path)), source.function)
    except OSError as error:
        raise ExtensionError(f"{source.path} cannot be loaded: {error}") from None
    except AttributeError:
        raise ExtensionError(f"{source.path} has no function {source.function}") from None
    try:
        run_time = parse(source.run_time)
    except RunTimeError as error:
        raise ExtensionError(f"{source.path}:{source.function}: {error}") from None
    return NativeProgram(_called(function), source.function, run_time, str(path))


def _called(function: Any) -> FunctionType:
    """A function of memory ranges, parameters and data that calls the one of a shared object."""
    function.restype = ctypes.c_uint64
    function.argtypes = (
        ctypes.POINTER(_Range),
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_uint64),
        ctypes.c_void_p,
        ctypes.c_uint64,
    )

    def call(ranges: Sequence[memoryview], parameters: tuple[int, int], data: bytes) -> int:
        held = [ctypes.c_char.from_buffer(view) for view in ranges]
        places = (_Range * len(held))()
        for place, first, view in zip(places, held, ranges, strict=True):
            place.start, place.length = ctypes.addressof(first), len(view)
        result: int = function(
            places, len(held), (ctypes.c_uint64 * 2)(*parameters), data or None, len(data)
        )
        return result

    assert isinstance(call, FunctionType)
    return call

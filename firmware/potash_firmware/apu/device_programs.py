"""The device-defined programs, which a confined worker runs on memory ranges.

They are written in Python, as they are trusted, and a compiler for BPF may not be installed.
Parameters and ranges come from a client; if they do not fit, they are refused before a byte is
written.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from csd_spec.run_times import NOT_DECLARED, RunTime
from potash_firmware import extensions
from potash_firmware.bpf.crc32c import crc32c
from potash_firmware.bpf.helpers import Infer
from potash_firmware.extension_limits import shown, why
from potash_firmware.extension_registry import Registered, RegisteredProgram
from potash_firmware.mailbox.device_programs import RANGES, DeviceProgram

INTEGER = np.dtype("<u8")
FIELD = np.dtype("<u4")

RECORD_BYTES_AT_ONCE = 1 << 20

TEXT_BYTES_AT_ONCE = 4096
"""Bytes that are searched together for the beginning of a line."""

MASK = (1 << 64) - 1

IN_DATA = frozenset({DeviceProgram.GREP, DeviceProgram.QUERY})
"""Programs of which the last range may be the command's data instead."""


class Refused(ValueError):
    """The program refuses its parameters or ranges, with one sentence."""


Views = Sequence[memoryview]

Query = Callable[[memoryview | bytes, memoryview, memoryview], int]
"""Writes a piece of the result of a request about a table's file, and returns its bytes."""


def run(
    number: int,
    ranges: Views,
    parameters: tuple[int, int],
    data: bytes,
    infer: Infer,
    query: Query,
) -> int:
    """Run a program; returns its 64-bit result. Raises Refused, and what models and queries
    raise."""
    if number >= len(DeviceProgram):
        return _extended(_registered(number), ranges, parameters, data)
    program = DeviceProgram(number)
    names = RANGES[program]
    given = len(ranges) + (program in IN_DATA and bool(data))
    if given < len(names):
        raise Refused(f"{len(names)} ranges are needed ({', '.join(names)}), not {len(ranges)}")
    if program is DeviceProgram.TFLITE:
        return infer(_prefix(ranges[0], parameters[0]), ranges[1], ranges[2])
    if program is DeviceProgram.QUERY:
        if any(parameters):
            raise Refused("the parameters of a query are 0")
        return query(data or ranges[2], ranges[0], ranges[1])
    if program is DeviceProgram.GREP:
        return _grep(ranges, parameters, data)
    return _FUNCTIONS[program](ranges, parameters)


def run_time(number: int) -> RunTime:
    """The run time that a program declares, which only those of extensions do."""
    return NOT_DECLARED if number < len(DeviceProgram) else _registered(number).run_time


def _registered(number: int) -> RegisteredProgram:
    return list(extensions.programs.programs.values())[number - len(DeviceProgram)]


def _extended(program: Registered, ranges: Views, parameters: tuple[int, int], data: bytes) -> int:
    """Run a program of an extension. Raises Refused, with the line where it fails."""
    try:
        result = program.function(list(ranges), parameters, data)
    except Exception as error:  # noqa: BLE001 - it is a user's code
        raise Refused(f"{program.name}: {why(error, *program.place)}") from None
    if type(result) is not int or not 0 <= result <= MASK:
        raise Refused(f"{program} returns {shown(result)}, and must return a 64-bit number")
    return result


def bytes_moved(program: int, ranges: Views, parameters: tuple[int, int]) -> int:
    """Bytes of DRAM that a program counts as reading or writing, for its modelled time.

    COPY counts both ranges, the others their first one, up to the length that they process. TFLITE
    and QUERY count by themselves.
    """
    if program in (DeviceProgram.TFLITE, DeviceProgram.QUERY) or not ranges:
        return 0
    length = parameters[0]
    if program == DeviceProgram.FILTER:
        length = (parameters[0] & 0xFFFF) * (parameters[0] >> 32)
    length = min(length or len(ranges[0]), len(ranges[0]))
    return 2 * length if program == DeviceProgram.COPY else length


def _prefix(view: memoryview, length: int) -> memoryview:
    """The first `length` bytes of a range, all of it for 0. Raises Refused."""
    if length > len(view):
        raise Refused(f"range 0 has {len(view)} bytes, not {length}")
    return view[: length or len(view)]


def _copy(ranges: Views, parameters: tuple[int, int]) -> int:
    source = _prefix(ranges[0], parameters[0])
    if len(source) > len(ranges[1]):
        raise Refused(f"range 1 has no room for {len(source)} bytes")
    ranges[1][: len(source)] = source
    return len(source)


def _fill(ranges: Views, parameters: tuple[int, int]) -> int:
    target, pattern = _prefix(ranges[0], parameters[0]), parameters[1].to_bytes(8, "little")
    whole = len(target) // INTEGER.itemsize * INTEGER.itemsize
    np.frombuffer(target[:whole], INTEGER)[:] = parameters[1]
    target[whole:] = pattern[: len(target) - whole]
    return len(target)


def _crc32c(ranges: Views, parameters: tuple[int, int]) -> int:
    if parameters[1] > 0xFFFF_FFFF:
        raise Refused("a CRC-32C has 32 bits")
    return crc32c(_prefix(ranges[0], parameters[0]), parameters[1])


def _integers(
    ranges: Views, parameters: tuple[int, int]
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    view = _prefix(ranges[0], parameters[0])
    if len(view) % INTEGER.itemsize:
        raise Refused(f"{len(view)} bytes are no whole number of 64-bit integers")
    return np.frombuffer(view, INTEGER)


def _grep(ranges: Views, parameters: tuple[int, int], data: bytes) -> int:
    text, output = _prefix(ranges[0], parameters[0]), ranges[1]
    needle = data
    if not data:
        if parameters[1] > len(ranges[2]):
            raise Refused(f"range 2 has {len(ranges[2])} bytes, not {parameters[1]}")
        needle = bytes(ranges[2][: parameters[1]])
    if not needle or b"\n" in needle:
        raise Refused("the text to find is empty, or has a newline")
    count = used = 0
    room = True
    for begin, end in _lines_with(text, needle):
        count += 1
        room = room and used + end - begin + 1 <= len(output)
        if room:
            output[used : used + end - begin] = text[begin:end]
            used += end - begin
            output[used] = ord("\n")
            used += 1
    return count


def _lines_with(text: memoryview, needle: bytes) -> Iterator[tuple[int, int]]:
    """The offsets of the beginning and the end of each line with that text."""
    pattern, newline = re.compile(re.escape(needle)), re.compile(b"\n")
    at = 0
    while found := pattern.search(text, at):
        behind = newline.search(text, found.end())
        end = behind.start() if behind else len(text)
        yield _line_start(text, at, found.start()), end
        at = end + 1


def _line_start(text: memoryview, first: int, at: int) -> int:
    """The offset of the beginning of the line of byte `at`; it is at `first` or later."""
    while at > first:
        piece = max(first, at - TEXT_BYTES_AT_ONCE)
        place = bytes(text[piece:at]).rfind(b"\n")
        if place >= 0:
            return piece + place + 1
        at = piece
    return first


def _filter(ranges: Views, parameters: tuple[int, int]) -> int:
    size, place, count = (parameters[0] & 0xFFFF, parameters[0] >> 16 & 0xFFFF, parameters[0] >> 32)
    least, largest = parameters[1] & 0xFFFF_FFFF, parameters[1] >> 32
    if not size or place + FIELD.itemsize > size:
        raise Refused(f"a record of {size} bytes has no 32-bit field at {place}")
    count = count or len(ranges[0]) // size
    records, output = _prefix(ranges[0], count * size), ranges[1]
    selected = used = 0
    step = max(1, RECORD_BYTES_AT_ONCE // size)
    for first in range(0, count, step):
        piece = records[first * size : (first + step) * size]
        rows = np.frombuffer(piece, np.uint8).reshape(-1, size)
        fields = np.ascontiguousarray(rows[:, place : place + FIELD.itemsize]).view(FIELD)[:, 0]
        found = np.flatnonzero((fields >= least) & (fields <= largest))
        selected += len(found)
        kept = rows[found[: (len(output) - used) // size]].tobytes()
        output[used : used + len(kept)] = kept
        used += len(kept)
    return selected


_FUNCTIONS: Mapping[DeviceProgram, Callable[[Views, tuple[int, int]], int]] = {
    DeviceProgram.COPY: _copy,
    DeviceProgram.FILL: _fill,
    DeviceProgram.CRC32C: _crc32c,
    DeviceProgram.SUM: lambda ranges, parameters: (
        int(_integers(ranges, parameters).sum(dtype=INTEGER)) & MASK
    ),
    DeviceProgram.MINIMUM: lambda ranges, parameters: int(_integers(ranges, parameters).min()),
    DeviceProgram.MAXIMUM: lambda ranges, parameters: int(_integers(ranges, parameters).max()),
    DeviceProgram.FILTER: _filter,
}

"""The device-defined programs: what compute namespaces have without a download, by index.

Each is described by what its memory ranges and its parameters are; the documentation's table is
made of this one. `bytes` is how much of range 0 counts, 0 for all of it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class DeviceProgram(IntEnum):
    """Program indexes, from 0 on."""

    COPY = 0
    FILL = 1
    CRC32C = 2
    SUM = 3
    MINIMUM = 4
    MAXIMUM = 5
    GREP = 6
    FILTER = 7
    TFLITE = 8


class Description(NamedTuple):
    """What a program takes and gives. `name` is what it is called by."""

    name: str
    ranges: tuple[str, ...]
    parameter1: str
    parameter2: str
    result: str


DESCRIPTIONS: dict[DeviceProgram, Description] = {
    DeviceProgram.COPY: Description(
        "copy", ("source", "target"), "bytes", "", "the number of bytes copied"
    ),
    DeviceProgram.FILL: Description(
        "fill",
        ("target",),
        "bytes",
        "8 bytes that are repeated, the lowest first",
        "the number of bytes written",
    ),
    DeviceProgram.CRC32C: Description(
        "crc32c", ("data",), "bytes", "0, or an earlier result to go on from", "the CRC-32C"
    ),
    DeviceProgram.SUM: Description(
        "sum", ("unsigned 64-bit integers",), "bytes", "", "their sum modulo 2^64"
    ),
    DeviceProgram.MINIMUM: Description(
        "min", ("unsigned 64-bit integers",), "bytes", "", "the least"
    ),
    DeviceProgram.MAXIMUM: Description(
        "max", ("unsigned 64-bit integers",), "bytes", "", "the largest"
    ),
    DeviceProgram.GREP: Description(
        "grep",
        ("text", "the lines found, each with its newline", "the text to find"),
        "bytes",
        "bytes of the text to find",
        "the number of lines that contain it, also of those that there is no room for; "
        "the text to find may be the command's data instead of range 2",
    ),
    DeviceProgram.FILTER: Description(
        "filter",
        ("records", "the records selected"),
        "15:0 bytes of a record, 31:16 where in it a field of 32 bits begins, "
        "63:32 the number of records, 0 for all",
        "31:0 the least value of the field that is wanted, 63:32 the largest",
        "the number of records selected, also of those that there is no room for",
    ),
    DeviceProgram.TFLITE: Description(
        "tflite",
        ("a TensorFlow Lite model", "its inputs", "its outputs"),
        "bytes",
        "",
        "the number of bytes of output",
    ),
}

"""The device-defined programs of compute namespaces, by index.

The table of their memory ranges and parameters is also that of the documentation. `bytes` is the
number of bytes of range 0 to process, 0 for all.
"""

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
    """Ranges, parameters and result of a program."""

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
        "8 bytes to repeat, the lowest first",
        "the number of bytes written",
    ),
    DeviceProgram.CRC32C: Description(
        "crc32c", ("data",), "bytes", "0, or an earlier result to continue", "the CRC-32C"
    ),
    DeviceProgram.SUM: Description(
        "sum", ("unsigned 64-bit integers",), "bytes", "", "their sum modulo 2^64"
    ),
    DeviceProgram.MINIMUM: Description(
        "min", ("unsigned 64-bit integers",), "bytes", "", "the smallest one"
    ),
    DeviceProgram.MAXIMUM: Description(
        "max", ("unsigned 64-bit integers",), "bytes", "", "the largest one"
    ),
    DeviceProgram.GREP: Description(
        "grep",
        ("text", "output: the lines found, each with its newline", "the text to find"),
        "bytes",
        "length of the text to find in bytes",
        "the number of lines that contain it, including those that do not fit; "
        "the text to find may be the command's data instead of range 2",
    ),
    DeviceProgram.FILTER: Description(
        "filter",
        ("records", "output: the selected records"),
        "15:0 length of a record in bytes, 31:16 offset of a 32-bit field in it, "
        "63:32 number of records, 0 for all",
        "31:0 smallest value of the field to select, 63:32 largest value",
        "the number of selected records, including those that do not fit",
    ),
    DeviceProgram.TFLITE: Description(
        "tflite",
        ("a TensorFlow Lite model", "its inputs", "its outputs"),
        "bytes",
        "",
        "the number of bytes of output",
    ),
}

"""The device-defined programs of compute namespaces, by index.

The table of their memory ranges is also that of the documentation.
"""

from enum import IntEnum


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
    QUERY = 9


RANGES: dict[DeviceProgram, tuple[str, ...]] = {
    DeviceProgram.COPY: ("source", "target"),
    DeviceProgram.FILL: ("target",),
    DeviceProgram.CRC32C: ("data",),
    DeviceProgram.SUM: ("unsigned 64-bit integers",),
    DeviceProgram.MINIMUM: ("unsigned 64-bit integers",),
    DeviceProgram.MAXIMUM: ("unsigned 64-bit integers",),
    DeviceProgram.GREP: (
        "text",
        "output: the lines found, each with its newline",
        "the text to find",
    ),
    DeviceProgram.FILTER: ("records", "output: the selected records"),
    DeviceProgram.TFLITE: ("a TensorFlow Lite model", "its inputs", "its outputs"),
    DeviceProgram.QUERY: ("a table's file", "output: a piece of the result", "the request"),
}
"""The meaning of the memory ranges of each program."""

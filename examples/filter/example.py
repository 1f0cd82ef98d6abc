"""The records that `program.c` selects from, and what plain Python selects.

    python examples/filter/example.py

writes `input.bin` and `expected.bin` beside this file.
"""

import random
import struct
from pathlib import Path

RECORD = struct.Struct("<QQIIII96s")
"""Number, time in ms, sensor, temperature in mK, humidity in ppm, flags, a note: 128 bytes."""

RECORDS = 16_384
TEMPERATURE = 20
"""Where in a record the temperature begins."""
LOW, HIGH = 358_000, 400_000
"""What is looked for: 84.85 °C to 126.85 °C."""


def input_data() -> bytes:
    """2 MiB of measurements, the same each time."""
    source = random.Random(1742)
    records = []
    for number in range(RECORDS):
        sensor = source.randrange(64)
        temperature = int(source.gauss(315_000, 15_000))
        humidity = source.randrange(1_000_000)
        note = f"sensor {sensor}, hall {sensor // 8}".encode()
        time = 1_900_000_000_000 + 250 * number
        records.append(RECORD.pack(number, time, sensor, temperature, humidity, 0, note))
    return b"".join(records)


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with."""
    numbers = (len(data) // RECORD.size, TEMPERATURE, LOW, HIGH)
    return [struct.pack("<I", number) for number in numbers]


def expected(data: bytes) -> bytes:
    """The records whose temperature is in the range."""
    return b"".join(
        data[at : at + RECORD.size]
        for at in range(0, len(data), RECORD.size)
        if LOW <= RECORD.unpack_from(data, at)[3] <= HIGH
    )


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    temperatures = [fields[3] for fields in RECORD.iter_unpack(output)]
    hottest = max(temperatures, default=0) / 1000 - 273.15
    return [
        (
            f"{len(temperatures)} of {len(data) // RECORD.size} records are from {LOW / 1000:g} K"
            f" to {HIGH / 1000:g} K, the hottest {hottest:.1f} °C"
        )
    ]


if __name__ == "__main__":
    made = input_data()
    for name, content in (("input.bin", made), ("expected.bin", expected(made))):
        (Path(__file__).parent / name).write_bytes(content)

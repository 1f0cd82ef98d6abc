"""The log that `program.c` searches, and what plain Python finds in it.

    python examples/grep/example.py

writes `input.bin` and `expected.bin` beside this file.
"""

import random
import struct
from pathlib import Path

TEXT = b"timed out"
LINES = 24_000

SERVICES = ("auth", "billing", "cache", "gateway", "index", "mail", "queue", "search")
EVENTS = (
    ("INFO", "request {number} answered in {small} ms"),
    ("INFO", "session {number} opened for user{small}"),
    ("DEBUG", "cache miss for key {number:08x}, {small} entries kept"),
    ("WARN", "queue is {small} % full, {number} waiting"),
)
RARE = ("ERROR", "connection {number} to 10.0.{small}.7 timed out after 30 s")
ONE_IN = 400
"""How often the rare event is the one that happens."""


def input_data() -> bytes:
    """A log of some 1.5 MB, the same each time."""
    source = random.Random(1996)
    lines = []
    for at in range(LINES):
        level, text = RARE if source.randrange(ONE_IN) == 0 else source.choice(EVENTS)
        text = text.format(number=source.randrange(1 << 31), small=source.randrange(100))
        minute, second = divmod(at // 7, 60)
        time = f"{minute // 60:02}:{minute % 60:02}:{second:02}.{source.randrange(1000):03}"
        lines.append(f"2031-04-01T{time} {source.choice(SERVICES)} {level} {text}\n")
    return "".join(lines).encode()


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with."""
    return [struct.pack("<I", len(data)), TEXT]


def expected(data: bytes) -> bytes:
    """How many lines contain the text, in 64 bits, and the lines."""
    found = [line for line in data.splitlines(keepends=True) if TEXT in line]
    return struct.pack("<Q", len(found)) + b"".join(found)


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    (count,) = struct.unpack_from("<Q", output)
    first = output[8:].partition(b"\n")[0].decode()
    return [
        f"{count} of {data.count(bytes([10]))} lines have “{TEXT.decode()}” in them, the first:",
        first,
    ]


if __name__ == "__main__":
    made = input_data()
    for name, content in (("input.bin", made), ("expected.bin", expected(made))):
        (Path(__file__).parent / name).write_bytes(content)

"""The documentation's session with an accelerator, step by step, and what each step must leave.

`docs/commands.md` has it as lines for a shell. What runs them is the caller's: a guest with the
stock nvme-cli, or a shell on this machine.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from itertools import pairwise

from support.docs import ROOT, blocks

EXAMPLE = ROOT / "examples" / "add"
PAGE = "commands.md"

IDENTIFY = struct.pack("<4sI8xIH2xI12xI4xQI4xQ", b"WDC0", 72, 56, 0, 0, 1, 64 << 20, 2, 64 << 20)
"""One accelerator, 0, that takes firmware and has two buffers of 64 MiB."""


def steps() -> list[str]:
    """The eight sections of the example command flow."""
    block = blocks(PAGE, "sh")[0]
    starts = [match.start() for match in re.finditer(r"^# \d\. ", block, re.MULTILINE)]
    return [block[first:end] for first, end in pairwise([*starts, len(block)])]


def commands() -> list[tuple[str, str]]:
    """Each command of the second block, with the comment above it."""
    found, said = [], ""
    for line in blocks(PAGE, "sh")[1].replace("\\\n", "").splitlines():
        if line.startswith("#"):
            said = line
        else:
            found.append((said, line))
    return found


def check_step(number: int, read: Callable[[str], bytes]) -> None:
    """What is there after a step; `read` gives a file that it has left."""
    match number:
        case 1:
            assert read("header.bin") == IDENTIFY[:8]
            assert read("identify.bin") == IDENTIFY
        case 6:
            status = read("status.bin")
            assert read("header.bin") == status[:4] == struct.pack("<I", 128)
            assert len(status) == 128
            capability, firmware, returned = struct.unpack_from("<IIQ", status, 32)
            assert struct.unpack_from("<I", status, 4) == (2,), "the job is not done"
            assert (capability, firmware, returned) == (0, 0, 0)
            assert struct.unpack_from("<I4xQ", status, 64) == (1, len(input_bytes()))
            assert struct.unpack_from("<I4xQ", status, 96) == (2, 1024)
        case 7:
            page = read("log.bin")
            assert read("header.bin") == page[:4] == struct.pack("<I", len(page))
            at, types = 16, []
            while at < len(page):
                length, _, kind = struct.unpack_from("<IQI", page, at)
                types.append(kind)
                at += length
            assert at == len(page)
            assert types[0] == 0x101 and types[-1] == 0x102
        case 8:
            assert read("output.bin") == (EXAMPLE / "expected.bin").read_bytes()


def input_bytes() -> bytes:
    return (EXAMPLE / "input.bin").read_bytes()

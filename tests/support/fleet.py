"""What tests of fleets share: shards of the example `grep`, and a program that may not end."""

import struct
from collections.abc import Iterable
from pathlib import Path

from potash.fleet import Drive, Result
from potash.programs.examples import Example
from potash.sdk import INPUT_LENGTH
from potash.sdk.accelerator import Argument
from support.bpf_elf import Name, elf, text

SHARDS = 4
SMALL = ("--accelerator", "512K")
FOREVER = b"L"
"""What a shard begins with on which LOOPING does not end."""

# r0 = *(u8 *)(r1 + 0); if r0 == 'L' goto -1; r0 = 7; exit (RFC 9669, sections 4 and 5)
LOOPING = elf(
    [
        text(
            bytes.fromhex(
                "71 10 00 00 00 00 00 00  15 00 ff ff 4c 00 00 00"
                "b7 00 00 00 07 00 00 00  95 00 00 00 00 00 00 00"
            )
        )
    ],
    [Name("prog")],
)

# r1 = 0; call 4 (the length of the output is r1); r0 = 0; exit
SILENT = elf(
    [
        text(
            bytes.fromhex(
                "b7 01 00 00 00 00 00 00  85 00 00 00 04 00 00 00"
                "b7 00 00 00 00 00 00 00  95 00 00 00 00 00 00 00"
            )
        )
    ],
    [Name("prog")],
)


class Grep:
    """The example's log in shards, one of which keeps LOOPING busy."""

    def __init__(self, folder: Path, slow: int = SHARDS - 1) -> None:
        example = Example.load("grep")
        self.program = example.program
        self.text = example.arguments[1]
        self.args: list[Argument] = [INPUT_LENGTH, self.text]
        lines = example.input.splitlines(keepends=True)
        each = len(lines) // SHARDS
        self.contents = [b"".join(lines[at * each : (at + 1) * each]) for at in range(SHARDS)]
        self.contents[slow] = FOREVER + self.contents[slow]
        self.paths = [folder / f"part-{at}" for at in range(SHARDS)]
        for path, content in zip(self.paths, self.contents, strict=True):
            path.write_bytes(content)

    def expected(self, at: int) -> bytes:
        """What the program finds in a shard, by plain Python."""
        found = [one for one in self.contents[at].splitlines(keepends=True) if self.text in one]
        return struct.pack("<Q", len(found)) + b"".join(found)

    def check(self, results: Iterable[Result]) -> None:
        """Raises AssertionError unless these are the results of all shards."""
        found = {one.shard: one for one in results}
        assert {at: one.error for at, one in found.items()} == dict.fromkeys(range(SHARDS), "")
        for at, one in found.items():
            assert one.output == self.expected(at)
            assert one.held == len(self.contents[at])
            assert one.moved == len(self.program) + 4 + len(self.text) + len(one.output)


def counted(outputs: list[bytes]) -> bytes:
    """How many lines were found in several shards."""
    return struct.pack("<Q", sum(struct.unpack_from("<Q", one)[0] for one in outputs))


def drives(folder: Path, count: int, *, shared: bool = False) -> list[Drive]:
    """Small drives with media in a folder."""
    return [
        Drive(f"d{at}", str(folder / f"d{at}.img"), "8M", shared=shared, options=SMALL)
        for at in range(count)
    ]

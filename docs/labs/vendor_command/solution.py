"""Lab 1, solved: Count Zero Blocks, a generator that waits for the blocks."""

from collections.abc import Generator
from typing import Any

from potash.extend import Command, Drive, io_command

OPCODE = 0xA4
"""80h and up is vendor specific, and the low two bits say that no data are transferred."""


@io_command(OPCODE, name="Count Zero Blocks", data="none")
def count_zero_blocks(drive: Drive, command: Command) -> Generator[Any, Any, int]:
    """Dword 0 of the completion is how many blocks of a range contain zeroes only. The fields are
    those of Read."""
    data = yield drive.read(command.nsid, command.lba, command.blocks)
    size = drive.namespaces[command.nsid].block_size
    zeroes = bytes(size)
    return sum(data[at : at + size] == zeroes for at in range(0, len(data), size))

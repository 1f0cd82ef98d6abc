"""Lab 1: Count Zero Blocks, a vendor specific I/O command. This one finds none."""

from potash.extend import Command, Drive, io_command

OPCODE = 0xA4
"""80h and up is vendor specific, and the low two bits say that no data are transferred."""


@io_command(OPCODE, name="Count Zero Blocks", data="none")
def count_zero_blocks(drive: Drive, command: Command) -> int:
    """Dword 0 of the completion is how many blocks of a range contain zeroes only. The fields are
    those of Read."""
    return 0

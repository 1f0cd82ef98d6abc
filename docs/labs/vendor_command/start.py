"""Lab 1: Count Zero Blocks, a vendor specific I/O command. This one finds none."""

from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NamespaceUse, Row

OPCODE = 0xA4
"""80h and up is vendor specific, and the low two bits say that no data are transferred."""


def count_zero_blocks(controller: Controller, command: Command) -> Result:
    """Dword 0 of the completion is how many blocks of a range contain zeroes only. The fields are
    those of Read."""
    return 0


ROW = Row(OPCODE, count_zero_blocks, NamespaceUse.ONE)

"""Lab 1, solved: Count Zero Blocks, which reads on the media executor."""

from potash_device.media.errors import MediaError
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.command_sets.nvm.blocks import (
    in_the_way,
    read_error,
    require_correctable,
    target,
)
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import NamespaceUse, Row

OPCODE = 0xA4
"""80h and up is vendor specific, and the low two bits say that no data are transferred."""


def count_zero_blocks(controller: Controller, command: Command) -> Steps:
    """Dword 0 of the completion is how many blocks of a range contain zeroes only. The fields are
    those of Read."""
    blocks = target(controller, command)  # raises LBA Out of Range
    while before := in_the_way(blocks.in_flight, blocks.ranges, writes=False):
        yield before  # writes of the same blocks
    namespace, media = blocks.namespace, blocks.namespace.media
    require_correctable(namespace, blocks.slba, blocks.blocks)
    size = blocks.length // blocks.blocks

    def read() -> int:
        data = bytearray(blocks.length)
        media.read_into([memoryview(data)], blocks.offset)
        zeroes = bytes(size)
        return sum(data[at : at + size] == zeroes for at in range(0, len(data), size))

    work = controller.media_work.on_blocks(blocks.in_flight, blocks.ranges, read, writes=False)
    try:
        zeroes: int = yield work
    except MediaError as error:
        raise read_error(controller, namespace, error) from None
    return zeroes


ROW = Row(OPCODE, count_zero_blocks, NamespaceUse.ONE)

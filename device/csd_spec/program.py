"""What a program on an accelerator is given: its context and the numbers of its helpers.

Its entry is `int prog(char *in, char *out)` (Alkali CSD platform documentation, section 3.4); r3 to
r5, an extension, hold the two buffers' lengths and the address of the context."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from csd_spec.descriptors import Buffer, DescriptorError, decode_arguments

CONTEXT_VERSION = 1
CONTEXT_HEADER = struct.Struct("<IIQ")
CONTEXT_HEADER_SIZE = CONTEXT_HEADER.size


class Helper(IntEnum):
    """Functions that a program calls by number; from the fourth on they are extensions."""

    PRINT = 1
    TFLITE_APU = 2
    TFLITE_VTA = 3
    SET_OUTPUT_LENGTH = 4
    LOG = 5
    ARG = 6
    CRC32C = 7
    READ_LBA = 8
    WRITE_LBA = 9
    TFLITE_OPEN = 10
    TFLITE_RUN = 11
    TFLITE_CLOSE = 12


class Level(IntEnum):
    """What `log` is told of a text: whether it is news or something wrong."""

    INFO = 0
    ERROR = 1


class Processor(IntEnum):
    """What `tflite_open` is told to run a model on: the APU's cores, or with the VTA's help."""

    APU = 0
    VTA = 1


NO_ARGUMENT = (1 << 64) - 1
"""What `arg` returns where there is no such argument: -1 in C."""


class Context(NamedTuple):
    """The context: 0:3 version, 4:7 number of arguments, 8:15 length of the list, 16:N the list.

    The list is the argument list of Start as it was sent, its padding included.
    """

    argument_list: bytes = b""
    version: int = CONTEXT_VERSION

    @property
    def arguments(self) -> tuple[bytes, ...]:
        """The values of the arguments. Raises DescriptorError when the list is malformed."""
        return decode_arguments(self.argument_list)

    def encode(self) -> bytes:
        """The bytes that r5 points at. Raises DescriptorError when the list is malformed."""
        count, length = len(self.arguments), len(self.argument_list)
        return CONTEXT_HEADER.pack(self.version, count, length) + self.argument_list

    @classmethod
    def decode(cls, buffer: Buffer) -> Context:
        """Raises DescriptorError when the list is not there, or not what the header says."""
        if len(buffer) < CONTEXT_HEADER_SIZE:
            raise DescriptorError(f"{len(buffer)} bytes are too few for a program's context")
        version, count, length = CONTEXT_HEADER.unpack_from(buffer)
        if length > len(buffer) - CONTEXT_HEADER_SIZE:
            raise DescriptorError(f"the context ends before its {length} bytes of arguments do")
        argument_list = bytes(buffer[CONTEXT_HEADER_SIZE : CONTEXT_HEADER_SIZE + length])
        context = cls(argument_list, version)
        if len(context.arguments) != count:
            raise DescriptorError(
                f"the context says {count} arguments, but its list has {len(context.arguments)}"
            )
        return context

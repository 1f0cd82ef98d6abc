"""The interface of programs: their context, and the numbers of helpers.

Its entry is `int prog(char *in, char *out)` (Alkali CSD platform documentation, section 3.4); r3 to
r5, an extension, hold the two buffers' lengths and the address of the context."""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, NamedTuple, Self

from csd_spec.descriptors import Buffer, Descriptor, DescriptorError, decode_arguments
from potash_wire.records import U64, Number, Stored

CONTEXT_VERSION = 2
CONTEXT_HEADER = struct.Struct("<IIQ")
CONTEXT_HEADER_SIZE = CONTEXT_HEADER.size
_CONTEXT_ALIGNMENT = 8


class _Execution(Descriptor):
    parameters: Annotated[tuple[int, int], Stored("Q", 2)]
    ranges: Annotated[tuple[tuple[U64, U64], ...], Number("Q")]


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
    KV_RETRIEVE = 13
    KV_LIST = 14


class Level(IntEnum):
    """Level of a text for `log`: information or error."""

    INFO = 0
    ERROR = 1


class Processor(IntEnum):
    """Processor of a model for `tflite_open`: the APU's cores, or the VTA where possible."""

    APU = 0
    VTA = 1


NO_ARGUMENT = (1 << 64) - 1
"""The value that `arg` returns for an argument that does not exist: -1 in C."""


class Context(NamedTuple):
    """The context: 0:3 version, 4:7 number of arguments, 8:15 length of the list, 16:N the list.

    From version 2 on follow, at the next multiple of 8, two parameters and the number of ranges,
    and for each range its address and its length, 8 bytes each. The list is the argument list of
    Start as it was sent, its padding included.
    """

    argument_list: bytes = b""
    version: int = CONTEXT_VERSION
    parameters: tuple[int, int] = (0, 0)
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def arguments(self) -> tuple[bytes, ...]:
        """The values of the arguments. Raises DescriptorError when the list is malformed."""
        return decode_arguments(self.argument_list)

    def encode(self) -> bytes:
        """The bytes to which r5 points. Raises DescriptorError when the list is malformed."""
        return encode_context(len(self.arguments), *self)

    @classmethod
    def decode(cls, buffer: Buffer) -> Self:
        """Raises DescriptorError if the list is missing, or disagrees with the header."""
        if len(buffer) < CONTEXT_HEADER_SIZE:
            raise DescriptorError(f"{len(buffer)} bytes are too few for a program's context")
        version, count, length = CONTEXT_HEADER.unpack_from(buffer)
        if length > len(buffer) - CONTEXT_HEADER_SIZE:
            raise DescriptorError(f"the context ends before its {length} bytes of arguments do")
        argument_list = bytes(buffer[CONTEXT_HEADER_SIZE : CONTEXT_HEADER_SIZE + length])
        at = CONTEXT_HEADER_SIZE + length + -length % _CONTEXT_ALIGNMENT
        context = cls(argument_list, version, *_Execution.decode_head(buffer[at:]))
        if len(context.arguments) != count:
            raise DescriptorError(
                f"the context says {count} arguments, but its list has {len(context.arguments)}"
            )
        return context


def encode_context(
    count: int,
    argument_list: bytes,
    version: int,
    parameters: tuple[int, int],
    ranges: Iterable[tuple[int, int]],
) -> bytes:
    """A `Context` whose list is stated to have `count` arguments, which is not checked."""
    head = CONTEXT_HEADER.pack(version, count, len(argument_list)) + argument_list
    padding = bytes(-len(head) % _CONTEXT_ALIGNMENT)
    return head + padding + _Execution.RECORD.encode(_Execution(parameters, tuple(ranges)))

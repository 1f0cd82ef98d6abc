"""Compiled partitions, kept on disk: their instructions, and what these find in memory.

Loads and stores name addresses. Where each buffer was is kept too, so that they can be relocated to
where it is when the partition is loaded. The name of what is kept is a digest of all that it
depends on: the nodes with their constants, the core, the rounding, and the sources of whatever has
a part in compiling.
"""

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import potash_device.vta
import potash_firmware.tflite
import potash_firmware.vta_runtime
from potash_device.cache import Store, digest_of_sources, package
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Opcode
from potash_firmware.tflite.capi import Array, Node
from potash_firmware.tflite.lowering import Settings
from potash_firmware.tflite.operators import added
from potash_firmware.vta_runtime.splitting import values_of

LEAST = 1 << 10
"""Bytes of instructions for which it is worth a file."""

MOST = 1 << 62
"""More than any address or size; sums of two have 64 bits."""

_HEAD = struct.Struct("<Q")


class Span(NamedTuple):
    """Where a buffer is, and its bytes."""

    physical: int
    size: int


class Piece(NamedTuple):
    """A buffer and what it has to hold."""

    physical: int
    contents: bytes


Streams: TypeAlias = tuple[tuple[bytes, tuple[int, ...]], ...]
"""Instructions, with how many of them each job has."""


class Compiled(NamedTuple):
    """The streams, and the buffers that they were made for: those of tensors, whose contents are
    not part of this, and those that hold something."""

    streams: Streams
    tensors: tuple[Span, ...]
    pieces: tuple[Piece, ...]

    def fits(self, jobs: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether these are instructions for streams of so many jobs, and for tensors of these
        sizes."""
        its = [len(counts) for _, counts in self.streams], [span.size for span in self.tensors]
        return its == (list(jobs), list(sizes))

    def relocated(self, physical: Sequence[int], config: Config) -> Streams | None:
        """The streams for buffers at these addresses, the tensors' first; None where an instruction
        accesses anything else."""
        spans = [*self.tensors, *(Span(one.physical, len(one.contents)) for one in self.pieces)]
        moves = sorted(zip(spans, physical, strict=True))
        table = np.array([(*span, to - span.physical) for span, to in moves], np.int64)
        streams = []
        for code, counts in self.streams:
            found = _relocated(code, table.reshape(-1, 3), config)
            if found is None:
                return None
            streams.append((found, counts))
        return tuple(streams)


def _relocated(code: bytes, table: Array, config: Config) -> bytes | None:
    """A stream after its buffers have moved: `table` has the begin, the size and the distance of
    each, by their begin."""
    fields = config.layouts.memory.by_name
    words = np.frombuffer(code, "<u8").reshape(-1, 2).copy()

    def field(name: str) -> Array:
        return values_of(words, fields[name])

    elements = np.zeros(fields["memory_type"].mask + 1, np.int64)
    for memory in MemoryId:
        elements[memory] = config.element_bytes(memory)
    accesses = np.isin(field("opcode"), (Opcode.LOAD, Opcode.STORE))
    # One of no size is for its dependencies alone, and has no address.
    accesses &= (field("x_size") > 0) & (field("y_size") > 0)
    size = elements[field("memory_type")[accesses]]
    address = field("dram_base")[accesses] * size
    begins, sizes, distances = table.T
    at = np.searchsorted(begins, address, "right") - 1
    if (at < 0).any() or (address - begins[at] >= sizes[at]).any() or not size.all():
        return None
    moved, rest = np.divmod(address + distances[at], size)
    if rest.any() or (moved < 0).any() or (moved > fields["dram_base"].mask).any():
        return None
    low = np.uint64(fields["dram_base"].low)
    others = ~np.uint64(fields["dram_base"].mask << fields["dram_base"].low)
    words[accesses, 0] = words[accesses, 0] & others | moved.astype(np.uint64) << low
    return words.tobytes()


_lent: dict[str, bytes] = {}
_collected: dict[str, bytes] | None = None


def name_of_model(model: bytes, config: Config) -> str:
    """The name of all partitions of a model."""
    return MODELS.name(b"model", repr(asdict(config)).encode(), model)


def collected(load: Callable[[], object]) -> bytes:
    """The partitions that `load` compiles, instead of keeping them, for `lend`."""
    global _collected
    _collected = {}
    try:
        load()
        parts = _collected
    finally:
        _collected = None
    return _joined([(name, len(contents)) for name, contents in parts.items()], *parts.values())


def lend(contents: bytes) -> None:
    """Have `recall` find what was `collected`, and nothing else that was lent."""
    _lent.clear()
    try:
        head, parts = _separated(contents)
        for name, size in head:
            _lent[name] = parts(size)
    except _MALFORMED:
        _lent.clear()


def recall(name: str) -> Compiled | None:
    """What was kept under that name; None where it is not as `keep` writes it."""
    contents = _lent.get(name) or MODELS.load(name)
    if contents is None:
        return None
    try:
        return _decoded(contents)
    except _MALFORMED:
        return None


def _decoded(contents: bytes) -> Compiled:
    """Raises one of `_MALFORMED`."""
    head, parts = _separated(contents)
    streams = tuple(
        (parts(size), _numbers(counts, len(counts))) for size, counts in head["streams"]
    )
    tensors = tuple(Span(*_numbers(span, 2)) for span in head["tensors"])
    spans = [Span(*_numbers(span, 2)) for span in head["pieces"]]
    pieces = tuple(Piece(physical, parts(size)) for physical, size in spans)
    if parts.left or not all(size for _, size in spans):
        raise ValueError("there is more than was kept, or less")
    for code, counts in streams:
        # The last instruction ends the stream, and is no job's.
        if len(code) % INSTRUCTION_BYTES or sum(counts) >= len(code) // INSTRUCTION_BYTES:
            raise ValueError("a stream has not the instructions that it should have")
    return Compiled(streams, tensors, pieces)


def _numbers(values: object, count: int) -> tuple[int, ...]:
    """So many numbers from 0 on. Raises TypeError, ValueError."""
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"there are no {count} numbers")
    if not all(type(value) is int and 0 <= value <= MOST for value in values):
        raise TypeError(f"these are no numbers from 0 to {MOST}")
    return tuple(values)


def keep(name: str, compiled: Compiled) -> None:
    """Keep it under that name, if it is worth it and there is a place."""
    if sum(len(code) for code, _ in compiled.streams) < LEAST:
        return
    head = {
        "streams": [(len(code), counts) for code, counts in compiled.streams],
        "tensors": compiled.tensors,
        "pieces": [(piece.physical, len(piece.contents)) for piece in compiled.pieces],
    }
    codes = (code for code, _ in compiled.streams)
    contents = _joined(head, *codes, *(piece.contents for piece in compiled.pieces))
    if _collected is not None:
        _collected[name] = contents
    else:
        MODELS.keep(name, contents)


def name_of(
    nodes: Sequence[Node], inputs: Sequence[int], outputs: Sequence[int], settings: Settings
) -> str:
    """The name of a partition."""
    parts = [repr((asdict(settings.config), *settings[1:], inputs, outputs)).encode()]
    for node in nodes:
        parts.append(repr((node.operator, node.version, node.options)).encode())
        for tensor in (*node.inputs, *node.outputs):
            described = tensor and replace(tensor, name="", constant=None)
            constant = tensor.constant if tensor else None
            parts += repr(described).encode(), b"" if constant is None else constant.tobytes()
    return MODELS.name(*parts)


def added_sources() -> Iterator[str]:
    """Operators of other packages, and a digest of the sources of each."""
    for point in metadata.entry_points(group=added.GROUP):
        yield point.name
        for path in added.sources(point):
            yield digest_of_sources(path).hex()


MODELS = Store(
    "models",
    map(package, (potash_device.vta, potash_firmware.tflite, potash_firmware.vta_runtime)),
    added_sources,
    limit=64,
)
"""Partitions, and the partitions of a whole model."""


_MALFORMED = (struct.error, LookupError, TypeError, ValueError, RecursionError)


def _joined(head: object, *parts: bytes) -> bytes:
    """A head as JSON, behind its length, and the parts that it describes."""
    text = json.dumps(head).encode()
    return b"".join((_HEAD.pack(len(text)), text, *parts))


def _separated(contents: bytes) -> tuple[Any, "_Parts"]:
    """The head and the parts. Raises one of `_MALFORMED`."""
    (length,) = _HEAD.unpack_from(contents)
    end = _HEAD.size + length
    return json.loads(contents[_HEAD.size : end]), _Parts(memoryview(contents)[end:])


@dataclass
class _Parts:
    """Takes one part after the other from the front of `left`."""

    left: memoryview

    def __call__(self, size: int) -> bytes:
        """Raises ValueError where there are not so many bytes."""
        if not 0 <= size <= len(self.left):
            raise ValueError("a part is longer than what is there")
        part, self.left = self.left[:size], self.left[size:]
        return bytes(part)

"""The cache of loaded models on disk: decisions, layouts and compiled partitions.

A `Record` has, for each graph, which nodes the accelerator runs and why not the others; for each
partition, the layouts that its nodes chose, its instructions, and what these find in memory. Loads
and stores name addresses. Where each buffer was is kept too, so that they can be relocated to where
it is when the partition is loaded. The name of a record is a digest of all that it depends on: the
model, the core, the rounding, and the sources of whatever has a part in compiling. Its model has
been validated, too.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import potash_device.vta
import potash_firmware.tflite
import potash_firmware.vta_runtime
from potash_device.cache import Store, digest_of_sources, package
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Opcode
from potash_firmware import extensions
from potash_firmware.tflite import runtime_package
from potash_firmware.tflite.capi import Array, Node
from potash_firmware.tflite.lowering import Settings
from potash_firmware.tflite.operators import added
from potash_firmware.tflite.packing import Layout, Margin, Sizes, fit
from potash_firmware.tflite.streams import values_of

LEAST = 1 << 10
"""Bytes of instructions for which it is worth a file."""

ROOM = 1 << 30
"""Bytes that all records may take."""

MOST = 1 << 62
"""More than any address or size; sums of two have 64 bits."""


class Span(NamedTuple):
    """A buffer's address, and its size in bytes."""

    physical: int
    size: int


class Piece(NamedTuple):
    """A buffer and what it has to hold."""

    physical: int
    contents: bytes | memoryview


Streams: TypeAlias = tuple[tuple[bytes, tuple[int, ...]], ...]
"""Instructions, with how many of them each job has."""


class Layouts(NamedTuple):
    """Layouts that a node chose for its inputs and outputs."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]
    multiplies: bool
    """True if the node reads its inputs as elements of INP."""

    def fit(self, node: Node) -> bool:
        """True if the layouts have the sizes of the node's tensors."""
        return fit(self.inputs, node.inputs) and fit(self.outputs, node.outputs)


class Compiled(NamedTuple):
    """The streams, and the buffers that they were made for: those of tensors, whose contents are
    not part of this, and those that hold something. `layouts` has those of each node that appends
    instructions, None for the others."""

    streams: Streams
    tensors: tuple[Span, ...]
    pieces: tuple[Piece, ...]
    layouts: tuple[Layouts | None, ...]

    def suits(self, nodes: Sequence[Node]) -> bool:
        """True if these are layouts of the nodes' tensors."""
        return len(self.layouts) == len(nodes) and all(
            its is None or its.fit(node) for its, node in zip(self.layouts, nodes, strict=True)
        )

    def fits(self, jobs: Sequence[int], sizes: Sequence[int]) -> bool:
        """True if the instructions are for streams of so many jobs, and for tensors of these
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


class Record:
    """Cached results about a model; `store` saves what was added."""

    def __init__(self, name: str | None = None) -> None:
        """Load the record of that name; without a name, nothing is loaded or saved."""
        self.name = name
        kept = None if name is None else _recall(name)
        self.known = kept is not None
        """True if the model has been loaded before."""
        self._parts: dict[str, bytes | memoryview] = {} if kept is None else kept
        self._new_code = 0

    def reasons(self, graph: str) -> Mapping[int, str | None]:
        """The reasons why nodes of a graph do not run on the accelerator, None for those that do;
        nodes without an entry have not been decided about."""
        try:
            pairs = dict(json.loads(bytes(self._parts[graph])))
            if all(type(key) is int and isinstance(why, str | None) for key, why in pairs.items()):
                return pairs
        except _MALFORMED:
            pass
        return {}

    def decide(self, graph: str, reasons: Mapping[int, str | None]) -> None:
        """Add what `reasons` is to give."""
        self._parts[graph] = json.dumps(list(reasons.items())).encode()

    def compiled(self, name: str) -> Compiled | None:
        """A partition; None where there is none as `add` makes it."""
        try:
            return _decoded(self._parts[name])
        except _MALFORMED:
            return None

    def add(self, name: str, compiled: Compiled) -> None:
        """Add a partition."""
        head = {
            "streams": [(len(code), counts) for code, counts in compiled.streams],
            "tensors": compiled.tensors,
            "pieces": [(piece.physical, len(piece.contents)) for piece in compiled.pieces],
            "layouts": [
                one
                and [
                    *(
                        [its and (its.sizes, its.margin, its.spread) for its in side]
                        for side in one[:2]
                    ),
                    one.multiplies,
                ]
                for one in compiled.layouts
            ],
        }
        codes = [code for code, _ in compiled.streams]
        pieces = (piece.contents for piece in compiled.pieces)
        self._parts[name] = _joined(head, *codes, *pieces)
        self._new_code += sum(map(len, codes))

    def store(self) -> None:
        """Keep it, if there is something new that is worth it."""
        # Who collects it wants it also where another process has kept it meanwhile.
        wanted = self.known and _collected is not None
        if self.name is None or not (wanted or self._new_code >= LEAST):
            return
        self._new_code = 0
        sizes = [(name, len(part)) for name, part in self._parts.items()]
        contents = _joined(sizes, *self._parts.values())
        if _collected is not None:
            _collected.append(contents)
        else:
            MODELS.keep(self.name, contents)


_lent: dict[str, bytes] = {}
_collected: list[bytes] | None = None


def name_of_model(model: bytes, settings: Settings) -> str:
    """The name of a model's record."""
    return MODELS.name(repr((asdict(settings.config), *settings[1:])).encode(), model)


def name_of_graph(nodes: Sequence[Node], left: Sequence[int]) -> str:
    """The name in a record of a graph, of which some nodes are `left` to the processor."""
    tensors = [
        [(one.index, one.type, one.shape, one.allocation) for one in tensors if one is not None]
        for node in nodes
        for tensors in (node.inputs, node.outputs)
    ]
    return _digest([(node.index, node.operator, node.version) for node in nodes], tensors, left)


def name_of_partition(
    graph: str, nodes: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]
) -> str:
    """The name in a record of a partition: its graph's, nodes, and tensors at its border."""
    return _digest(graph, nodes, inputs, outputs)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def collected(load: Callable[[], object]) -> bytes:
    """The record that `load` makes, instead of keeping it, for `lend`; nothing where it makes
    none."""
    global _collected
    _collected = []
    try:
        load()
        return b"".join(_collected[-1:])
    finally:
        _collected = None


def lend(name: str, contents: bytes) -> None:
    """Have what was `collected` known under that name, and nothing else that was lent."""
    _lent.clear()
    _lent[name] = contents


def _recall(name: str) -> dict[str, bytes | memoryview] | None:
    """The contents that `Record.store` saved under that name."""
    contents = _lent.pop(name, None) or MODELS.load(name)
    if contents is None:
        return None
    try:
        sizes, parts = _separated(contents)
        found: dict[str, bytes | memoryview] = {part: parts(size) for part, size in sizes}
    except _MALFORMED:
        return None
    return None if parts.left else found


def _decoded(contents: bytes | memoryview) -> Compiled:
    """Raises one of `_MALFORMED`."""
    head, parts = _separated(contents)
    streams = tuple(
        (bytes(parts(size)), _numbers(counts, len(counts))) for size, counts in head["streams"]
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
    layouts = tuple(None if one is None else _layouts(*one) for one in head["layouts"])
    return Compiled(streams, tensors, pieces, layouts)


def _layouts(inputs: Sequence[Any], outputs: Sequence[Any], multiplies: object) -> Layouts:
    if not isinstance(multiplies, bool):
        raise TypeError("this is neither true nor false")
    read = [None if one is None else _layout(*one) for one in inputs]
    return Layouts(tuple(read), tuple(_layout(*one) for one in outputs), multiplies)


def _layout(sizes: object, margin: object, spread: Any) -> Layout:
    return Layout(
        Sizes(*_numbers(sizes, 4)),
        Margin(*_numbers(margin, 4)),
        None if spread is None else _numbers(spread, len(spread)),
    )


def _numbers(values: object, count: int) -> tuple[int, ...]:
    """`count` numbers from 0 on. Raises TypeError, ValueError."""
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"there are no {count} numbers")
    if not all(type(value) is int and 0 <= value <= MOST for value in values):
        raise TypeError(f"these are no numbers from 0 to {MOST}")
    return tuple(values)


def _versions() -> Iterator[str]:
    name = runtime_package()
    yield f"{name} {metadata.version(name)}"
    yield from added_sources()


def added_sources() -> Iterator[str]:
    """Operators of extensions and of other packages, and a digest of the sources of each."""
    for name, one in extensions.programs.operators.items():
        yield name
        yield digest_of_sources(Path(one.place[0])).hex()
    for point in metadata.entry_points(group=added.GROUP):
        yield point.name
        for path in added.sources(point):
            yield digest_of_sources(path).hex()


MODELS = Store(
    "models",
    map(package, (potash_device.vta, potash_firmware.tflite, potash_firmware.vta_runtime)),
    _versions,
    limit=1024,
    room=ROOM,
)
"""Records of models."""


_MALFORMED = (LookupError, TypeError, ValueError, RecursionError)


def _joined(head: object, *parts: bytes | memoryview) -> bytes:
    """A head as JSON, behind its length, and the parts that it describes."""
    text = json.dumps(head).encode()
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))


def _separated(contents: bytes | memoryview) -> tuple[Any, "_Parts"]:
    """The head and the parts. Raises one of `_MALFORMED`."""
    end = 8 + int.from_bytes(contents[:8], "little")
    return json.loads(bytes(contents[8:end])), _Parts(memoryview(contents)[end:])


@dataclass
class _Parts:
    """Takes one part after the other from the front of `left`."""

    left: memoryview

    def __call__(self, size: int) -> memoryview:
        """Raises ValueError where there are not so many bytes."""
        if not 0 <= size <= len(self.left):
            raise ValueError("a part is longer than what is there")
        part, self.left = self.left[:size], self.left[size:]
        return part

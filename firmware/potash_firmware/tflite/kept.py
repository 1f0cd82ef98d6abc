"""Compiled partitions, kept on disk: their instructions, and what these find in memory.

Instructions name addresses, so what was kept is good only where the same memory is free again; that
is so whenever a model is loaded in the same order of things, as by each new worker. The name of what
is kept is a digest of all that it depends on: the nodes with their constants, the core, the
rounding, and the sources of whatever has a part in compiling.
"""

import functools
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import potash_device.vta
import potash_firmware.tflite
import potash_firmware.vta_runtime
from potash_firmware import cache
from potash_firmware.tflite.capi import Node, Tensor
from potash_firmware.tflite.plans import Settings

FOLDER = "models"
LIMIT = 64
"""Partitions that are kept."""
LEAST = 1 << 10
"""Bytes of instructions for which it is worth a file."""

_HEAD = struct.Struct("<Q")


class Piece(NamedTuple):
    """A buffer and what it has to hold."""

    physical: int
    contents: bytes


class Compiled(NamedTuple):
    """The streams, with how many instructions each node has, and the buffers."""

    streams: tuple[tuple[bytes, tuple[int, ...]], ...]
    pieces: tuple[Piece, ...]


def recall(name: str) -> Compiled | None:
    """What was kept under that name."""
    try:
        contents = cache.load(cache.folder(FOLDER), name)
    except RuntimeError:
        return None
    if contents is None:
        return None
    (length,) = _HEAD.unpack_from(contents)
    head = json.loads(contents[_HEAD.size : _HEAD.size + length])
    parts = _parts(memoryview(contents)[_HEAD.size + length :])
    streams = tuple((parts(size), tuple(counts)) for size, counts in head["streams"])
    pieces = tuple(Piece(physical, parts(size)) for physical, size in head["pieces"])
    return Compiled(streams, pieces)


def keep(name: str, compiled: Compiled) -> None:
    """Keep it under that name, if it is worth it and there is a place."""
    if sum(len(code) for code, _ in compiled.streams) < LEAST:
        return
    head = json.dumps(
        {
            "streams": [(len(code), counts) for code, counts in compiled.streams],
            "pieces": [(piece.physical, len(piece.contents)) for piece in compiled.pieces],
        }
    ).encode()
    contents = b"".join(
        (
            _HEAD.pack(len(head)),
            head,
            *(code for code, _ in compiled.streams),
            *(piece.contents for piece in compiled.pieces),
        )
    )
    try:
        cache.store(cache.folder(FOLDER), name, contents, LIMIT)
    except RuntimeError:
        return


def name_of(
    nodes: Sequence[Node], inputs: Sequence[int], outputs: Sequence[int], settings: Settings
) -> str:
    """The name of a partition."""
    digest = hashlib.sha256(_sources())
    digest.update(repr((asdict(settings.config), settings.rounding, inputs, outputs)).encode())
    for node in nodes:
        digest.update(repr((node.operator, node.version, node.options)).encode())
        for tensor in (*node.inputs, *node.outputs):
            for part in _described(tensor):
                digest.update(part)
    return digest.hexdigest()


def _described(tensor: Tensor | None) -> Iterator[bytes]:
    if tensor is None:
        yield b"none"
        return
    yield repr(
        (
            *(tensor.index, tensor.type, tensor.shape, tensor.allocation, tensor.variable),
            *(tensor.scale, tensor.zero_point, tensor.scales, tensor.zero_points, tensor.axis),
        )
    ).encode()
    if tensor.constant is not None:
        yield tensor.constant.tobytes()


@functools.cache
def _sources() -> bytes:
    """A digest of the sources that decide about instructions."""
    rooms = (potash_device.vta, potash_firmware.tflite, potash_firmware.vta_runtime)
    digest = hashlib.sha256()
    for path in sorted(_files(Path(room.__path__[0]) for room in rooms)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from folder.rglob("*.py")


class _parts:
    """Takes one part after the other from the front of some bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __call__(self, size: int) -> bytes:
        part, self._data = self._data[:size], self._data[size:]
        return bytes(part)

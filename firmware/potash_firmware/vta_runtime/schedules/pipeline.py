"""The tokens that every schedule has: tiles that alternate between parts of ACC.

Tile *t* uses the part of virtual thread *t* modulo their number. COMPUTE writes to a part again
when the tile before it there has been stored, and STORE begins when COMPUTE is done with the tile.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", sections 2.3 and 3.3 (virtual
threading).
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from potash_device.vta.config import MemoryId
from potash_device.vta.isa import Stage
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import layouts, steps, transfers
from potash_firmware.vta_runtime.schedules.steps import Epilogue
from potash_firmware.vta_runtime.schedules.surfaces import Extent, Surface
from potash_firmware.vta_runtime.schedules.transfers import Axis

LOAD, COMPUTE, STORE = Stage

Tile = TypeVar("Tile")


def tiles_in_acc(
    runtime: Runtime, tiles: Iterable[Tile], threads: int, part: int, *, loads: bool = False
) -> Iterator[tuple[Tile, int]]:
    """Each tile, and the first element of its part of ACC, of `part` elements. Whoever iterates
    appends the tile's instructions, and `store` at the end of them.

    With `loads`, LOAD has parts of INP and WGT for each thread too, and begins with a token for
    each. What follows in the stream may load what was stored.
    """
    queues = [(COMPUTE, LOAD), (STORE, COMPUTE)] if loads else [(STORE, COMPUTE)]
    for _ in range(threads):
        for queue in queues:
            runtime.dep_push(*queue)
    for number, tile in enumerate(tiles):
        runtime.dep_pop(STORE, COMPUTE)
        yield tile, number % threads * part
        runtime.dep_push(STORE, COMPUTE)
    for _ in range(threads):
        for queue in queues:
            runtime.dep_pop(*queue)
    runtime.dep_push(COMPUTE, LOAD)
    runtime.dep_pop(COMPUTE, LOAD)


def store(runtime: Runtime, surface: Surface, acc: int, first: int, axes: Sequence[Axis]) -> None:
    """Store a tile at element `first` of the surface's buffer when COMPUTE is done with it."""
    runtime.dep_push(COMPUTE, STORE)
    runtime.dep_pop(COMPUTE, STORE)
    transfers.store(runtime, surface.buffer, acc, first, axes)


class Finish:
    """An epilogue at the end of each tile: its vectors, which are loaded where a part of ACC does
    not hold them yet, and its steps. The vectors follow the tile's `planes`."""

    def __init__(
        self,
        runtime: Runtime,
        epilogue: Epilogue,
        channels: Sequence[Buffer | Surface],
        micro_ops: int,
    ) -> None:
        self._runtime = runtime
        self._channels = channels
        self._planes = epilogue.planes
        self._grouped = any(isinstance(one, Surface) and one.groups > 1 for one in channels)
        self._held: dict[int, tuple[int, ...]] = {}
        # The same few kernels again and again.
        self._kernels = functools.cache(functools.partial(steps.kernels, epilogue.steps))
        self._micro_ops = micro_ops

    def append(self, acc: int, at: Extent, size: Extent) -> None:
        """Append the epilogue of a tile of that size, which begins at `at` in the output."""
        runtime, blocks = self._runtime, size.blocks
        vectors = acc + self._planes * size.elements
        group = at.groups if self._grouped else 0
        wanted = (vectors, group, at.blocks, blocks)
        if self._held.get(acc) != wanted:
            self._held[acc] = wanted
            for number, vector in enumerate(self._channels):
                place = vectors + number * blocks
                if isinstance(vector, Surface):
                    first = vector.place(group if vector.groups > 1 else 0, at.blocks, 0, 0)
                    axes, memory = vector.axes(blocks, 1, 1), layouts.alu_memory(runtime.config)
                    transfers.load(runtime, vector.buffer, memory, place, first, axes)
                else:
                    runtime.load_2d(
                        vector, MemoryId.ACC, sram=place, offset=at.blocks, x_size=blocks
                    )
        pixels = size.height * size.width
        runtime.push_all(self._kernels(acc, vectors, blocks, pixels, self._micro_ops))

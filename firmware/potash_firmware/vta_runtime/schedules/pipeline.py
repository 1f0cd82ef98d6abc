"""The tokens that every schedule has: tiles that take turns in the parts of ACC.

Tile *t* uses the part of virtual thread *t* modulo their number. COMPUTE writes to a part again when
the tile before it there has been stored, and STORE begins when COMPUTE is done with the tile.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", sections 2.3 and 3.3 (virtual threading).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from potash_device.vta.isa import Stage
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import transfers
from potash_firmware.vta_runtime.schedules.surfaces import Surface
from potash_firmware.vta_runtime.schedules.transfers import Axis

LOAD, COMPUTE, STORE = Stage

Tile = TypeVar("Tile")


def tiles_in_acc(
    runtime: Runtime, tiles: Iterable[Tile], threads: int, part: int, *, loads: bool = False
) -> Iterator[tuple[Tile, int]]:
    """Each tile, and the first element of its part of ACC, of `part` elements. Whoever iterates
    appends the tile's instructions, and `store` at the end of them.

    With `loads`, LOAD has parts of INP and WGT for each thread too, and begins with a token for each.
    What follows in the stream may load what was stored.
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

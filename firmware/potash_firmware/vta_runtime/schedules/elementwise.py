"""Elementwise operations: tensors loaded into ACC, ALU steps, a store.

LOAD has no part in it, as COMPUTE itself loads ACC: two virtual threads hide the stores only.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potash_device.vta.config import Config, MemoryId
from potash_firmware.vta_runtime.buffers import Buffer
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import transfers
from potash_firmware.vta_runtime.schedules.pipeline import Finish, store, tiles_in_acc
from potash_firmware.vta_runtime.schedules.shapes import ScheduleError, blocks
from potash_firmware.vta_runtime.schedules.steps import Epilogue, Step
from potash_firmware.vta_runtime.schedules.surfaces import Extent, Surface
from potash_firmware.vta_runtime.schedules.tiles import THREADS, Share


@dataclass(frozen=True)
class Elementwise:
    """Some tensors of one extent, whose memory types (ACC, ACC_8BIT) are the epilogue's `tensors`:
    the first goes to plane 0, the next to plane 1, and so on. `piece` of each is a tile.

    Raises ScheduleError where a tile does not fit, or where there is no tensor.
    """

    extent: Extent
    config: Config
    epilogue: Epilogue
    piece: Extent
    threads: int = 2

    def __post_init__(self) -> None:
        if min(self.extent) < 1 or not self.epilogue.tensors:
            raise ScheduleError("an elementwise operation needs a tensor, and values in it")
        if min(self.piece) < 1 or not _fits(self.piece, self._share, self.epilogue):
            raise ScheduleError(f"{self.piece} does not fit into the accumulators")

    @functools.cached_property
    def _share(self) -> Share:
        return Share.of(self.config, self.threads, self.epilogue)

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.extent.elements * self.config.element_bytes(MemoryId.OUT)

    def emit(
        self,
        runtime: Runtime,
        tensors: Sequence[Buffer | Surface],
        output: Buffer | Surface,
        *,
        channels: Sequence[Buffer | Surface] = (),
    ) -> None:
        """Append the operation to the runtime's stream; what follows in it may use the output.

        A buffer is taken for a dense surface; `channels` are the epilogue's vectors, an element of
        ACC for each block, or a surface of single pixels of ACC_8BIT, for all groups or for each.
        Raises ValueError where a buffer is too small, missing or of other sizes, VtaMemoryError.
        """
        kinds, vectors = self.epilogue.tensors, self.epilogue.vectors
        if (len(tensors), len(channels)) != (len(kinds), vectors):
            raise ScheduleError(
                f"the operation has {len(kinds)} tensors and {vectors} vectors, "
                f"not {len(tensors)} and {len(channels)}"
            )
        stored, *loaded = (Surface.of(one, self.extent) for one in (output, *tensors))
        share = self._share
        finish = Finish(runtime, self.epilogue, channels, share.micro_ops)
        cut = tiles(self.extent, self.piece)
        for (at, size), acc in tiles_in_acc(runtime, cut, self.threads, share.acc):
            for index, (memory, tensor) in enumerate(zip(kinds, loaded, strict=True)):
                plane = acc + index * size.elements
                transfers.load(runtime, tensor.buffer, memory, plane, *tensor.piece(at, size))
            finish.append(acc, at, size)
            store(runtime, stored, acc, *stored.piece(at, size))


def elementwise(
    extent: Extent,
    config: Config,
    tensors: Sequence[MemoryId],
    steps: Sequence[Step],
    *,
    threads: int | None = None,
) -> Elementwise:
    """`steps` on the values of each of the tensors, surfaces of that extent in planes 0, 1, ….

    There are two virtual threads where there is work for both, and the largest tiles that fit.
    Raises ScheduleError as `Elementwise` does.
    """
    epilogue = Epilogue(tuple(steps), tuple(tensors))
    for number in THREADS[::-1] if threads is None else (threads,):
        share = Share.of(config, number, epilogue)
        fits = functools.partial(_fits, share=share, epilogue=epilogue)
        if fits(Extent(1, 1, 1, 1)) and (extent.elements >= number or threads):
            piece = largest_extent(extent, fits, number)
            return Elementwise(extent, config, epilogue, piece, number)
    raise ScheduleError("the accumulators have no room for the planes of the steps")


def largest_extent(extent: Extent, fits: Callable[[Extent], bool], threads: int) -> Extent:
    """The largest tile of one group that fits: whole rows where one does, then whole planes; no
    larger than each thread's share. One element has to fit."""
    most = Extent(1, 1, 1, 1)
    for axis in ("width", "height", "blocks"):
        whole = getattr(extent, axis)
        size = bisect.bisect_left(
            range(1, whole + 1), True, key=lambda size: not fits(most._replace(**{axis: size}))
        )
        most = most._replace(**{axis: blocks(whole, blocks(whole, size))})
        if size < whole:
            break
    for axis in ("blocks", "height", "width"):
        count = math.prod(map(blocks, extent, most))
        if count < threads and getattr(most, axis) > 1:
            most = most._replace(**{axis: blocks(getattr(most, axis), threads)})
    return most


def _fits(piece: Extent, share: Share, epilogue: Epilogue) -> bool:
    need = piece.elements * epilogue.planes + piece.blocks * epilogue.vectors
    return need <= share.acc and piece.groups == 1


def tiles(extent: Extent, piece: Extent) -> list[tuple[Extent, Extent]]:
    """The tiles of a surface as (first element, sizes)."""
    cuts = itertools.product(*map(cut, extent, piece))
    return [
        (Extent(*firsts), Extent(*sizes))
        for firsts, sizes in (zip(*one, strict=True) for one in cuts)
    ]


def cut(total: int, size: int) -> list[tuple[int, int]]:
    """Pieces of `size` and what is left, as (first, count)."""
    return [(first, min(size, total - first)) for first in range(0, total, size)]

"""From a shape to a plan, which is what an operator calls.

A plan is a value. Its `emit` appends the operation to a runtime's stream, as often as wanted.
"""

import functools
from collections.abc import Sequence

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import AluOpcode
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_firmware.vta_runtime.schedules import estimate, pool, search
from potash_firmware.vta_runtime.schedules.conv2d import Convolution
from potash_firmware.vta_runtime.schedules.elementwise import Elementwise, largest_piece
from potash_firmware.vta_runtime.schedules.pool import Pool2d, Pooling
from potash_firmware.vta_runtime.schedules.shapes import Conv2d, ScheduleError
from potash_firmware.vta_runtime.schedules.steps import Epilogue, Step
from potash_firmware.vta_runtime.schedules.surfaces import Extent

PLANS = 256
"""Plans that are cached in memory."""


def conv2d(
    shape: Conv2d,
    config: Config,
    steps: Sequence[Step] = (),
    *,
    parameters: Parameters = PYNQ,
    threads: int | None = None,
    flat: bool = True,
) -> Convolution:
    """A convolution, and `steps` on its accumulators before they are stored.

    The tiling is the best one on the clock of `parameters`, with `threads` virtual threads where
    that is given. Where no pixel sees its neighbours all are taken for one row, which is not so
    for surfaces with a margin: those want `flat=False`. Raises ScheduleError where no tiling fits,
    as when ACC has no room for the planes.
    """
    epilogue = Epilogue(tuple(steps))
    return _convolution(shape.flattened() if flat else shape, config, epilogue, parameters, threads)


def feasible(shape: Conv2d, config: Config, steps: Sequence[Step] = ()) -> bool:
    """Whether any tiling of a convolution with these steps fits into the core."""
    epilogue = Epilogue(tuple(steps))
    return any(
        len(estimate.candidates(shape, config, epilogue, threads).rows)
        for threads in search.THREADS
    )


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
    for number in search.THREADS[::-1] if threads is None else (threads,):
        piece = largest_piece(extent, config, epilogue, number)
        if piece is not None and (extent.elements >= number or threads):
            return Elementwise(extent, config, epilogue, piece, number)
    raise ScheduleError("the accumulators have no room for the planes of the steps")


def pool2d(
    shape: Pool2d,
    config: Config,
    opcode: AluOpcode,
    steps: Sequence[Step] = (),
    *,
    threads: int | None = None,
) -> Pooling:
    """`opcode` (MAX, MIN or ADD) on what each window sees, and `steps` on the results.

    There are two virtual threads where there is work for both, and the largest tiles that fit.
    Raises ScheduleError where none does.
    """
    epilogue = Epilogue(tuple(steps))
    for number in search.THREADS[::-1] if threads is None else (threads,):
        found = pool.largest_piece(shape, config, epilogue, number)
        if found is not None and (shape.extent.elements >= number or threads):
            return Pooling(shape, config, opcode, epilogue, *found, number)
    raise ScheduleError("the accumulators have no room for a pooling")


@functools.lru_cache(PLANS)
def _convolution(
    shape: Conv2d,
    config: Config,
    epilogue: Epilogue,
    parameters: Parameters,
    threads: int | None,
) -> Convolution:
    tile = search.best_tile(shape, config, epilogue, parameters, threads)
    return Convolution(shape, config, tile, epilogue)

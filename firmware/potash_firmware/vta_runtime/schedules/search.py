"""The search for the best tiling: an estimate of all, and the timing model for the best of them.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", section 3 (schedule exploration).
"""

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

import potash_device.vta
import potash_firmware.vta_runtime
from potash_device.cache import Store, package
from potash_device.vta import timing
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.timing.parameters import PYNQ, Parameters
from potash_firmware.vta_runtime.buffers import UnbackedHeap
from potash_firmware.vta_runtime.runtime import Runtime
from potash_firmware.vta_runtime.schedules import estimate
from potash_firmware.vta_runtime.schedules.conv2d import Convolution
from potash_firmware.vta_runtime.schedules.shapes import Conv2d, ScheduleError
from potash_firmware.vta_runtime.schedules.steps import Epilogue, Step
from potash_firmware.vta_runtime.schedules.tiles import THREADS, Outer, Tile, fits

PLANS = 256
"""Plans that are cached in memory."""

LIKELIEST = 6
"""Tilings for each number of virtual threads that may be timed."""

TIMED = 32
"""Pieces of the output that are timed at most. The others are taken to be as fast: a stream repeats
itself, and most of a cold start would be the time to generate streams that nobody runs."""

MOST_TIMED = 1 << 12
"""Steps of a stream that is timed; that of a longer one would take seconds to make."""

TILINGS = Store(
    "schedules", map(package, (potash_device.vta, potash_firmware.vta_runtime)), limit=4096
)
"""Tilings that were found, by what was asked."""

Cost = Callable[[Config, Parameters, bytes], float]
"""The cost of a stream."""


def clocked(config: Config, parameters: Parameters, stream: bytes) -> float:
    return timing.run(config, parameters, stream).cycles


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


@functools.lru_cache(PLANS)
def _convolution(
    shape: Conv2d, config: Config, epilogue: Epilogue, parameters: Parameters, threads: int | None
) -> Convolution:
    tile = best_tile(shape, config, epilogue, parameters, threads)
    return Convolution(shape, config, tile, epilogue)


def fewest_steps(shape: Conv2d, config: Config, steps: Sequence[Step] = ()) -> int | None:
    """Minimum number of steps of a convolution's stream, with `steps` on its accumulators; None if
    no tiling fits into the core."""
    epilogue = Epilogue(tuple(steps))
    counts = [
        estimate.steps(shape, config, estimate.candidates(shape, config, epilogue, threads))
        for threads in THREADS
    ]
    return min(np.concatenate(counts).tolist(), default=None)


def best_tile(
    shape: Conv2d,
    config: Config,
    epilogue: Epilogue,
    parameters: Parameters,
    threads: int | None = None,
    cost: Cost = clocked,
) -> Tile:
    """The tiling that costs least of the likeliest ones, with `threads` virtual threads where that
    is given. With `clocked` it is the fastest one as far as it is timed, and kept on disk.

    Raises ScheduleError where none fits.
    """
    question = repr((shape, config, epilogue, parameters, threads))
    if cost is clocked:
        kept = _recalled(question)
        if kept is not None and _plausible(shape, kept) and fits(shape, kept, epilogue, config):
            return kept
    found = likeliest(shape, config, epilogue, parameters, threads)
    if not found:
        raise ScheduleError("the core's buffers are too small for the convolution's epilogue")
    plans = {
        Convolution(shape, config, tile, epilogue): estimated for tile, estimated in found.items()
    }
    short = {plan: estimated for plan, estimated in plans.items() if plan.steps <= MOST_TIMED}
    if not short:
        best = min(plans, key=lambda plan: plan.steps).tile
    elif cost is clocked:
        best = _fastest(short, parameters).tile
    else:
        best = min(short, key=lambda plan: cost(config, parameters, stream_of(plan))).tile
    if cost is clocked:
        answer = json.dumps({**asdict(best), "outer": best.outer.value})
        TILINGS.keep(TILINGS.name(question.encode()), answer.encode())
    return best


def _fastest(plans: Mapping[Convolution, float], parameters: Parameters) -> Convolution:
    """The plan of fewest cycles. Those are not timed that are estimated to take more than another
    one does: the estimate is rarely too high.
    """
    order = sorted(plans, key=plans.__getitem__)
    best, least = order[0], math.inf
    for plan in order:
        if plans[plan] >= least:
            break
        pieces = len(plan.tiles())
        timed = min(pieces, TIMED)
        cycles = clocked(plan.config, parameters, stream_of(plan, timed)) * pieces / timed
        if cycles < least:
            best, least = plan, cycles
    return best


def _recalled(question: str) -> Tile | None:
    """The cached tile for a question, if there is one."""
    contents = TILINGS.load(TILINGS.name(question.encode()))
    try:
        return None if contents is None else _tile(json.loads(contents))
    except (ValueError, RecursionError):
        return None


def likeliest(
    shape: Conv2d,
    config: Config,
    epilogue: Epilogue,
    parameters: Parameters,
    threads: int | None = None,
) -> dict[Tile, float]:
    """The tilings for which the estimate is lowest, with it."""
    found = {}
    for number in THREADS if threads is None else (threads,):
        fitting = estimate.candidates(shape, config, epilogue, number)
        cycles = estimate.cycles(shape, config, epilogue, parameters, number, fitting)
        order = np.argsort(cycles, kind="stable")[:LIKELIEST]
        found.update({fitting.tile(int(place), number): float(cycles[place]) for place in order})
    return found


def stream_of(plan: Convolution, pieces: int | None = None) -> bytes:
    """The stream of a plan, or of its first pieces, in buffers that do not exist."""
    config = plan.config
    vector = plan.output.blocks * config.element_bytes(MemoryId.ACC)
    sizes = [plan.input_bytes, plan.weight_bytes, plan.output_bytes]
    sizes += [vector] * plan.epilogue.vectors
    core = _core(config)
    with Runtime(core, UnbackedHeap(core)) as runtime:
        image, weights, output, *channels = map(runtime.alloc, sizes)
        plan.emit(runtime, image, weights, output, channels=channels, pieces=pieces)
        return runtime.take()


@functools.lru_cache(1)
def _core(config: Config) -> Core:
    """A core that executes nothing."""
    return Core.create(config, 1, engine="readable")


def _tile(kept: object) -> Tile | None:
    try:
        values = dict(kept)  # type: ignore[call-overload]  # whatever it is
        taps = values.pop("taps")
        tile = Tile(**{**values, "taps": tuple(taps), "outer": Outer(values["outer"])})
    except (TypeError, ValueError, KeyError):
        return None
    numbers = (tile.rows, tile.columns, tile.out_blocks, tile.in_blocks, *tile.taps, tile.threads)
    whole = len(tile.taps) == 2 and all(type(number) is int for number in numbers)
    return tile if whole and min(numbers) > 0 else None


def _plausible(shape: Conv2d, tile: Tile) -> bool:
    return tile.threads in THREADS and all(
        taps <= kernel for taps, kernel in zip(tile.taps, shape.kernel, strict=True)
    )

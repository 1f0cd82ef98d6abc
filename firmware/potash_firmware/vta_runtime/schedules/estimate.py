"""Estimated cycles of all tilings that fit, in closed form.

The core's clock times a stream exactly and needs the stream for it. This counts what each module
has to do, as if the pieces at the borders were whole ones, and lets one module's work hide behind
another's where there are two virtual threads.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.timing.parameters import Parameters
from potash_firmware.vta_runtime.schedules.shapes import Conv2d
from potash_firmware.vta_runtime.schedules.steps import Epilogue
from potash_firmware.vta_runtime.schedules.tiles import Outer, Share, Tile

Numbers = NDArray[np.int64]

MOST_SIZES = 20
"""Number of sizes that are tried of an axis with more."""


class Candidates(NamedTuple):
    """Tilings as columns of numbers."""

    rows: Numbers
    columns: Numbers
    out_blocks: Numbers
    in_blocks: Numbers
    tap_rows: Numbers
    tap_columns: Numbers
    weights_outside: Numbers

    def tile(self, number: int, threads: int) -> Tile:
        rows, columns, outs, ins, *taps, weights = (int(column[number]) for column in self)
        outer = Outer.WEIGHTS if weights else Outer.IMAGE
        return Tile(rows, columns, outs, ins, (taps[0], taps[1]), threads, outer)


def sizes(total: int) -> list[int]:
    """Sizes of pieces that cut `total` in as many pieces as evenly as can be."""
    found = sorted({-(-total // count) for count in range(1, total + 1)})
    if len(found) > MOST_SIZES:
        places = np.linspace(0, len(found) - 1, MOST_SIZES).round().astype(int)
        found = [found[place] for place in places]
    return found


def candidates(shape: Conv2d, config: Config, epilogue: Epilogue, threads: int) -> Candidates:
    """The tilings that fit; there may be none."""
    down, across = shape.kernel
    taps = list(dict.fromkeys([(down, across), (1, across), (1, 1)]))
    axes = (
        sizes(shape.out_height),
        sizes(shape.out_width),
        [1] if shape.is_single(config) else sizes(shape.out_blocks(config)),
        sizes(shape.depth(config)),
        range(len(taps)),
        (0, 1),
    )
    grid = np.meshgrid(*(np.array(axis, np.int64) for axis in axes), indexing="ij")
    rows, columns, outs, ins, taps_at, outside = (axis.reshape(-1) for axis in grid)
    chosen = np.array(taps, np.int64)[taps_at]
    found = Candidates(rows, columns, outs, ins, chosen[:, 0], chosen[:, 1], outside)
    share = Share.of(config, threads, epilogue)
    height, width = _window(shape, found)
    elements = rows * columns * epilogue.planes + epilogue.vectors
    fitting = (
        (height * width * (outs * ins if shape.depthwise else ins) <= share.inp)
        & (ins * outs * found.tap_rows * found.tap_columns <= share.wgt)
        & (elements * outs <= share.acc)
    )
    return Candidates(*(column[fitting] for column in found))


def cycles(
    shape: Conv2d,
    config: Config,
    epilogue: Epilogue,
    parameters: Parameters,
    threads: int,
    found: Candidates,
) -> NDArray[np.float64]:
    """Approximate number of cycles of each candidate."""
    limit = Share.of(config, threads, epilogue).micro_ops
    places, kinds, parts = _counts(shape, config, found)
    tiles = places * kinds

    # What a thread's part of a buffer holds already is not loaded again.
    stays = threads % parts == 0
    outside = found.weights_outside == 1
    images = np.where(stays & ~outside, places * np.minimum(kinds * parts, threads), tiles * parts)
    weights = np.where(stays & outside, kinds * np.minimum(places * parts, threads), tiles * parts)
    image_load = _image_load(shape, config, parameters, found)
    weight_load = _weight_load(shape, config, parameters, found)
    loading = images * image_load + weights * weight_load

    pixels = found.rows * found.columns
    steps = pixels * found.out_blocks * found.in_blocks * found.tap_rows * found.tap_columns
    start = parameters.decode + parameters.gemm_fill
    multiplying = (
        tiles
        * parts
        * (start + steps * parameters.gemm_interval + _ceil(steps, limit) * parameters.gemm_drain)
    )
    elements = pixels * found.out_blocks
    resetting = tiles * (
        start + elements * parameters.gemm_interval + _ceil(elements, limit) * parameters.gemm_drain
    )
    startup = (
        _ceil(elements, limit) * parameters.alu_drain + parameters.decode + parameters.alu_fill
    )
    finishing = tiles * sum(
        startup
        + elements
        * (
            parameters.alu_immediate_interval
            if isinstance(step.source, int)
            else parameters.alu_interval
        )
        for step in epilogue.steps
    )
    whole = found.columns == shape.out_width
    lines = found.out_blocks * np.where(whole, 1, found.rows)
    line = np.where(whole, pixels, found.columns)
    vector = _transfer(parameters, 1, found.out_blocks * config.element_bytes(MemoryId.ACC))
    micro_ops = np.minimum(steps, limit) * config.element_bytes(MemoryId.UOP)
    fetching = epilogue.vectors * np.where(outside, kinds * threads, tiles) * vector
    fetching += threads * threads * _transfer(parameters, 1, micro_ops)
    computing = multiplying + resetting + finishing + fetching
    storing = tiles * _transfer(parameters, lines, line * config.element_bytes(MemoryId.OUT))
    if threads == 1:
        total = loading + computing + storing
    else:
        longest = np.maximum(np.maximum(loading, computing), storing)
        total = longest + loading / (tiles * parts) + storing / tiles
    return np.asarray(total, np.float64)


def steps(shape: Conv2d, config: Config, found: Candidates) -> Numbers:
    """Number of steps of each candidate's stream."""
    places, kinds, parts = _counts(shape, config, found)
    return places * kinds * parts


def _counts(shape: Conv2d, config: Config, found: Candidates) -> tuple[Numbers, Numbers, Numbers]:
    """Numbers of tiles in an output channel, of blocks of channels that they are in, and of steps
    of each."""
    places = (
        shape.groups(config)
        * _ceil(shape.out_height, found.rows)
        * _ceil(shape.out_width, found.columns)
    )
    kinds = _ceil(shape.out_blocks(config), found.out_blocks)
    parts = (
        _ceil(shape.depth(config), found.in_blocks)
        * _ceil(shape.kernel[0], found.tap_rows)
        * _ceil(shape.kernel[1], found.tap_columns)
    )
    return places, kinds, parts


def _image_load(
    shape: Conv2d, config: Config, parameters: Parameters, found: Candidates
) -> Numbers:
    height, width = _window(shape, found)
    blocks = found.in_blocks * (found.out_blocks if shape.depthwise else 1)
    element = config.element_bytes(MemoryId.INP)
    if any(shape.padding):
        height, width = np.minimum(height, shape.height), np.minimum(width, shape.width)
        return blocks * _transfer(parameters, height, width * element)
    step = _row_step(shape, found.rows, found.tap_rows)
    whole = (width == shape.width) & (step == 1)
    return _transfer(
        parameters,
        blocks * np.where(whole, 1, height),
        np.where(whole, height, 1) * width * element,
    )


def _weight_load(
    shape: Conv2d, config: Config, parameters: Parameters, found: Candidates
) -> Numbers:
    element = config.element_bytes(MemoryId.WGT)
    taps = shape.kernel[0] * shape.kernel[1]
    across = found.tap_columns == shape.kernel[1]
    all_taps = across & (found.tap_rows == shape.kernel[0])
    lines = found.out_blocks * np.where(
        all_taps, 1, found.in_blocks * np.where(across, 1, found.tap_rows)
    )
    line = np.where(
        all_taps, found.in_blocks * taps, found.tap_columns * np.where(across, found.tap_rows, 1)
    )
    return _transfer(parameters, lines, line * element)


def _transfer(parameters: Parameters, lines: Numbers | int, size: Numbers) -> Numbers:
    """Cycles for that many lines of `size` bytes."""
    beats = _ceil(size, parameters.bus_bytes)
    bursts = _ceil(size, parameters.burst_bytes) * parameters.burst_cycles
    return parameters.decode + lines * (beats + bursts + parameters.latency)


def _window(shape: Conv2d, found: Candidates) -> tuple[Numbers, Numbers]:
    step = _row_step(shape, found.rows, found.tap_rows)
    down = (found.rows - 1) * shape.stride[0] + (found.tap_rows - 1) * shape.dilation[0]
    across = (found.columns - 1) * shape.stride[1] + (found.tap_columns - 1) * shape.dilation[1]
    return down // step + 1, across + 1


def _row_step(shape: Conv2d, rows: Numbers, tap_rows: Numbers) -> Numbers:
    steps = np.gcd(
        np.where(rows > 1, shape.stride[0], 0), np.where(tap_rows > 1, shape.dilation[0], 0)
    )
    return np.maximum(steps, 1)


def _ceil(total: Numbers | int, size: Numbers | int) -> Numbers:
    return np.asarray(-(-total // size), np.int64)

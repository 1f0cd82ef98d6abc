"""Schedules: from the shape of a convolution, a pooling or an elementwise operation to a tiled
stream for a core of any configuration.

`layouts` packs arrays for it and unpacks what comes out; docs/schedules.md explains the rest.
"""

from potash_firmware.vta_runtime.schedules.conv2d import Convolution
from potash_firmware.vta_runtime.schedules.elementwise import Elementwise, elementwise
from potash_firmware.vta_runtime.schedules.moves import MovedAxis, between, common_axes, fill, move
from potash_firmware.vta_runtime.schedules.pool import Pool2d, Pooling, Sweep, pool2d
from potash_firmware.vta_runtime.schedules.search import conv2d, fewest_steps
from potash_firmware.vta_runtime.schedules.shapes import Conv2d, ScheduleError
from potash_firmware.vta_runtime.schedules.steps import TILE, Channels, Epilogue, Plane, Step
from potash_firmware.vta_runtime.schedules.surfaces import Extent, Surface
from potash_firmware.vta_runtime.schedules.tiles import Outer, Tile

__all__ = [
    "TILE",
    "Channels",
    "Conv2d",
    "Convolution",
    "Elementwise",
    "Epilogue",
    "Extent",
    "MovedAxis",
    "Outer",
    "Plane",
    "Pool2d",
    "Pooling",
    "ScheduleError",
    "Step",
    "Surface",
    "Sweep",
    "Tile",
    "between",
    "common_axes",
    "conv2d",
    "elementwise",
    "fewest_steps",
    "fill",
    "move",
    "pool2d",
]

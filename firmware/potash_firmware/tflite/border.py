"""The tensors at a partition's border, copied by compiled code between TensorFlow Lite and the VTA.

`packing` says which values are where; here, its views become loops around runs of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Array, Tensor, ffi
from potash_firmware.tflite.packing import Sizes, pairs
from potash_firmware.vta_runtime.schedules import Surface

if TYPE_CHECKING:
    from potash_device.vta.fast.binding import Bound


class Port(NamedTuple):
    """A tensor at the partition's border."""

    tensor: Tensor
    surface: Surface
    sizes: Sizes


class Loop(NamedTuple):
    """A loop, and the bytes from one iteration to the next in a tensor and in its surface."""

    times: int
    inner: int
    outer: int


def copies(ports: Sequence[Port], config: Config) -> Bound | None:
    """A function that copies `ports`, given the address of the graph's tensors, and 1 to pack or 0
    to unpack. It returns -1, with nothing done, where a tensor has another shape than its port, or
    no memory. None where values are converted, which is not done in compiled code."""
    from potash_device.vta.fast import copying
    from potash_device.vta.fast.binding import Bound

    tensors, shapes, rows = [], [], []
    rank = max((len(port.tensor.shape) for port in ports), default=0)
    for number, (tensor, surface, sizes) in enumerate(ports):
        begin = tensor.index * ffi.sizeof("TfLiteTensor")
        fields = (begin + ffi.offsetof("TfLiteTensor", name) for name in ("data", "bytes", "dims"))
        tensors.append([*fields, tensor.size])
        shapes.append([len(tensor.shape), *tensor.shape, *[0] * (rank - len(tensor.shape))])
        values = np.empty(sizes, np.int8)
        for place, image in pairs(values, sizes, surface, config):
            found = _loops(place, image)
            if found is None:
                return None
            if not image.size:
                continue
            run, loops = found
            loops = [Loop(1, 0, 0)] * (copying.LOOPS - len(loops)) + loops
            offset = image.ctypes.data - values.ctypes.data
            columns = (value for column in zip(*loops, strict=True) for value in column)
            rows.append([number, offset, place.ctypes.data, run, *columns])
    table = copying.Copies(
        np.array(tensors, np.int64).reshape(-1, copying.BYTES + 1),
        np.array(shapes, np.int32).reshape(-1, rank + 1),
        np.array(rows, np.int64).reshape(-1, copying.COLUMNS),
    )
    return Bound(copying.copy, table)


def _loops(place: Array, image: Array) -> tuple[int, list[Loop]] | None:
    """The bytes of a run, and the loops around it, outermost first. None for other values."""
    if place.dtype != image.dtype:
        return None
    axes = [Loop(*axis) for axis in zip(image.shape, image.strides, place.strides, strict=True)]
    if image.itemsize > 1:
        # Elements of a row are contiguous in the surface, and channels of a pixel in the tensor.
        *before, across, deep, last = axes
        axes = [*before, deep, across, last]
    run, loops = image.itemsize, list[Loop]()
    for times, inner, outer in reversed([axis for axis in axes if axis.times > 1]):
        if not loops and inner == outer == run:
            run *= times
        elif loops and (inner, outer) == (
            loops[0].times * loops[0].inner,
            loops[0].times * loops[0].outer,
        ):
            loops[0] = loops[0]._replace(times=loops[0].times * times)
        else:
            loops.insert(0, Loop(times, inner, outer))
    return (run, loops) if len(loops) <= 4 else None

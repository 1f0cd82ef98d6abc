"""Compiled copies of a partition's inputs and outputs: the same bytes as NumPy's."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash.models import networks
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.tflite.border import Port, copies
from potash_firmware.tflite.capi import Allocation, Tensor, TensorType, ffi
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.packing import Layout, Margin, Sizes, pack, unpack
from potash_firmware.tflite.partition import Partition
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Buffer, Runtime
from support.vta import CONFIGS

BYTES = [config for config in CONFIGS if config.log_out_width == 3]
"""Cores whose outputs are bytes, as tensors are."""
RANDOM = np.random.default_rng(5)


class Tensors:
    """TensorFlow Lite's structures, whose second tensor is of a shape and has values."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.values = RANDOM.integers(-128, 128, shape, np.int8)
        self.structures = ffi.new("TfLiteTensor[2]")
        self._dims = ffi.new("TfLiteIntArray *", [len(shape), list(shape)])
        self.its = self.structures[1]
        self.its.data = ffi.cast("void *", self.values.ctypes.data)
        self.its.bytes = self.values.nbytes
        self.its.dims = self._dims

    @property
    def address(self) -> int:
        return int(ffi.cast("intptr_t", self.structures))


def tensor(shape: tuple[int, ...]) -> Tensor:
    kind = TensorType.INT8, shape, Allocation.DYNAMIC, False
    return Tensor(1, "", *kind, 1.0, 0, (), (), 0, None)


def filled(runtime: Runtime, layout: Layout, values: bytes) -> Buffer:
    buffer = runtime.alloc(layout.bytes(runtime.config))
    buffer.view[:] = values
    return buffer


extents = st.sampled_from((1, 2, 3, 5, 9, 17))
channels = st.sampled_from((1, 2, 3, 4, 7, 8, 9, 15, 16, 19, 24, 31, 32, 40, 65))
margins = st.builds(Margin, *[st.integers(0, 2)] * 4)


@given(
    st.builds(Sizes, st.integers(1, 3), extents, extents, channels),
    margins,
    st.sampled_from(BYTES),
)
def test_all_shapes(sizes: Sizes, margin: Margin, config: Config) -> None:
    layout, shape = Layout(sizes, margin), tuple(sizes)
    tensors = Tensors(shape)
    before = RANDOM.bytes(layout.bytes(config))
    with Runtime(Core.create(config, 1 << 26)) as runtime:
        buffers = [filled(runtime, layout, before) for _ in range(2)]
        expected, surface = (layout.surface(buffer, config) for buffer in buffers)
        copy = copies([Port(tensor(shape), surface, sizes)], config)
        assert copy is not None
        assert copy(tensors.address, 1) > 0
        pack(tensors.values, sizes, expected, config)
        assert bytes(buffers[1].view) == bytes(buffers[0].view)
        buffers[1].view[:] = other = RANDOM.bytes(len(before))
        assert copy(tensors.address, 0) > 0
        assert tensors.values.tobytes() == unpack(surface, sizes, config).tobytes()
        assert bytes(buffers[1].view) == other


@pytest.mark.parametrize("change", ["dims", "bytes", "data", "no dims"])
def test_another_tensor_is_not_copied(change: str) -> None:
    sizes, config = Sizes(1, 3, 5, 7), Config.default()
    tensors = Tensors(tuple(sizes))
    dims = ffi.new("TfLiteIntArray *", [4, [1, 5, 3, 7]])
    match change:
        case "dims":
            tensors.its.dims = dims
        case "bytes":
            tensors.its.bytes += 1
        case "data":
            tensors.its.data = ffi.NULL
        case _:
            tensors.its.dims = ffi.NULL
    layout = Layout(sizes)
    with Runtime(Core.create(config, 1 << 16)) as runtime:
        buffer = filled(runtime, layout, bytes(layout.bytes(config)))
        port = Port(tensor(tuple(sizes)), layout.surface(buffer, config), sizes)
        copy = copies([port], config)
        assert copy is not None and copy(tensors.address, 1) == -1
        assert not any(buffer.view)


def test_values_that_are_converted_are_left_to_numpy() -> None:
    sizes, config = Sizes(1, 3, 5, 7), next(one for one in CONFIGS if one.log_out_width != 3)
    layout = Layout(sizes)
    with Runtime(Core.create(config, 1 << 16)) as runtime:
        buffer = filled(runtime, layout, bytes(layout.bytes(config)))
        port = Port(tensor(tuple(sizes)), layout.surface(buffer, config), sizes)
        assert copies([port], config) is None


def test_a_partition_uses_them_with_the_fast_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = networks.make("add-1")
    inputs = RANDOM.bytes(2)
    partitions: list[Partition] = []
    run = Partition.run

    def noted(partition: Partition, tensors: Any) -> None:
        partitions.append(partition)
        run(partition, tensors)

    monkeypatch.setattr(Partition, "run", noted)
    outputs = []
    for engine in ("readable", "fast"):
        output = memoryview(bytearray(1))
        with Runtime(Core.create(Config.default(), 1 << 20, engine=engine)) as runtime:
            Model(model, delegate=VtaDelegate(runtime))(inputs, output)
        outputs.append(bytes(output))
    assert outputs[0] == outputs[1]
    assert [partition.copies is not None for partition in partitions] == [False, True]

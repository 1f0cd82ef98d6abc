"""Every network that can be made gives the reference kernels' bytes with the VTA in it."""

from __future__ import annotations

import re

import pytest

from potash.models.layers import Random
from potash.models.networks import NETWORKS, make
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.runtime import Model
from support.tflite import bench, reference

LARGE = [name for name in NETWORKS if re.search("resnet|mobilenet|-s224-|-o256", name)]
SMALL = [name for name in NETWORKS if name not in LARGE]


def check(name: str) -> None:
    model = make(name, seed=3)
    loaded = Model(model, delegate=None, reference=True)
    draws = Random(17)
    inputs = [draws.bytes(*tensor.shape) for tensor in loaded.inputs]
    expected = reference(model, inputs)
    with bench(dram_bytes=DRAM_BYTES) as vta:
        assert vta.infer(model, inputs, len(expected)) == expected
    # A network that always says the same proves nothing.
    assert len(expected) < 64 or len(set(expected)) > 16


@pytest.mark.parametrize("name", SMALL)
def test_a_small_network_is_bit_exact(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_network_is_bit_exact(name: str) -> None:
    check(name)

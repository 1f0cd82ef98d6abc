"""Multiply-accumulate operations of models, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from csd_spec.program import Processor
from potash.models.networks import make
from potash_device.cores import CoreProfile
from potash_firmware.apu.models import Meter, Models
from potash_firmware.apu.work_counter import WorkCounter
from potash_firmware.tflite import runtime
from potash_firmware.tflite.runtime import Model
from support.docs import ROOT

DIGITS = (ROOT / "examples" / "digits" / "model.tflite").read_bytes()
DIGITS_MACS = 8 * 8 * 16 * 3 * 3 + 4 * 4 * 32 * 3 * 3 * 16 + 10 * 512
"""Two convolutions with 16 and 32 channels, a reshape, a matrix of 10 rows."""

Shapes = Sequence[tuple[int, ...]]


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "expected"),
    [
        ("CONV_2D", [(1, 9, 9, 4), (8, 3, 5, 4), (8,)], [(1, 7, 5, 8)], 7 * 5 * 8 * 3 * 5 * 4),
        ("CONV_2D", [(1, 9, 9, 4), (8, 3, 5, 2), (8,)], [(1, 7, 5, 8)], 7 * 5 * 8 * 3 * 5 * 2),
        ("DEPTHWISE_CONV_2D", [(1, 9, 9, 4), (1, 3, 3, 8)], [(1, 7, 7, 8)], 7 * 7 * 8 * 9),
        ("TRANSPOSE_CONV", [(4,), (2, 3, 3, 5), (1, 4, 4, 5)], [(1, 8, 8, 2)], 4 * 4 * 5 * 9 * 2),
        ("FULLY_CONNECTED", [(3, 100), (7, 100), (7,)], [(3, 7)], 3 * 7 * 100),
        ("BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], 2 * 3 * 4 * 5),
        ("BATCH_MATMUL", [(2, 3, 4), (2, 5, 4)], [(2, 3, 5)], 2 * 3 * 4 * 5),
        ("BATCH_MATMUL", [(6, 2, 3, 4), (4, 5)], [(6, 2, 3, 5)], 12 * 3 * 4 * 5),
        ("ADD", [(1, 4, 4, 2), (2,)], [(1, 4, 4, 2)], 32),
        ("MAX_POOL_2D", [(1, 8, 8, 3)], [(1, 4, 4, 3)], 192),
        ("RESHAPE", [(1, 8, 8, 3), (2,)], [(1, 192)], 0),
        ("DELEGATE", [(1, 8, 8, 3)], [(1, 192)], 0),
        ("CUSTOM", [], [], 0),
        # What no sound model has is counted somehow.
        ("CONV_2D", [(3, 4)], [(5,)], 12),
        ("FULLY_CONNECTED", [(3, 4), ()], [(5,)], 12),
        ("TRANSPOSE_CONV", [(1, 2, 3, 4), (1, 1, 1, 1)], [(5,)], 24),
    ],
)
def test_a_node_takes_the_products_of_its_shapes(
    operator: str, inputs: Shapes, outputs: Shapes, expected: int
) -> None:
    assert runtime.macs_of_node(operator, inputs, outputs) == expected


def test_a_network_takes_those_of_all_its_nodes() -> None:
    assert Model(DIGITS, delegate=None).macs == DIGITS_MACS


@pytest.mark.slow
def test_a_resnet_takes_as_many_as_is_published() -> None:
    """1.8e9 (He et al. 2016); 1 814 073 344 without additions and pooling."""
    whole = Model(make("resnet18"), delegate=None).macs
    assert 1_814_073_344 < whole < 1_814_073_344 * 1.003


@pytest.mark.parametrize(
    ("processor", "expected"), [(Processor.APU, DIGITS_MACS), (Processor.VTA, 0)]
)
def test_a_counter_counts_what_the_processor_runs_itself(
    processor: Processor, expected: int
) -> None:
    """Each time, also where the model is loaded already."""
    counter = WorkCounter(CoreProfile())
    models = Models({}, Meter(counter=counter))
    infer = models.infer_vta if processor is Processor.VTA else models.infer_apu
    for _ in range(3):
        counter.begin()
        infer(memoryview(DIGITS), memoryview(bytes(64)), memoryview(bytearray(10)))
        assert counter.macs == expected
        assert counter.bytes == len(DIGITS) + 64 + 10
        assert (counter.vta_cycles > 0) == (processor is Processor.VTA)

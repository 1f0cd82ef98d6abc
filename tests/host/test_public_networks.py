"""Networks of other people, where their packages can be had: the same on the VTA as on TensorFlow
Lite's reference kernels."""

from __future__ import annotations

import numpy as np
import pytest

from potash.models import public
from potash.sdk.errors import PotashError
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.runtime import Model
from potash_firmware.tflite.variables.accesses import keeps_state
from support.tflite import bench

RUNS = 4


@pytest.mark.parametrize(
    ("name", "nodes"), [("wake-word-alexa", 57), ("speech-embedding", 64), ("face-detection", 92)]
)
def test_a_public_network_gives_the_reference_kernels_bytes(name: str, nodes: int) -> None:
    if not name.startswith(public.INT8):
        pytest.importorskip("ai_edge_quantizer")
    try:
        model = public.in_int8(name)
    except PotashError as error:
        pytest.skip(str(error))
    plain = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    plain.allocate_tensors()
    (given,), outputs = plain.get_input_details(), plain.get_output_details()
    results = set()
    with bench(dram_bytes=DRAM_BYTES) as vta:
        loaded = Model(model, delegate=vta.delegate, reference=True)
        assert vta.reasons.count(None) >= nodes
        # The wake word's variables keep what it has heard: the same input gives other outputs.
        samples = np.random.default_rng(0).integers(-128, 128, given["shape"], np.int8)
        for _ in range(RUNS):
            plain.set_tensor(given["index"], samples)
            plain.invoke()
            expected = b"".join(plain.get_tensor(one["index"]).tobytes() for one in outputs)
            output = memoryview(bytearray(len(expected)))
            assert loaded(samples.tobytes(), output) == len(expected)
            assert output == expected
            results.add(expected)
        del loaded
    assert keeps_state(model) or len(results) == 1

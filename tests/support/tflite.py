"""TensorFlow Lite on the bench: its reference kernels, an addition in exact arithmetic, and a VTA
whose streams are kept.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Instruction, decode
from potash_firmware.tflite import LITERT, partition_cache, runtime_package
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.lowering import Rounding
from potash_firmware.tflite.runtime import infer
from potash_firmware.vta_runtime import Runtime

Int8 = npt.NDArray[np.int8]

litert_only = pytest.mark.skipif(
    runtime_package() != LITERT, reason="tflite-runtime is installed, which does not do this"
)


@pytest.fixture(autouse=True, scope="module")
def nothing_kept() -> Iterator[None]:
    """For modules that import it: everything is lowered and compiled, whatever an earlier run
    did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_cache.MODELS, "load", lambda _: None)
        patch.setattr(partition_cache.MODELS, "keep", lambda *_: None)
        yield


def reference(model: bytes, inputs: Sequence[npt.NDArray[np.generic]]) -> bytes:
    """A model's outputs by TensorFlow Lite's reference kernels, with nothing of ours in between."""
    interpreter = Interpreter(
        model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    for details, values in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(details["index"], values.reshape(details["shape"]))
    interpreter.invoke()
    return b"".join(
        interpreter.get_tensor(details["index"]).tobytes()
        for details in interpreter.get_output_details()
    )


class Bench:
    """A VTA with its delegate, and the streams that it executed."""

    def __init__(
        self,
        config: Config | None = None,
        dram_bytes: int = 1 << 22,
        rounding: Rounding = Rounding.EXACT,
    ) -> None:
        self.core = Core.create(config or Config.default(), dram_bytes, engine="fast")
        self.streams: list[bytes] = []
        # Not traced, which would leave everything to the readable simulator.
        self.core.observer = lambda stream, began: self.streams.append(stream)
        self.runtime = Runtime(self.core)
        self.delegate = VtaDelegate(self.runtime, rounding)

    @property
    def executed(self) -> list[Instruction]:
        """The instructions of all streams, as they are in them."""
        code = b"".join(self.streams)
        return [
            decode(int.from_bytes(code[at : at + INSTRUCTION_BYTES], "little"), self.core.config)
            for at in range(0, len(code), INSTRUCTION_BYTES)
        ]

    @property
    def reasons(self) -> list[str | None]:
        """Why nodes of the last model were left, in their order; None for those that were taken."""
        return [one.reason for graph in self.delegate.decisions for one in graph]

    @property
    def counts(self) -> Counter[str]:
        """How many instructions of each kind were executed."""
        return Counter(type(instruction).__name__ for instruction in self.executed)

    def infer(self, model: bytes, inputs: Sequence[npt.NDArray[np.generic]], room: int) -> bytes:
        """A model's outputs with what the VTA takes on the VTA, and the rest on reference
        kernels."""
        output = bytearray(room)
        data = b"".join(values.tobytes() for values in inputs)
        length = infer(model, data, memoryview(output), delegate=self.delegate, reference=True)
        return bytes(output[:length])


@contextmanager
def bench(
    config: Config | None = None, dram_bytes: int = 1 << 22, rounding: Rounding = Rounding.EXACT
) -> Iterator[Bench]:
    """A bench whose runtime is closed at the end."""
    made = Bench(config, dram_bytes, rounding)
    with made.runtime:
        yield made


class Quantization(NamedTuple):
    """A tensor's scale, as float32 has it, and its zero point."""

    scale: float
    zero_point: int


def quantize_multiplier(real: Fraction) -> tuple[int, int]:
    """The significand and shift of a positive fraction below one, by exact arithmetic.

    `real` is a quotient of doubles in TensorFlow Lite, so it is rounded to a double first.
    """
    exact = Fraction(float(real))
    shift = 0
    while exact * 2 < 1:
        exact *= 2
        shift -= 1
    significand = math.floor(exact * (1 << 31) + Fraction(1, 2))
    if significand == 1 << 31:
        significand, shift = 1 << 30, shift + 1
    return (significand, shift) if shift >= -31 else (0, 0)


def scale_down(value: int, significand: int, shift: int) -> int:
    """gemmlowp's SaturatingRoundingDoublingHighMul and RoundingDivideByPOT, as they are written."""
    product = value * significand
    nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
    quotient = abs(product + nudge) // (1 << 31)
    high = quotient if product + nudge >= 0 else -quotient
    mask = (1 << -shift) - 1
    remainder = high & mask
    threshold = (mask >> 1) + (1 if high < 0 else 0)
    return (high >> -shift) + (1 if remainder > threshold else 0)


def add_exactly(
    left: Sequence[int],
    right: Sequence[int],
    quantizations: tuple[Quantization, Quantization, Quantization],
    limits: tuple[int, int],
) -> list[int]:
    """int8 ADD as TensorFlow Lite's reference implementation describes it, in Python's integers."""
    a, b, out = quantizations
    twice_largest = 2 * max(Fraction(a.scale), Fraction(b.scale))
    factors = [quantize_multiplier(Fraction(q.scale) / twice_largest) for q in (a, b)]
    output_factor = quantize_multiplier(twice_largest / ((1 << 20) * Fraction(out.scale)))
    results = []
    for x, y in zip(left, right, strict=True):
        scaled = (
            scale_down((value - quantization.zero_point) << 20, *factor)
            for value, quantization, factor in zip((x, y), (a, b), factors, strict=True)
        )
        total = scale_down(sum(scaled), *output_factor) + out.zero_point
        results.append(min(max(total, limits[0]), limits[1]))
    return results

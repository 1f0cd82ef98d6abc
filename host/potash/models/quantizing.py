"""From float32 to int8: post-training quantisation by ai-edge-quantizer.

Activations get one scale and zero point each from what flows through the model for some samples,
weights one scale for each channel (`static_wi8_ai8`, ai-edge-quantizer's recipe for int8
throughout).
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from potash.models import folding
from potash.models.rejoining import rejoin
from potash.sdk.errors import PotashError
from potash_firmware.tflite.runtime import Model, TensorReport
from potash_firmware.tflite.writer import SIGNATURE

_IN_FLOAT = {"regex": ".*", "operation": "DIV", "algorithm_key": "no_quantize"}
"""A part of the recipe: in int8, small divisors would become 0, for which the kernel fails."""


@dataclass(frozen=True)
class Quantized:
    """What came of it."""

    model: bytes
    samples: int
    float_tensors: tuple[str, ...]
    """Inputs and outputs that the quantizer left in float32."""
    operators: int
    float_operators: int
    """Operators that give float32."""


def quantize(model: bytes, calibration: Sequence[tuple[str, bytes]]) -> Quantized:
    """A model in int8 throughout, as far as the quantizer goes.

    `calibration` names pieces of samples: the inputs' bytes, one sample after the other. Raises
    PotashError, and ModelError for what is no model.
    """
    try:
        from ai_edge_quantizer import quantizer, recipe
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("ai_edge_quantizer"):
            raise
        raise PotashError(
            "this needs the package ai-edge-quantizer, which is not installed: "
            "pip install 'potash[quantize]'"
        ) from None
    inputs = Model(model, delegate=None).inputs
    if not any(tensor.dtype == np.float32 for tensor in inputs):
        raise PotashError("the model takes no float32; it may be quantised already")
    samples = [sample for name, data in calibration for sample in _samples(name, data, inputs)]
    signed, key, names = _signed(folding.folded(model))
    named = [dict(zip(names, sample, strict=True)) for sample in samples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            work = quantizer.Quantizer(bytearray(signed), [*recipe.static_wi8_ai8(), _IN_FLOAT])
            ranges: dict[str, dict[str, Any]] = {}
            for sample in named:
                _widen(ranges, work.calibrate({key: [sample]}, num_threads=1))
            result = bytes(work.quantize(ranges, enable_progress_report=False).quantized_model)
        except Exception as error:  # noqa: BLE001  # whatever the tool raises
            sentence = " ".join(str(error).split()) or type(error).__name__
            raise PotashError(f"ai-edge-quantizer refuses the model: {sentence}") from None
    tables = folding.unpacked(result)
    rejoin(tables)
    result = folding.packed(tables)
    loaded = Model(result, delegate=None)
    floats = [t.name for t in (*loaded.inputs, *loaded.outputs) if t.dtype == np.float32]
    operators, float_operators = _count(result)
    return Quantized(result, len(samples), tuple(floats), operators, float_operators)


def _widen(ranges: dict[str, dict[str, Any]], seen: dict[str, dict[str, Any]]) -> None:
    """Let ranges hold what has been seen. Several samples at once would be averaged, which cuts off
    the extremes of most.
    """
    for name, values in seen.items():
        known = ranges.setdefault(name, dict(values))
        for bound, choose in (("min", np.minimum), ("max", np.maximum)):
            if bound in values:
                known[bound] = choose(known[bound], values[bound])


def _samples(
    name: str, data: bytes, inputs: Sequence[TensorReport]
) -> Iterator[list[npt.NDArray[Any]]]:
    size = sum(tensor.size for tensor in inputs)
    if not data or len(data) % size:
        raise PotashError(f"{name} has {len(data)} bytes, and a sample takes {size}")
    for begin in range(0, len(data), size):
        sample = []
        for tensor in inputs:
            values = np.frombuffer(data, tensor.dtype, tensor.size // tensor.dtype.itemsize, begin)
            if not np.isfinite(values).all():
                raise PotashError(f"{name} holds infinities, or what is no number at all")
            sample.append(values.reshape(tensor.shape))
            begin += tensor.size
        yield sample


def _signed(tables: Any) -> tuple[bytes, str, list[str]]:
    """The model with a signature, the signature's key, and what it calls the inputs, in order."""
    graph = tables.subgraphs[0]
    for signature in tables.signatureDefs or ():
        names = {entry.tensorIndex: entry.name for entry in signature.inputs}
        if signature.subgraphIndex == 0 and set(names) == set(graph.inputs):
            key, inputs = _text(signature.signatureKey), [_text(names[i]) for i in graph.inputs]
            return folding.packed(tables), key, inputs
    signature = schema.SignatureDefT()
    signature.signatureKey = SIGNATURE
    signature.inputs, signature.outputs = (
        [_entry(f"{what}-{at}", index) for at, index in enumerate(indices)]
        for what, indices in (("input", graph.inputs), ("output", graph.outputs))
    )
    tables.signatureDefs = [signature]
    return folding.packed(tables), SIGNATURE, [entry.name for entry in signature.inputs]


def _entry(name: str, tensor: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, int(tensor)
    return entry


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _count(model: bytes) -> tuple[int, int]:
    """How many operators there are, and how many of them give float32."""
    graph = schema.Model.GetRootAs(model, 0).Subgraphs(0)
    operators = [graph.Operators(at) for at in range(graph.OperatorsLength())]
    floats = [
        operator
        for operator in operators
        if graph.Tensors(operator.Outputs(0)).Type() == schema.TensorType.FLOAT32
    ]
    return len(operators), len(floats)

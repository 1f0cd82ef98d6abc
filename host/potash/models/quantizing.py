"""Post-training quantisation from float32 to int8, by ai-edge-quantizer.

Activations get one scale and zero point each from what flows through the model for some samples,
weights one scale for each channel (`static_wi8_ai8`, ai-edge-quantizer's recipe for int8
throughout). Where a channel's weights are so small that its bias, which has the scale of input
times weights, would not fit into 32 bits, the weights get a larger scale: the quantizer limits such
a bias without a warning.

The quantizer leaves some operators in float32 between a DEQUANTIZE and a QUANTIZE, though
TensorFlow Lite has them for int8: PRELU, LEAKY_RELU, and some whose values are their input's. NEG
and SQUARE become products: the kernel of NEG for int8 leaves zero points out, and there is none of
SQUARE.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from csd_spec.reporting import Count
from potash.models import folding
from potash.sdk.errors import PotashError
from potash_firmware.tflite.runtime import Model, TensorReport
from potash_firmware.tflite.writer import SIGNATURE, packed, signature_of

_IN_FLOAT = {"regex": ".*", "operation": "DIV", "algorithm_key": "no_quantize"}
"""A part of the recipe: in int8, small divisors would become 0, for which the kernel fails."""
_MOST_BIAS = 1 << 28
"""Leaves 2^30 for products, which is 2^15 of them. With it, rounding the weights of a channel of
1152 products, whose bias is as large as all 255 steps of the output, changes this by 0.14 steps at
most."""
_Code = schema.BuiltinOperator
_BIASED = {_Code.CONV_2D: 2, _Code.DEPTHWISE_CONV_2D: 2, _Code.FULLY_CONNECTED: 2}
_BIASED[_Code.TRANSPOSE_CONV] = 3
"""The place of the bias among the inputs; the weights are the second."""
_DUPLICATE = re.compile(r"_duplicated_\d+$")
"""The quantizer's suffix for the name of a constant that several operators read."""
_MOVES = frozenset(
    {
        *(_Code.DEPTH_TO_SPACE, _Code.SPACE_TO_DEPTH, _Code.EXPAND_DIMS, _Code.SQUEEZE),
        *(_Code.REDUCE_MAX, _Code.REDUCE_MIN),
    }
)
_PRODUCTS = frozenset({_Code.NEG, _Code.SQUARE})
_RESCALES = _PRODUCTS | {_Code.PRELU, _Code.LEAKY_RELU}
"""Operators whose output has a scale of its own."""


class Quantized(NamedTuple):
    """A quantised model, and what is left of float32."""

    model: bytes
    samples: Annotated[Count, "Number of calibration samples."]
    operators: Annotated[Count, "Number of operators."]
    float_operators: Annotated[Count, "Number of operators whose output is still float32."]
    float_tensors: Annotated[Sequence[str], "Inputs and outputs that are still float32."]


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
    if not any(tensor.dtype == "float32" for tensor in inputs):
        raise PotashError("the model takes no float32; it may be quantised already")
    samples = [sample for name, data in calibration for sample in _samples(name, data, inputs)]
    tables = folding.folded(model)
    graph = tables.subgraphs[0]
    outputs = len(graph.outputs)
    # XNNPACK computes no other tensor that nobody reads, and the quantizer wants to see them all.
    graph.outputs = [*graph.outputs, *_unread(graph)]
    signed, key, names = _signed(tables, outputs)
    named = [dict(zip(names, sample, strict=True)) for sample in samples]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            work = quantizer.Quantizer(bytearray(signed), [*recipe.static_wi8_ai8(), _IN_FLOAT])
            ranges: dict[str, dict[str, Any]] = {}
            for sample in named:
                _widen(ranges, work.calibrate({key: [sample]}, num_threads=1))
            result = work.quantize(ranges, enable_progress_report=False).quantized_model
            if _fit_biases(tables, folding.unpacked(bytes(result)), ranges):
                result = work.quantize(ranges, enable_progress_report=False).quantized_model
        except Exception as error:  # noqa: BLE001  # whatever the tool raises
            sentence = " ".join(str(error).split()) or type(error).__name__
            raise PotashError(f"ai-edge-quantizer refuses the model: {sentence}") from None
    tables = folding.unpacked(bytes(result))
    tables.subgraphs[0].outputs = tables.subgraphs[0].outputs[:outputs]
    rejoin(tables)
    result = packed(tables)
    loaded = Model(result, delegate=None)
    floats = [t.name for t in (*loaded.inputs, *loaded.outputs) if t.dtype == "float32"]
    return Quantized(result, len(samples), *_count(result), tuple(floats))


def _widen(ranges: dict[str, dict[str, Any]], seen: dict[str, dict[str, Any]]) -> None:
    """Let ranges hold what has been seen. Several samples at once would be averaged, which cuts off
    the extremes of most."""
    for name, values in seen.items():
        known = ranges.setdefault(name, dict(values))
        for bound, choose in (("min", np.minimum), ("max", np.maximum)):
            if bound in values:
                known[bound] = choose(known[bound], values[bound])


def _fit_biases(tables: Any, quantized: Any, ranges: dict[str, dict[str, Any]]) -> bool:
    """Give ranges to weights for which a bias would not fit; whether there are any."""
    (graph, *_), found = tables.subgraphs, False
    reals = {_text(one.name): one for one in graph.tensors if one.type == schema.TensorType.FLOAT32}
    for operator in quantized.subgraphs[0].operators:
        at = _BIASED.get(quantized.operatorCodes[operator.opcodeIndex].builtinCode)
        if at is None or len(operator.inputs) <= at or operator.inputs[at] < 0:
            continue
        weights, bias = (quantized.subgraphs[0].tensors[operator.inputs[of]] for of in (1, at))
        its, real = (reals.get(_DUPLICATE.sub("", _text(one.name))) for one in (weights, bias))
        if bias.type != schema.TensorType.INT32 or its is None or real is None:
            continue
        data = tables.buffers[real.buffer].data
        if data is None:
            continue
        wanted = np.abs(np.frombuffer(bytes(data), np.float32)) / bias.quantization.scale
        if wanted.max(initial=0) <= _MOST_BIAS:
            continue
        found = True
        values = np.frombuffer(bytes(tables.buffers[its.buffer].data), np.float32)
        axes = set(range(len(its.shape))) - {weights.quantization.quantizedDimension}
        bound = np.abs(values).reshape(its.shape).max(axis=tuple(axes), keepdims=True)
        larger = 127 * weights.quantization.scale * (wanted / _MOST_BIAS)
        bound = np.where(wanted > _MOST_BIAS, larger, bound.reshape(-1)).reshape(bound.shape)
        # Weights in one buffer are quantised once.
        for tensor in graph.tensors:
            if tensor.buffer == its.buffer:
                known = ranges.setdefault(_text(tensor.name), {"max": bound})
                known["max"] = np.maximum(known["max"], bound)
                known["min"] = -known["max"]
    return found


def _samples(
    name: str, data: bytes, inputs: Sequence[TensorReport]
) -> Iterator[list[npt.NDArray[Any]]]:
    size = sum(tensor.bytes for tensor in inputs)
    if not data or len(data) % size:
        raise PotashError(f"{name} has {len(data)} bytes, and a sample takes {size}")
    for begin in range(0, len(data), size):
        sample = []
        for tensor in inputs:
            values = np.frombuffer(data[begin : begin + tensor.bytes], tensor.dtype)
            if not np.isfinite(values).all():
                raise PotashError(f"{name} holds infinities, or what is not a number at all")
            sample.append(values.reshape(tensor.shape))
            begin += tensor.bytes
        yield sample


def _unread(graph: Any) -> list[int]:
    """The outputs of operators that are neither read nor the graph's."""
    read = {int(index) for operator in graph.operators for index in operator.inputs}
    made = (int(index) for operator in graph.operators for index in operator.outputs)
    return [index for index in made if index not in read and index not in graph.outputs]


def _signed(tables: Any, outputs: int) -> tuple[bytes, str, list[str]]:
    """The model with a signature, of so many outputs if it has none, the signature's key, and what
    it calls the inputs, in order."""
    graph = tables.subgraphs[0]
    for signature in tables.signatureDefs or ():
        names = {entry.tensorIndex: entry.name for entry in signature.inputs}
        if signature.subgraphIndex == 0 and set(names) == set(graph.inputs):
            key, inputs = _text(signature.signatureKey), [_text(names[i]) for i in graph.inputs]
            return packed(tables), key, inputs
    given, made = (
        {f"{what}-{at}": int(index) for at, index in enumerate(indices)}
        for what, indices in (("input", graph.inputs), ("output", graph.outputs[:outputs]))
    )
    tables.signatureDefs = [signature_of(given, made)]
    return packed(tables), SIGNATURE, list(given)


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _count(model: bytes) -> tuple[int, int]:
    """Numbers of all operators, and of those whose output is float32."""
    graph = schema.Model.GetRootAs(model, 0).Subgraphs(0)
    operators = [graph.Operators(at) for at in range(graph.OperatorsLength())]
    floats = [
        operator
        for operator in operators
        if graph.Tensors(operator.Outputs(0)).Type() == schema.TensorType.FLOAT32
    ]
    return len(operators), len(floats)


def rejoin(tables: Any) -> None:
    """Have operators of the first graph that the quantizer left in float32 take and give int8."""
    graph = tables.subgraphs[0]
    codes = [max(one.builtinCode, one.deprecatedBuiltinCode) for one in tables.operatorCodes]
    makers = {int(output): one for one in graph.operators for output in one.outputs}
    for operator in graph.operators:
        code = codes[operator.opcodeIndex]
        if code not in _MOVES | _RESCALES:
            continue
        maker, output = makers.get(int(operator.inputs[0])), int(operator.outputs[0])
        readers = [one for one in graph.operators if output in one.inputs]
        if (
            maker is None
            or codes[maker.opcodeIndex] != _Code.DEQUANTIZE
            or output in graph.outputs
            or any(codes[one.opcodeIndex] != _Code.QUANTIZE for one in readers)
        ):
            continue
        source, target = graph.tensors[maker.inputs[0]], graph.tensors[output]
        results = [graph.tensors[one.outputs[0]] for one in readers]
        if any(one.type != schema.TensorType.INT8 for one in (source, *results)):
            continue
        if code in _RESCALES and not results:
            continue
        if code == _Code.PRELU and not _make_int8(tables, graph, operator):
            continue
        if code in _PRODUCTS:
            other = maker.inputs[0]
            if code == _Code.NEG:
                minus_one = np.array([-1], np.int8)
                other = _constant(tables, graph, b"minus one", minus_one, 1.0)
            operator.inputs = [operator.inputs[0], other]
            _multiply(tables, operator)
            codes.append(_Code.MUL)
        operator.inputs = [maker.inputs[0], *operator.inputs[1:]]
        target.type = schema.TensorType.INT8
        target.quantization = (source if code in _MOVES else results[0]).quantization
    _drop_idle(graph, codes)


def _make_int8(tables: Any, graph: Any, operator: Any) -> bool:
    """Give a PRELU factors in int8, with one scale; whether it could be done."""
    factors = graph.tensors[operator.inputs[1]]
    data = tables.buffers[factors.buffer].data
    if data is None or factors.type != schema.TensorType.FLOAT32:
        return False
    values = np.frombuffer(bytes(data), np.float32)
    scale = float(np.abs(values).max(initial=0)) / 127 or 1.0
    whole = np.rint(values / scale).astype(np.int8).reshape(factors.shape)
    made = _constant(tables, graph, factors.name + b"_int8", whole, scale)
    operator.inputs = [operator.inputs[0], made]
    return True


def _constant(tables: Any, graph: Any, name: bytes, values: npt.NDArray[Any], scale: float) -> int:
    """A tensor with a scale; its number."""
    made, buffer = schema.TensorT(), schema.BufferT()
    buffer.data = values.reshape(-1).view(np.uint8)
    tables.buffers.append(buffer)
    made.name, made.shape, made.type = name, list(values.shape), schema.TensorType.INT8
    made.buffer = len(tables.buffers) - 1
    made.quantization = schema.QuantizationParametersT()
    made.quantization.scale = np.array([scale], np.float32)
    made.quantization.zeroPoint = np.zeros(1, np.int64)
    graph.tensors.append(made)
    return len(graph.tensors) - 1


def _multiply(tables: Any, operator: Any) -> None:
    """Make a product of an operator of one input."""
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = _Code.MUL
    code.version = 2
    tables.operatorCodes.append(code)
    operator.opcodeIndex = len(tables.operatorCodes) - 1
    operator.builtinOptionsType = schema.BuiltinOptions.MulOptions
    operator.builtinOptions = schema.MulOptionsT()


def _drop_idle(graph: Any, codes: list[int]) -> None:
    """Leave out a QUANTIZE to the same numbers, and a DEQUANTIZE that nothing reads."""
    same = {}
    for operator in graph.operators:
        if codes[operator.opcodeIndex] == _Code.QUANTIZE:
            before, after = int(operator.inputs[0]), int(operator.outputs[0])
            if after not in graph.outputs and _alike(graph.tensors[before], graph.tensors[after]):
                same[after] = before
    for operator in graph.operators:
        operator.inputs = [same.get(int(index), int(index)) for index in operator.inputs]
    read = {index for operator in graph.operators for index in operator.inputs}
    read |= {int(index) for index in graph.outputs}
    graph.operators = [
        one
        for one in graph.operators
        if int(one.outputs[0]) in read
        or codes[one.opcodeIndex] not in (_Code.DEQUANTIZE, _Code.QUANTIZE)
    ]


def _alike(one: Any, other: Any) -> bool:
    """True if two tensors of int8 have the same scale and zero point."""
    if one.type != schema.TensorType.INT8 or other.type != schema.TensorType.INT8:
        return False
    its, others = one.quantization, other.quantization
    return bool(
        np.array_equal(its.scale, others.scale) and np.array_equal(its.zeroPoint, others.zeroPoint)
    )

"""Writing models: quantised `.tflite` flatbuffers without TensorFlow.

A model is a flatbuffer of tables (`tflite/schema/schema.fbs`); LiteRT has the generated classes
that this module fills in. Tests and examples make their models here.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
SIGNATURE = "serving_default"
"""TensorFlow's name of a model's only signature."""

# deprecated_builtin_code is a byte; codes above it are in builtin_code alone.
_LARGEST_DEPRECATED_CODE = 127


class FusedActivation(IntEnum):
    """`ActivationFunctionType` of the schema."""

    NONE = schema.ActivationFunctionType.NONE
    RELU = schema.ActivationFunctionType.RELU
    RELU_N1_TO_1 = schema.ActivationFunctionType.RELU_N1_TO_1
    RELU6 = schema.ActivationFunctionType.RELU6
    TANH = schema.ActivationFunctionType.TANH


_TENSOR_TYPES = {
    np.dtype(np.int8): schema.TensorType.INT8,
    np.dtype(np.uint8): schema.TensorType.UINT8,
    np.dtype(np.int16): schema.TensorType.INT16,
    np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.float32): schema.TensorType.FLOAT32,
    np.dtype(np.bool_): schema.TensorType.BOOL,
}


class ModelBuilder:
    """One graph, built tensor by tensor and operator by operator; tensors are named by number."""

    def __init__(self, description: str = "potash") -> None:
        self._graph = schema.SubGraphT()
        self._graph.name = "main"
        self._graph.tensors = []
        self._graph.operators = []
        self._model = schema.ModelT()
        self._model.version = SCHEMA_VERSION
        self._model.description = description
        self._model.operatorCodes = []
        # Buffer 0 is empty by convention: tensors without data point to it.
        self._model.buffers = [schema.BufferT()]
        self._model.subgraphs = [self._graph]
        self._codes: dict[tuple[int, int], int] = {}

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: npt.DTypeLike = np.int8,
        *,
        scale: float | Sequence[float] | None = None,
        zero_point: int = 0,
        axis: int = 0,
        data: npt.ArrayLike | None = None,
        variable: bool = False,
    ) -> int:
        """Add a tensor, constant when it has `data`; several scales are those of `axis`."""
        tensor = schema.TensorT()
        tensor.name = name
        tensor.shape = list(shape)
        tensor.type = _TENSOR_TYPES[np.dtype(dtype)]
        tensor.isVariable = variable
        tensor.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.asarray(data, dtype).tobytes(), np.uint8)
            self._model.buffers.append(buffer)
            tensor.buffer = len(self._model.buffers) - 1
        if scale is not None:
            quantization = schema.QuantizationParametersT()
            quantization.scale = np.atleast_1d(np.asarray(scale, np.float32))
            quantization.zeroPoint = np.full(quantization.scale.shape, zero_point, np.int64)
            quantization.quantizedDimension = axis
            tensor.quantization = quantization
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def operator(
        self,
        code: int,
        inputs: Iterable[int],
        outputs: Iterable[int],
        *,
        options_type: int = schema.BuiltinOptions.NONE,
        options: Any = None,
        version: int = 1,
    ) -> None:
        """Add an operator: `code`, `options_type` and `options` are the schema's."""
        key = code, version
        if key not in self._codes:
            operator_code = schema.OperatorCodeT()
            operator_code.builtinCode = code
            operator_code.deprecatedBuiltinCode = min(code, _LARGEST_DEPRECATED_CODE)
            operator_code.version = version
            self._model.operatorCodes.append(operator_code)
            self._codes[key] = len(self._model.operatorCodes) - 1
        operator = schema.OperatorT()
        operator.opcodeIndex = self._codes[key]
        operator.inputs = list(inputs)
        operator.outputs = list(outputs)
        operator.builtinOptionsType = options_type
        operator.builtinOptions = options
        self._graph.operators.append(operator)

    def add(
        self, left: int, right: int, output: int, activation: FusedActivation = FusedActivation.NONE
    ) -> None:
        """output = activation(left + right)."""
        options = schema.AddOptionsT()
        options.fusedActivationFunction = activation
        options.potScaleInt16 = False
        self.operator(
            schema.BuiltinOperator.ADD,
            (left, right),
            (output,),
            options_type=schema.BuiltinOptions.AddOptions,
            options=options,
            version=2,
        )

    def sign(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Give inputs and outputs the names of their tensors, for callers of the model by name."""
        named_inputs, named_outputs = (
            {self._graph.tensors[index].name: index for index in indices}
            for indices in (inputs, outputs)
        )
        self._model.signatureDefs = [signature_of(named_inputs, named_outputs)]

    def build(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The flatbuffer of the model with these inputs and outputs."""
        self._graph.inputs = list(inputs)
        self._graph.outputs = list(outputs)
        return packed(self._model)


def packed(tables: Any) -> bytes:
    """The file of a model's tables."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(tables.Pack(builder), FILE_IDENTIFIER)
    return bytes(builder.Output())


def signature_of(inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
    """The table of the signature of a model's first graph, of its tensors by their names."""
    signature = schema.SignatureDefT()
    signature.signatureKey = SIGNATURE
    signature.inputs, signature.outputs = [], []
    for listed, named in ((signature.inputs, inputs), (signature.outputs, outputs)):
        for name, index in named.items():
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = name, index
            listed.append(entry)
    return signature


def add_model(
    shape: Sequence[int],
    *,
    scales: tuple[float, float, float],
    zero_points: tuple[int, int, int] = (0, 0, 0),
    activation: FusedActivation = FusedActivation.NONE,
) -> bytes:
    """A model that adds two int8 tensors; scales and zero points of both and of the output."""
    builder = ModelBuilder()
    left, right, output = (
        builder.tensor(name, shape, scale=scale, zero_point=zero_point)
        for name, scale, zero_point in zip(
            ("left", "right", "sum"), scales, zero_points, strict=True
        )
    )
    builder.add(left, right, output, activation)
    return builder.build((left, right), (output,))

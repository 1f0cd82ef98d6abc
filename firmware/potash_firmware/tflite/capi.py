"""TensorFlow Lite's C interface, as far as a delegate needs it, and read-only copies of its data.

The declarations follow `tflite/core/c/common.h`, `c_api_types.h` and `builtin_op_data.h` of LiteRT.
cffi reads them in ABI mode, so nothing is compiled. Only this module and `delegate` handle
pointers; operators get `Node` and `Tensor`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema
from cffi import FFI

# A C pointer or structure: cffi gives its fields no static types.
CData: TypeAlias = Any
Array: TypeAlias = npt.NDArray[Any]

_DECLARATIONS = """
typedef struct { int size; int data[]; } TfLiteIntArray;
typedef struct { int size; float data[]; } TfLiteFloatArray;
typedef struct { float scale; int32_t zero_point; } TfLiteQuantizationParams;
typedef struct { int type; void *params; } TfLiteQuantization;
typedef struct {
  TfLiteFloatArray *scale;
  TfLiteIntArray *zero_point;
  int32_t quantized_dimension;
} TfLiteAffineQuantization;

typedef struct TfLiteDelegate TfLiteDelegate;
typedef struct TfLiteContext TfLiteContext;

typedef struct {
  int type;
  void *data;
  TfLiteIntArray *dims;
  TfLiteQuantizationParams params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  TfLiteDelegate *delegate;
  int buffer_handle;
  bool data_is_stale;
  bool is_variable;
  TfLiteQuantization quantization;
  void *sparsity;
  const TfLiteIntArray *dims_signature;
} TfLiteTensor;

typedef struct {
  TfLiteIntArray *inputs, *outputs, *intermediates, *temporaries;
  void *user_data;
  void *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
  TfLiteDelegate *delegate;
  bool might_have_side_effect;
} TfLiteNode;

typedef struct {
  TfLiteDelegate *delegate;
  TfLiteIntArray *nodes_to_replace, *input_tensors, *output_tensors;
} TfLiteDelegateParams;

typedef struct {
  void *(*init)(TfLiteContext *, const char *, size_t);
  void (*free)(TfLiteContext *, void *);
  int (*prepare)(TfLiteContext *, TfLiteNode *);
  int (*invoke)(TfLiteContext *, TfLiteNode *);
  const char *(*profiling_string)(const TfLiteContext *, const TfLiteNode *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external;
  void *async_kernel;
  uint64_t inplace_operator;
} TfLiteRegistration;

/* Only the first fields: the runtime makes it, a delegate reads it through a pointer. */
struct TfLiteContext {
  size_t tensors_size;
  int (*GetExecutionPlan)(TfLiteContext *, TfLiteIntArray **);
  TfLiteTensor *tensors;
  void *impl_;
  int (*ResizeTensor)(TfLiteContext *, TfLiteTensor *, TfLiteIntArray *);
  void (*ReportError)(TfLiteContext *, const char *, ...);
  int (*AddTensors)(TfLiteContext *, int, int *);
  int (*GetNodeAndRegistration)(TfLiteContext *, int, TfLiteNode **, TfLiteRegistration **);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(
      TfLiteContext *, TfLiteRegistration, const TfLiteIntArray *, TfLiteDelegate *);
  int recommended_num_threads;
};

struct TfLiteDelegate {
  void *data_;
  int (*Prepare)(TfLiteContext *, TfLiteDelegate *);
  int (*CopyFromBufferHandle)(TfLiteContext *, TfLiteDelegate *, int, TfLiteTensor *);
  int (*CopyToBufferHandle)(TfLiteContext *, TfLiteDelegate *, int, TfLiteTensor *);
  void (*FreeBufferHandle)(TfLiteContext *, TfLiteDelegate *, int *);
  int64_t flags;
  void *opaque_delegate_builder;
};
"""

# Untyped on purpose: the fields come from the declarations above, which no checker reads.
ffi: Any = FFI()
ffi.cdef(_DECLARATIONS)

# kTfLiteInitFailed: what a kernel's init returns instead of its own data.
INIT_FAILED = ffi.cast("void *", -1)


def callback(signature: str, failed: object = None) -> Callable[[Callable[..., object]], CData]:
    """Make a function one that C can call; `failed` is what C gets should it raise."""
    decorate: Callable[[Callable[..., object]], CData] = ffi.callback(signature, error=failed)
    return decorate


class Status(IntEnum):
    """`TfLiteStatus`."""

    OK = 0
    ERROR = 1


class TensorType(IntEnum):
    """`TfLiteType`, as far as numpy has the same type, under the same name."""

    FLOAT32 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    BOOL = 6
    INT16 = 7
    INT8 = 9
    FLOAT16 = 10
    FLOAT64 = 11
    UINT64 = 13
    UINT32 = 16
    UINT16 = 17


NUMPY_TYPES: Mapping[int, np.dtype[Any]] = {one: np.dtype(one.name.lower()) for one in TensorType}


class Allocation(IntEnum):
    """`TfLiteAllocationType`: where a tensor's memory comes from, as far as it matters here."""

    MMAP_RO = 1
    DYNAMIC = 4
    PERSISTENT_RO = 5
    """Computed when the graph was prepared, as a tensor's shape may be, and constant then."""


BuiltinOperator: Any = schema.BuiltinOperator
"""`TfLiteBuiltinOperator`: the operators' codes, as attributes."""

OPERATOR_CODES: Mapping[str, int] = {
    name: code for name, code in vars(BuiltinOperator).items() if not name.startswith("_")
}
OPERATOR_NAMES: Mapping[int, str] = {code: name for name, code in OPERATOR_CODES.items()}


class Padding(IntEnum):
    """`TfLitePadding`."""

    SAME = 1
    VALID = 2


class Mirror(IntEnum):
    """`TfLiteMirrorPaddingMode`."""

    REFLECT = 1
    SYMMETRIC = 2


class Activation(IntEnum):
    """`TfLiteFusedActivation`: those that are clamps."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3


# TfLiteQuantizationType
_AFFINE_QUANTIZATION = 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """Properties of a tensor that are known before a run.

    `scale` and `zero_point` hold for the whole tensor and are zero where it has none; `scales`,
    `zero_points` and `axis` are those of each channel. `constant` is the values of a constant: a
    read-only view that lives as long as the interpreter, None for an activation.
    """

    index: int
    name: str
    type: int
    shape: tuple[int, ...]
    allocation: int
    variable: bool
    scale: float
    zero_point: int
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    constant: Array | None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Options:
    """An operator's options, as far as its structure in `builtin_op_data.h` has them. Pairs are
    (down, across); `size` is that of a pool's window."""

    activation: int = Activation.NONE
    padding: int = 0
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    size: tuple[int, int] = (0, 0)
    axis: int = 0
    weights_format: int = 0
    alpha: float = 0.0
    block_size: int = 0
    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    offset: bool = False
    align_corners: bool = False
    half_pixel_centers: bool = False
    batch_dims: int = 0
    mode: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One operator of the graph; an optional input that is left out is None."""

    index: int
    operator: int
    version: int
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    options: Options | None


_WINDOW = "int padding, stride_width, stride_height"
_DILATION = "dilation_width_factor, dilation_height_factor"
_POOL = f"{_WINDOW}, filter_width, filter_height, activation;"
_BLOCK = "int block_size;"
_RESIZE = "bool align_corners, half_pixel_centers;"
_PARAMETERS: Mapping[int, str] = {
    BuiltinOperator.ADD: "int activation; bool pot_scale_int16;",
    BuiltinOperator.SUB: "int activation; bool pot_scale_int16;",
    BuiltinOperator.MUL: "int activation;",
    BuiltinOperator.CONV_2D: f"{_WINDOW}, activation, {_DILATION};",
    BuiltinOperator.DEPTHWISE_CONV_2D: f"{_WINDOW}, depth_multiplier, activation, {_DILATION};",
    BuiltinOperator.AVERAGE_POOL_2D: _POOL,
    BuiltinOperator.MAX_POOL_2D: _POOL,
    BuiltinOperator.FULLY_CONNECTED: "int activation, weights_format; bool keep_num_dims;",
    BuiltinOperator.CONCATENATION: "int axis, activation;",
    BuiltinOperator.DEPTH_TO_SPACE: _BLOCK,
    BuiltinOperator.GATHER: "int axis, batch_dims;",
    BuiltinOperator.LEAKY_RELU: "float alpha;",
    BuiltinOperator.MIRROR_PAD: "int mode;",
    BuiltinOperator.PACK: "int values_count, axis;",
    BuiltinOperator.RESIZE_BILINEAR: _RESIZE,
    BuiltinOperator.RESIZE_NEAREST_NEIGHBOR: _RESIZE,
    BuiltinOperator.SPACE_TO_DEPTH: _BLOCK,
    BuiltinOperator.STRIDED_SLICE: "int begin_mask, end_mask, ellipsis_mask, new_axis_mask;"
    "int shrink_axis_mask; bool offset;",
    BuiltinOperator.TRANSPOSE_CONV: f"{_WINDOW}, activation;",
}
"""Fields of the structures of `builtin_op_data.h` that hold the operators' options."""
for _code, _fields in _PARAMETERS.items():
    ffi.cdef(f"typedef struct {{ {_fields} }} Parameters{_code};")


def _read_options(operator: int, data: CData) -> Options:
    its = ffi.cast(f"Parameters{operator} *", data)

    def pair(down: str, across: str, default: int) -> tuple[int, int]:
        return getattr(its, down, default), getattr(its, across, default)

    # The others have the same names there.
    others = [one.name for one in fields(Options) if hasattr(its, one.name)]
    return Options(
        stride=pair("stride_height", "stride_width", 1),
        dilation=pair("dilation_height_factor", "dilation_width_factor", 1),
        size=pair("filter_height", "filter_width", 0),
        **{name: getattr(its, name) for name in others},
    )


def read_ints(array: CData) -> tuple[int, ...]:
    """The items of a `TfLiteIntArray *`, none for NULL."""
    return tuple(array.data[0 : array.size]) if array else ()


def view(tensor: CData) -> Array:
    """The memory that a `TfLiteTensor *` has now, as an array of its shape, not copied. Raises
    BufferError when it has none, or not as much as its shape needs."""
    shape = read_ints(tensor.dims)
    dtype = NUMPY_TYPES[tensor.type]
    if tensor.bytes != math.prod(shape) * dtype.itemsize:
        raise BufferError(f"a tensor of shape {shape} has {tensor.bytes} bytes")
    if tensor.bytes == 0:
        return np.empty(shape, dtype)
    if not tensor.data:
        raise BufferError(f"a tensor of shape {shape} has no memory")
    values: Array = np.frombuffer(ffi.buffer(tensor.data, tensor.bytes), dtype)
    return values.reshape(shape)


def _constant(tensor: CData) -> Array | None:
    if tensor.allocation_type != Allocation.MMAP_RO or tensor.type not in NUMPY_TYPES:
        return None
    try:
        values = view(tensor)
    except BufferError:
        # Packed or sparse: its memory does not have its shape.
        return None
    values.flags.writeable = False
    return values


def read_tensor(context: CData, index: int) -> Tensor | None:
    """Tensor `index` of the graph; None for -1, an optional input that is left out."""
    if index < 0:
        return None
    tensor = context.tensors + index
    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    axis = 0
    if tensor.quantization.type == _AFFINE_QUANTIZATION and tensor.quantization.params:
        affine = ffi.cast("TfLiteAffineQuantization *", tensor.quantization.params)
        scales = tuple(affine.scale.data[0 : affine.scale.size]) if affine.scale else ()
        zero_points = read_ints(affine.zero_point)
        axis = affine.quantized_dimension
    return Tensor(
        index=index,
        name=ffi.string(tensor.name).decode("utf-8", "replace") if tensor.name else "",
        type=tensor.type,
        shape=read_ints(tensor.dims),
        allocation=tensor.allocation_type,
        variable=tensor.is_variable,
        scale=tensor.params.scale,
        zero_point=tensor.params.zero_point,
        scales=scales,
        zero_points=zero_points,
        axis=axis,
        constant=_constant(tensor),
    )


def read_node(context: CData, index: int) -> Node:
    """Node `index` of the graph. Raises LookupError when the runtime does not know it."""
    node, registration = _node(context, index)
    operator = registration.builtin_code
    data = node.builtin_data
    return Node(
        index=index,
        operator=operator,
        version=registration.version,
        inputs=tuple(read_tensor(context, at) for at in read_ints(node.inputs)),
        outputs=tuple(read_tensor(context, at) for at in read_ints(node.outputs)),
        options=_read_options(operator, data) if operator in _PARAMETERS and data else None,
    )


def read_registration(context: CData, index: int) -> CData:
    """The registration of node `index`, which is the graph's own. Raises LookupError likewise."""
    return _node(context, index)[1]


def _node(context: CData, index: int) -> tuple[CData, CData]:
    node, registration = ffi.new("TfLiteNode **"), ffi.new("TfLiteRegistration **")
    if context.GetNodeAndRegistration(context, index, node, registration) != Status.OK:
        raise LookupError(f"the graph has no node {index}")
    return node[0], registration[0]


def read_execution_plan(context: CData) -> tuple[int, ...]:
    """The nodes in the order in which they run.

    Copied, because the next call of `GetExecutionPlan` frees the array that this one returns.
    """
    plan = ffi.new("TfLiteIntArray **")
    if context.GetExecutionPlan(context, plan) != Status.OK:
        raise LookupError("the graph gives no execution plan")
    return read_ints(plan[0])

"""TensorFlow Lite's reference kernels, for models with operators that have none, too.

The resolver of reference kernels lacks some operators (ELU, CEIL, ROUND, SEGMENT_SUM, hash tables),
and TensorFlow Lite then refuses the whole model. Such a model is loaded with the optimised kernels,
and each node whose operator has a reference kernel is given its functions, before anything is
prepared: a delegate that claims nothing sees the nodes. The functions come from the same model,
loaded with the reference resolver and with another operator in place of those that it lacks; that
never runs. An operator's kernels share `init`, so that what it made suits both.

Source: `tflite/core/c/common.h`, `tflite/schema/schema.fbs`.
"""

import re
import struct
from collections.abc import Callable, Collection
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from potash_firmware.tflite.capi import (
    OPERATOR_CODES,
    CData,
    Status,
    callback,
    ffi,
    read_execution_plan,
    read_registration,
)
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType

ALLOW_DYNAMIC_TENSORS = 1  # kTfLiteDelegateFlagsAllowDynamicTensors
"""With it, a delegate sees graphs before they are prepared."""
_LACKED = re.compile(r"Didn't find op for builtin opcode '(\w+)' version '(\d+)'")
_FUNCTIONS = ("init", "free", "prepare", "invoke", "profiling_string")
_LACKED_NAMES = "potash_lacked"
_STAND_IN = schema.BuiltinOperator.RELU
"""It has no options, and is in all versions of TensorFlow Lite."""


def load(model: bytes, threads: int | None) -> Interpreter:
    """An interpreter with reference kernels for a valid model, and with others for the operators
    that `lacked` names. Raises ValueError or RuntimeError as `Interpreter` does."""
    changed, absent = bytearray(model), set[tuple[str, int]]()
    while True:
        try:
            loaded = _load(bytes(changed), OpResolverType.BUILTIN_REF, threads)
            break
        except (ValueError, RuntimeError) as error:
            found = {(name, int(version)) for name, version in _LACKED.findall(str(error))}
            if not found - absent:
                raise
            absent |= found
            _replace(changed, found)
    if not absent:
        return loaded
    kernels: dict[tuple[int, int], dict[str, CData]] = {}

    def read(one: CData) -> None:
        kernels[one.builtin_code, one.version] = {at: getattr(one, at) for at in _FUNCTIONS}

    def write(one: CData) -> None:
        for name, function in kernels.get((one.builtin_code, one.version), {}).items():
            setattr(one, name, function)

    _visit(loaded, read)
    loaded = _load(model, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, threads)
    _visit(loaded, write)
    setattr(loaded, _LACKED_NAMES, frozenset(name for name, _ in absent))
    return loaded


def lacked(interpreter: Interpreter) -> frozenset[str]:
    """The operators of a loaded model that have no reference kernel, where it was to have those."""
    names: frozenset[str] = getattr(interpreter, _LACKED_NAMES, frozenset())
    return names


def _load(model: bytes, resolver: OpResolverType, threads: int | None) -> Interpreter:
    return Interpreter(
        model_content=model, experimental_op_resolver_type=resolver, num_threads=threads
    )


def _replace(model: bytearray, operators: Collection[tuple[str, int]]) -> None:
    """Put the stand-in where a model's table of operators has one of these, of that version."""
    lacked = {(OPERATOR_CODES[name], version) for name, version in operators}
    root = schema.Model.GetRootAs(model, 0)
    for at in range(root.OperatorCodesLength()):
        code = root.OperatorCodes(at)
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if (number, code.Version()) not in lacked:
            continue
        # Slots of the table's fields: the older code, a byte; the version; the code.
        for slot, kind, value in ((4, "<b", _STAND_IN), (8, "<i", 1), (10, "<i", _STAND_IN)):
            if offset := code._tab.Offset(slot):
                struct.pack_into(kind, model, code._tab.Pos + offset, value)


def _visit(interpreter: Interpreter, action: Callable[[CData], None]) -> None:
    """Call `action` with the registration of each node of an interpreter without delegates."""
    failures: list[BaseException] = []

    def prepare(context: CData, _delegate: CData) -> int:
        try:
            for index in read_execution_plan(context):
                action(read_registration(context, index))
        except BaseException as error:  # noqa: BLE001 - it must not unwind into native code
            failures.append(error)
            return int(Status.ERROR)
        return int(Status.OK)

    visit = callback("int(TfLiteContext *, TfLiteDelegate *)", Status.ERROR)(prepare)
    delegate = ffi.new("TfLiteDelegate *", {"Prepare": visit, "flags": ALLOW_DYNAMIC_TENSORS})
    native: Any = interpreter
    # TensorFlow Lite may call it again when tensors are resized.
    native._potash_visit = visit, delegate
    try:
        native._interpreter.ModifyGraphWithDelegate(int(ffi.cast("intptr_t", delegate)))
    finally:
        if failures:
            raise failures[0]

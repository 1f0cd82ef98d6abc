"""How many nodes of a model XNNPACK takes: the others run on TensorFlow Lite's own kernels, which
are much slower, so that a ratio to its time means little where they are many."""

from typing import Any

from potash_firmware.tflite.capi import Status, callback, ffi, read_execution_plan
from potash_firmware.tflite.interpreter import Interpreter


def nodes(model: bytes) -> int:
    """Nodes of `model`, which TensorFlow Lite accepts, that are XNNPACK's."""
    interpreter: Any = Interpreter(model_content=model, num_threads=1)
    interpreter.allocate_tensors()
    plan: list[int] = []

    @callback("int(TfLiteContext *, TfLiteDelegate *)", Status.ERROR)
    def read(context: Any, _delegate: Any) -> int:
        plan.extend(read_execution_plan(context))
        return Status.OK

    # A delegate is shown the plan that other delegates have left; this one takes nothing of it.
    delegate = ffi.new("TfLiteDelegate *", {"Prepare": read})
    interpreter._interpreter.ModifyGraphWithDelegate(int(ffi.cast("intptr_t", delegate)))
    made = {one["index"] for one in interpreter._get_ops_details() if one["op_name"] == "DELEGATE"}
    every = len(interpreter._get_ops_details()) - len(made)
    return every - len(set(plan) - made)

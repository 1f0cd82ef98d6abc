"""The check of lab 6: the operator runs on the VTA, with the bits of the reference kernels."""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType
from potash_firmware.tflite.operators import added, installed
from potash_firmware.tflite.runtime import infer, inspect
from potash_firmware.tflite.writer import ModelBuilder
from potash_firmware.vta_runtime import Runtime

NAME, MODULE = "RELU_0_TO_1", "potash_lab_operator"
SHAPE = (1, 16, 16, 1)
ALIKE = ((0.02, 0, 0), (0.02, -128, -100), (0.0078125, 3, -128), (0.5, -5, 9), (2.0, 0, 1))
"""Scales, and zero points of input and output."""


@contextmanager
def package(code: str) -> Iterator[None]:
    """The operator as a package of this process, as pip would have installed it."""
    with tempfile.TemporaryDirectory(prefix="potash-") as name:
        folder = Path(name)
        (folder / f"{MODULE}.py").write_text(code)
        information = folder / f"{MODULE}-1.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1\n"
        )
        points = f"[{added.GROUP}]\n{NAME} = {MODULE}:lower\n"
        (information / "entry_points.txt").write_text(points)
        sys.path.insert(0, name)
        installed.cache_clear()
        try:
            yield
        finally:
            sys.path.remove(name)
            sys.modules.pop(MODULE, None)
            installed.cache_clear()


def model(scales: tuple[float, float], zero_points: tuple[int, int]) -> bytes:
    """One node."""
    builder = ModelBuilder()
    x, y = (
        builder.tensor(name, SHAPE, scale=scale, zero_point=zero)
        for name, scale, zero in zip("xy", scales, zero_points, strict=True)
    )
    builder.operator(schema.BuiltinOperator.RELU_0_TO_1, [x], [y])
    return builder.build([x], [y])


def reference(content: bytes, values: Any) -> bytes:
    """TensorFlow Lite's answer."""
    resolver = OpResolverType.BUILTIN_REF
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=resolver)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], values)
    interpreter.invoke()
    answer: bytes = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tobytes()
    return answer


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    values, problems = np.arange(-128, 128, dtype=np.int8).reshape(SHAPE), []
    core = Core.create(Config.default(), 1 << 22)
    with package(Path(made["__file__"]).read_text()), Runtime(core) as runtime:
        delegate = VtaDelegate(runtime)
        for scale, *zeroes in ALIKE:
            content = model((scale, scale), (zeroes[0], zeroes[1]))
            what = f"scale {scale}, zero points {zeroes[0]} and {zeroes[1]}"
            (node,) = inspect(content, delegate)
            if node.reason is not None:
                problems.append(f"{what}: not on the VTA, as {node.reason}")
                continue
            output = bytearray(values.size)
            infer(content, values.tobytes(), memoryview(output), delegate=delegate, reference=True)
            got = np.frombuffer(output, np.int8)
            wrong = np.flatnonzero(got != np.frombuffer(reference(content, values), np.int8))
            if wrong.size:
                at = int(wrong[0])
                problems.append(f"{what}: {wrong.size} of 256 values differ, first {at - 128}")
        (node,) = inspect(model((0.1, 0.2), (0, 0)), delegate)
        if node.reason is None:
            problems.append("a node whose scales differ is not refused")
    return problems

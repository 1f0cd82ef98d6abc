"""The package that runs models: LiteRT, or tflite-runtime where that is installed.

A stand-in for tflite-runtime shows which is loaded; `-m slow` runs tflite-runtime itself.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from potash import doctor
from potash.programs.examples import Example
from potash.programs.execution import execute
from potash_firmware.bpf.engine import Engine, usable
from potash_firmware.bpf.machine import load_program
from potash_firmware.tflite import LITERT, TFLITE_RUNTIME, runtime_package
from potash_firmware.tflite.operators import convolution
from potash_firmware.tflite.runtime import ModelError
from potash_firmware.tflite.validation import operators
from support.graph_builder import GraphBuilder, Padding
from support.tflite import bench, nothing_kept, reference
from support.tflite_graphs import network

__all__ = ["nothing_kept"]

CHOSEN = "from potash_firmware.tflite import interpreter as i; print(i.Interpreter)"


@pytest.mark.parametrize(("numpy", "chosen"), [("1.26.4", "stand-in"), ("2.1.0", LITERT)])
def test_tflite_runtime_is_loaded_where_it_and_its_numpy_are_installed(
    numpy: str, chosen: str, tmp_path: Path
) -> None:
    package = tmp_path / TFLITE_RUNTIME
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "interpreter.py").write_text("Interpreter = OpResolverType = 'stand-in'\n")
    for name, version in ((TFLITE_RUNTIME, "2.14.0"), ("numpy", numpy)):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    search = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert chosen in done.stdout


@pytest.fixture
def as_tflite_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (convolution, operators):
        monkeypatch.setattr(module, "runtime_package", lambda: TFLITE_RUNTIME)


def connected(scales: float | list[float], rank: int = 2, *, convolved: bool = False) -> bytes:
    """A model of a fully connected layer, or of the convolution that is the same."""
    graph, random = GraphBuilder(), np.random.default_rng(7)
    weights = random.integers(-127, 128, (20, 30), np.int8)
    x = graph.tensor((40, 1, 1, 30) if rank == 4 else (40, 30), 0.0371, 3)
    shape = (20, 1, 1, 30) if convolved else (20, 30)
    w = graph.constant(weights.reshape(shape), scales)
    y = (
        graph.conv2d(x, w, None, 1.73, -5, padding=Padding.VALID)
        if convolved
        else graph.fully_connected(x, w, None, 1.73, -5, keep_dimensions=rank == 4)
    )
    return graph.finish([x], [y])


@pytest.mark.usefixtures("as_tflite_runtime")
def test_its_fully_connected_layers_are_scaled_as_convolutions() -> None:
    inputs = np.random.default_rng(8).integers(-128, 128, (40, 30), np.int8)
    expected = reference(connected(0.0125, 4, convolved=True), [inputs])
    with bench() as vta:
        assert vta.infer(connected(0.0125), [inputs], 800) == expected
        assert vta.reasons == [None]


@pytest.mark.usefixtures("as_tflite_runtime")
def test_a_layer_whose_output_it_would_not_write_is_refused() -> None:
    scales, inputs = [0.0125 + at / 1e4 for at in range(20)], [np.zeros((40, 30), np.int8)]
    with bench() as vta:
        assert len(vta.infer(connected(scales), inputs, 800)) == 800
        with pytest.raises(ModelError, match="which only LiteRT can run"):
            vta.infer(connected(scales, 4), inputs, 800)


def test_the_doctor_says_what_runs_models() -> None:
    found = doctor.runtime()
    assert found.meaning.startswith(runtime_package().replace("_", "-"))
    assert "potash[tflite-runtime]" in found.meaning or runtime_package() == TFLITE_RUNTIME


def need_tflite_runtime() -> None:
    if runtime_package() != TFLITE_RUNTIME:
        pytest.skip(
            "tflite-runtime is not installed: pip install 'potash[tflite-runtime]', on 3.11"
        )


@pytest.mark.slow
def test_random_networks_give_the_bytes_of_tflite_runtimes_kernels() -> None:
    need_tflite_runtime()
    refused, taken, count = 0, 0, 60
    for seed in range(count):
        its = network(seed)
        inputs = its.inputs(seed)
        with bench() as vta:
            try:
                seen = vta.infer(its.model, inputs, len(reference(its.model, inputs)))
            except ModelError as error:
                assert "which only LiteRT can run" in str(error)
                refused += 1
                continue
            assert seen == reference(its.model, inputs), (seed, its.operators)
            taken += vta.reasons.count(None)
    assert refused < count / 5 and taken > count


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add", "digits", "resnet18"])
def test_the_examples_run_on_tflite_runtime(name: str) -> None:
    need_tflite_runtime()
    example = Example.load(name)
    done = execute(
        load_program(example.program),
        example.input,
        arguments=example.arguments,
        engine=usable(Engine.NATIVE),
        show=print,
    )
    assert done.output == example.expected

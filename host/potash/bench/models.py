"""Whole models with the delegate, compared with TensorFlow Lite's own kernels.

A model is loaded once by each contender; they run alternately on the same input, the delegate and
XNNPACK in as many threads as are wanted, the reference kernels in one. First, the delegate's output
has to be bit-identical to that of the reference kernels.
Modelled cycles (`potash.vta.inference`) do not depend on this machine: they are at 100 MHz, with
the parameters of the build `pynq`.

Source of the breakdown: "VTA: An Open Hardware-Software Stack for Deep Learning", section 5, figure
16.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from potash.bench import first_load
from potash.bench.report import Result, Settings, alone, median, once, paired
from potash.models import networks, public, resnet
from potash.programs.examples import examples_folder
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.vta.inference import Inference, infer
from potash_device.vta.config import CORES, Config
from potash_device.vta.core import Control, Core, Register
from potash_device.vta.fast.simulator import DIVIDED_AT
from potash_firmware.apu.models import DRAM_BYTES, Models
from potash_firmware.tflite.capi import BuiltinOperator, Status, callback, ffi, read_execution_plan
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.interpreter import Interpreter
from potash_firmware.tflite.runtime import Model, ModelError, inspect
from potash_firmware.vta_runtime import Runtime

OUTPUT_BYTES = 1 << 20
"""Room for a model's outputs."""

RESNET, DIGITS, CALLBACK = "resnet18", "digits", "callback"
SMALLEST = "add-1"
"""The network that has nothing to compute: what is left is the call."""

CONVOLUTIONS = (BuiltinOperator.CONV_2D, BuiltinOperator.DEPTHWISE_CONV_2D)

XNNPACK, REFERENCE, FIRST_CALL = "XNNPACK", "the reference kernels", "the first call"
ALL_NODES = "all nodes of the model"

PAPER_CPU, PAPER_SPEEDUP, PAPER_TOTAL = 3.0, 40, 0.5
"""The paper's ResNet-18: seconds on the board's processor alone (more than that), how much faster
its convolutions got, and seconds with the accelerator (less than that)."""


NAMES = (
    RESNET,
    *(f"{RESNET}-{name.lower()}" for name in resnet.LAYERS),
    "add-200007",
    DIGITS,
    "mobilenet-v2",
    CALLBACK,
)
"""Networks that are measured by default, besides `PUBLIC`."""
PUBLIC = (
    "face-detection",
    "hand-landmark",
    "iris-landmark",
    "pose-detection",
    "wake-word-okay-nabu",
)
"""Networks of other people, likewise, where they can be downloaded."""
DEFAULT, OFFERED = (*NAMES, *PUBLIC), (*NAMES, *public.PUBLIC)


class IdleCore(Core):
    """A core that takes streams and does nothing with them."""

    def write(self, register: int, value: int) -> None:
        if register != Register.CONTROL or not value & Control.START:
            super().write(register, value)

    def execute(self, stream: bytes) -> None:
        pass


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named; networks that cannot be downloaded, quantised or run are left out.
    Raises PotashError where a model does not give what the reference kernels do."""
    pairs = settings.pairs
    for done, name in enumerate(settings.names):
        progress(name, done / len(settings.names))
        if name == CALLBACK:
            # What it takes that TensorFlow Lite calls a partition, which itself has nothing to do.
            model = networks.make(SMALLEST)
            yield alone(CALLBACK, "time", "ms", _besides(model, _inputs(model), pairs))
            continue
        try:
            model = _made(name)
            inputs = _inputs(model)
            wanted = _run(Model(model, delegate=None, reference=True), inputs)
        except (PotashError, ModelError) as error:
            settings.left_out(f"{name} is left out: {error}")
        else:
            yield from _model(name, model, inputs, wanted, pairs, settings.threads)


def _made(name: str) -> bytes:
    if name == DIGITS:
        return (examples_folder() / DIGITS / "model.tflite").read_bytes()
    return public.in_int8(name) if name in public.PUBLIC else networks.make(name)


def _model(
    name: str, model: bytes, inputs: bytes, wanted: bytes, pairs: int, threads: int
) -> Iterator[Result]:
    inference = infer(model, inputs)
    if inference.output != wanted:
        raise PotashError(f"{name} does not give what TensorFlow Lite's reference kernels do")
    core = Core.create(Config.default(), DRAM_BYTES, engine="fast", threads=threads)
    with Runtime(core) as runtime:
        delegate = VtaDelegate(runtime)
        nodes = [node.claimed for node in inspect(model, delegate)]
        yield paired(name, "nodes", "", ALL_NODES, [(sum(nodes), len(nodes))])
        on_xnnpack = [(nodes_on_xnnpack(model), len(nodes))]
        yield paired(name, "XNNPACK's nodes", "", ALL_NODES, on_xnnpack)
        yield paired(name, "load", "ms", XNNPACK, _loaded(model, delegate, pairs))
        yield paired(name, "repeated call", "ms", FIRST_CALL, _called(model, inputs, pairs))
        delegated = Model(model, delegate=delegate)
        # The last time, several threads have divided the stream. Nodes that are left to TensorFlow
        # Lite's fast kernels may round otherwise.
        again = [wanted] * DIVIDED_AT
        if not delegated.is_function:
            plain = Model(model, delegate=None, reference=True)
            again = [_run(plain, inputs) for _ in again]
        if [_run(delegated, inputs) for _ in again] != again and all(nodes):
            raise PotashError(f"{name} does not give the same again")
        yield from _compared(name, delegated, model, inputs, pairs, threads)
    yield alone(name, "first load", "s", [first_load.measure(model)])
    modelled = inference.modelled
    yield alone(name, "cycles", "", [modelled.cycles])
    yield alone(name, "modelled time", "ms", [modelled.seconds * 1e3])
    yield alone(name, "instructions", "", [modelled.instructions])
    rest = _besides(model, inputs, pairs)
    yield alone(name, "besides the streams", "ms", rest)
    if name == RESNET:
        found = infer(model, inputs, config=CORES["paper"])
        yield from breakdown(name, found, statistics.median(rest) / 1e3)


def _loaded(model: bytes, delegate: VtaDelegate, pairs: int) -> list[tuple[float, float]]:
    """Milliseconds of loading a model that the caches know, and of loading it with XNNPACK."""

    def load(delegate: VtaDelegate | None) -> float:
        return once(lambda: Model(model, delegate=delegate)) * 1e3

    return [(load(delegate), load(None)) for _ in range(pairs)]


def _called(model: bytes, inputs: bytes, pairs: int) -> list[tuple[float, float]]:
    """Milliseconds of a program's second call of a model, and of its first one."""
    output = memoryview(bytearray(OUTPUT_BYTES))

    def call(models: Models) -> float:
        return once(lambda: models.infer_vta(memoryview(model), memoryview(inputs), output)) * 1e3

    pair = [(call(models), call(models)) for models in (Models({}) for _ in range(pairs))]
    return [(second, first) for first, second in pair]


def _compared(
    name: str, delegated: Model, model: bytes, inputs: bytes, pairs: int, threads: int
) -> Iterator[Result]:
    contenders = {
        "": delegated,
        XNNPACK: Model(model, delegate=None, threads=threads),
        REFERENCE: Model(model, delegate=None, reference=True),
    }
    found: dict[str, list[float]] = {baseline: [] for baseline in contenders}
    for index in range(pairs):
        order = list(contenders) if index % 2 == 0 else list(reversed(contenders))
        for baseline in order:
            found[baseline].append(_milliseconds(contenders[baseline], inputs))
    for baseline, metric in ((XNNPACK, "time"), (REFERENCE, "time beside reference")):
        yield paired(
            name, metric, "ms", baseline, list(zip(found[""], found[baseline], strict=True))
        )


def _besides(model: bytes, inputs: bytes, pairs: int) -> list[float]:
    """Milliseconds of an inference without what the streams take: callbacks, packing, and the
    nodes that are left to the processor."""
    core = IdleCore(Config.default(), memoryview(bytearray(DRAM_BYTES)), engine="fast")
    with Runtime(core) as runtime:
        idle = Model(model, delegate=VtaDelegate(runtime))
        return [_milliseconds(idle, inputs) for _ in range(pairs)]


def breakdown(name: str, inference: Inference, rest: float) -> Iterator[Result]:
    """Figure 16 of the paper: convolutions, other accelerated operators, and the processor.

    The processor's time is measured, not modelled: `rest` is the seconds that this machine took for
    everything that the accelerator does not do. The paper runs the first convolution on the
    processor and does not report the time of the others; their baseline is a fortieth of the time
    that its processor took for the whole network.
    """
    clock = inference.parameters.clock
    first, *convolutions = [
        cycles / clock for node, cycles in inference.cycles if node.operator in CONVOLUTIONS
    ] or [0.0]
    others = inference.modelled.seconds - first - sum(convolutions)
    total = inference.modelled.seconds + rest
    fortieth = f"the paper's processor / {PAPER_SPEEDUP}"
    pair = sum(convolutions) * 1e3, PAPER_CPU * 1e3 / PAPER_SPEEDUP
    yield paired(name, "figure 16: convolutions", "ms", fortieth, [pair])
    yield alone(name, "figure 16: first convolution", "ms", [first * 1e3])
    yield alone(name, "figure 16: other operators", "ms", [others * 1e3])
    yield alone(name, "figure 16: processor", "ms", [rest * 1e3])
    pair = total * 1e3, PAPER_TOTAL * 1e3
    yield paired(name, "figure 16: total", "ms", "the paper's accelerated total", [pair])


def _inputs(model: bytes) -> bytes:
    """Any bytes, the same each time, as many as the model takes."""
    size = sum(tensor.bytes for tensor in Model(model, delegate=None, reference=True).inputs)
    return bytes(np.random.default_rng(size).integers(-128, 128, size, np.int8))


def _run(model: Model, inputs: bytes) -> bytes:
    output = memoryview(bytearray(OUTPUT_BYTES))
    length = model(inputs, output)
    return bytes(output[:length])


def _milliseconds(model: Model, inputs: bytes) -> float:
    """The median of runs."""
    output = memoryview(bytearray(OUTPUT_BYTES))
    return median(lambda: model(inputs, output)) * 1e3


def nodes_on_xnnpack(model: bytes) -> int:
    """The number of nodes of `model`, which TensorFlow Lite accepts, that XNNPACK takes.

    The others run on TensorFlow Lite's own kernels, which are much slower, so that a ratio to its
    time means little where they are many.
    """
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

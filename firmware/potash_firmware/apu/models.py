"""Execution of models in a worker: TensorFlow Lite, with the worker's own tensor accelerator where
a program requests it.

The accelerator is made at the first request. `Meter` counts what it does, and traces it.
"""

import base64
import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from csd_spec.program import Processor
from potash_device.trace import COMPUTE
from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_device.vta.encoding import INSTRUCTION_BYTES, InstructionError
from potash_device.vta.stream import StreamError
from potash_device.vta.timing import parameters
from potash_firmware.apu.work_counter import WorkCounter
from potash_firmware.mailbox.shared import Row, Word, unshared_row
from potash_firmware.tflite import runtime
from potash_firmware.tflite.delegate import NO_ROOM, VtaDelegate
from potash_firmware.tflite.validation import ModelError
from potash_firmware.vta_runtime import Runtime

KEPT_STREAMS = 256
"""Streams whose cycles are remembered: a model runs the same ones again and again."""

COMPILED_FROM = 2_000
"""Instructions from which on the compiled clock is worth loading, which takes a second."""


class Meter:
    """Counts models and streams in `row`; cycles, which have to be found out, if that is wanted.

    `counter` is that of the worker's jobs, where their time is modelled.
    """

    def __init__(
        self,
        row: Row | None = None,
        *,
        count_cycles: bool = False,
        counter: WorkCounter | None = None,
    ) -> None:
        self._row = unshared_row() if row is None else row
        self._count_cycles = count_cycles
        self.counter = counter

    def attach(self, core: Core) -> None:
        """Count what a tensor accelerator does from now on."""
        if COMPUTE.sink is not None:
            COMPUTE.sink("vta.core", {"config": core.config.to_mapping()})
        config = core.config
        core.observer = lambda stream, began: self._count_stream(config, stream, began)

    def model(self) -> None:
        self._row[Word.MODELS] += 1

    def _count_stream(self, config: Config, stream: bytes, began: float) -> None:
        if COMPUTE.sink is not None:
            text = base64.b64encode(stream).decode()
            COMPUTE.sink("vta.stream", {"began": began, "stream": text})
        row = self._row
        row[Word.STREAMS] += 1
        row[Word.INSTRUCTIONS] += len(stream) // INSTRUCTION_BYTES
        if self._count_cycles or self.counter is not None:
            cycles = _cycles_of(config, stream)
            row[Word.CYCLES] += cycles
            if self.counter is not None:
                self.counter.accelerated(cycles)


@functools.lru_cache(KEPT_STREAMS)
def _cycles_of(config: Config, stream: bytes) -> int:
    """The cycles of a stream; 0 for one that the clock cannot follow."""
    compiled = len(stream) >= COMPILED_FROM * INSTRUCTION_BYTES
    try:
        return timing.run(config, parameters.PYNQ, stream, compiled=compiled).cycles
    except (StreamError, InstructionError):
        return 0


RunModel = Callable[[memoryview, memoryview], int]
"""Runs a loaded model: inputs in, outputs into the second; returns how many bytes they have."""

DRAM_BYTES = 64 * 1024 * 1024
"""The tensor accelerator's shared memory; untouched pages cost nothing."""


def core_config(vta: Mapping[str, int]) -> Config:
    """The tensor accelerator that a board's configuration names."""
    return Config.from_mapping(vta) if vta else Config.default()


LARGE = 32 * 1024
"""Bytes from which on a model is worth asking for its compiled partitions; a smaller one is
compiled in less time than it takes to ask."""


KEPT, KEPT_BYTES = 4, 64 << 20
"""Models that stay loaded, and bytes that these have, at most."""


class _Kept(NamedTuple):
    """A model that stays loaded."""

    processor: Processor
    model: bytes
    run: RunModel


class Models:
    """Runs models on the APU's own cores, or on a tensor accelerator with configuration `vta`, each
    of whose streams is executed by so many `threads`.

    A model that `infer_apu` or `infer_vta` has run stays loaded for the next time, unless it keeps
    something from one run to the next, so that only the time shows the difference.

    `meter` counts what they do. `before_large` is called with a model that takes the tensor
    accelerator long to be ready for, before it is loaded.
    """

    def __init__(
        self,
        vta: Mapping[str, int],
        meter: Meter | None = None,
        before_large: Callable[[bytes], None] = lambda _: None,
        threads: int = 1,
    ) -> None:
        self._vta = vta
        self._threads = threads
        self._meter = meter if meter is not None else Meter()
        self._delegate: VtaDelegate | None = None
        self._before_large = before_large
        self._kept: list[_Kept] = []
        """In the order of their last use."""

    def infer_apu(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        """Run a model on the APU; returns the bytes of `output` written. Raises ModelError."""
        return self._infer(bytes(model), Processor.APU, inputs, output)

    def infer_vta(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        """Run a model with the tensor accelerator for what it supports. Raises ModelError."""
        return self._infer(bytes(model), Processor.VTA, inputs, output)

    def load(self, model: memoryview, processor: Processor) -> RunModel:
        """A model that is loaded once and runs many times. Raises ModelError."""
        contents = bytes(model)
        return self._runs(contents, processor, self._load_model(contents, processor))

    def _infer(
        self, model: bytes, processor: Processor, inputs: memoryview, output: memoryview
    ) -> int:
        """Run a model as if it had been loaded for this alone."""
        kept = next(
            (kept for kept in self._kept if kept.processor is processor and kept.model == model),
            None,
        )
        if kept is not None:
            self._kept.remove(kept)
            with suppress(ModelError):
                length = kept.run(inputs, output)
                if self._meter.counter is not None:
                    # An execution takes the same time in any worker.
                    self._meter.counter.moved(len(model))
                self._kept.append(kept)
                return length
            # Shapes that depend on the inputs may be others now; if it is wrong it fails again.
        loaded = self._load_model(model, processor)
        run = self._runs(model, processor, loaded)
        length = run(inputs, output)
        if loaded.is_function and loaded.as_loaded and len(model) <= KEPT_BYTES:
            self._kept.append(_Kept(processor, model, run))
            while (
                len(self._kept) > KEPT or sum(len(kept.model) for kept in self._kept) > KEPT_BYTES
            ):
                del self._kept[0]
        return length

    def _load_model(self, model: bytes, processor: Processor) -> runtime.Model:
        """Load a model; those that are kept go where there is too little memory beside them."""
        with COMPUTE.span("tflite.load", bytes=len(model), processor=processor.name):
            delegate = self._make_delegate() if processor is Processor.VTA else None
            if delegate is not None and len(model) >= LARGE:
                self._before_large(model)
            try:
                loaded = runtime.Model(model, delegate=delegate)
            except (ModelError, MemoryError):
                if not self._kept:
                    raise
            else:
                if not self._kept or delegate is None or NO_ROOM not in delegate.left.values():
                    return loaded
                del loaded
            self._kept.clear()
            return runtime.Model(model, delegate=delegate)

    def _runs(self, model: bytes, processor: Processor, loaded: runtime.Model) -> RunModel:
        counter = self._meter.counter
        if counter is not None:
            counter.moved(len(model))
            _ = loaded.macs  # while the delegate's decisions are those about this model

        def run(inputs: memoryview, output: memoryview) -> int:
            self._meter.model()
            with COMPUTE.span("tflite.invoke", processor=processor.name):
                length = loaded(inputs, output)
            if counter is not None:
                counter.ran_model(loaded.macs, loaded.input_length + length)
            return length

        return run

    def _make_delegate(self) -> VtaDelegate:
        if self._delegate is None:
            config = core_config(self._vta)
            core = Core.create(config, DRAM_BYTES, threads=self._threads)
            self._meter.attach(core)
            self._delegate = VtaDelegate(Runtime(core))
        return self._delegate

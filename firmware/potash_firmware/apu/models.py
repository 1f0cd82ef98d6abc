"""How a worker runs models: TensorFlow Lite, with its own tensor accelerator when asked.

Each worker has a tensor accelerator of its own, made when a program first wants one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from csd_spec.program import Processor
from potash_device.trace import COMPUTE
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.apu.meter import Meter
from potash_firmware.tflite import runtime
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.vta_runtime import Runtime

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


class Models:
    """Runs models on the APU's own cores or on a tensor accelerator with configuration `vta`.

    `meter` counts what they do. `before_large` is called with a model that takes the tensor
    accelerator long to be ready for, before it is loaded.
    """

    def __init__(
        self,
        vta: Mapping[str, int],
        meter: Meter | None = None,
        before_large: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._vta = vta
        self._meter = meter if meter is not None else Meter()
        self._delegate: VtaDelegate | None = None
        self._before_large = before_large
        self._last: tuple[Processor, bytes, RunModel] | None = None

    def infer_apu(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        """Run a model on the APU; returns the bytes of `output` written. Raises ModelError."""
        return self.load(model, Processor.APU)(inputs, output)

    def infer_vta(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        """Run a model with the tensor accelerator for what it supports. Raises ModelError."""
        return self.load(model, Processor.VTA)(inputs, output)

    def load(self, model: memoryview, processor: Processor) -> RunModel:
        """A model that is loaded once and runs many times. Raises ModelError."""
        with COMPUTE.span("tflite.load", bytes=len(model), processor=processor.name):
            delegate = self._accelerated() if processor is Processor.VTA else None
            if delegate is not None and len(model) >= LARGE:
                self._before_large(bytes(model))
            loaded = runtime.Model(model, delegate=delegate)
        ledger = self._meter.ledger
        if ledger is not None:
            ledger.moved(len(model))
            _ = loaded.macs  # while the delegate's decisions are those about this model

        def run(inputs: memoryview, output: memoryview) -> int:
            self._meter.model()
            with COMPUTE.span("tflite.invoke", processor=processor.name):
                length = loaded(inputs, output)
            if ledger is not None:
                ledger.ran_model(loaded.macs, loaded.input_length + length)
            return length

        return run

    def load_again(self, model: memoryview, processor: Processor) -> RunModel:
        """As `load`, which is done once for a model that is asked for again and again."""
        last = self._last
        if last is None or last[0] is not processor or last[1] != model:
            self._last = None  # which is not to take memory beside its successor
            self._last = last = processor, bytes(model), self.load(model, processor)
        elif self._meter.ledger is not None:
            self._meter.ledger.moved(len(model))  # an execution takes the same time in any worker
        return last[2]

    def _accelerated(self) -> VtaDelegate:
        if self._delegate is None:
            config = core_config(self._vta)
            core = Core.create(config, DRAM_BYTES)
            self._meter.attach(core)
            self._delegate = VtaDelegate(Runtime(core))
        return self._delegate

"""How a worker runs models: TensorFlow Lite, with its own tensor accelerator when asked.

Each worker has a tensor accelerator of its own, made when a program first wants one.
"""

from __future__ import annotations

from collections.abc import Mapping

from csd_spec.program import Processor
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.tflite import runtime
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.vta_runtime import Runtime

DRAM_BYTES = 64 * 1024 * 1024
"""The tensor accelerator's shared memory; untouched pages cost nothing."""


class Models:
    """Runs models on the APU's own cores or on a tensor accelerator with configuration `vta`."""

    def __init__(self, vta: Mapping[str, int]) -> None:
        self._vta = vta
        self._delegate: VtaDelegate | None = None

    def infer_apu(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        """Run a model on the APU; returns the bytes of `output` written. Raises ModelError."""
        return runtime.infer(model, inputs, output, delegate=None)

    def infer_vta(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        """Run a model with the tensor accelerator for what it supports. Raises ModelError."""
        return runtime.infer(model, inputs, output, delegate=self._accelerated())

    def load(self, model: memoryview, processor: Processor) -> runtime.Model:
        """A model that is loaded once and runs many times. Raises ModelError."""
        delegate = self._accelerated() if processor is Processor.VTA else None
        return runtime.Model(model, delegate=delegate)

    def _accelerated(self) -> VtaDelegate:
        if self._delegate is None:
            config = Config.from_mapping(self._vta) if self._vta else Config.default()
            self._delegate = VtaDelegate(Runtime(Core.create(config, DRAM_BYTES)))
        return self._delegate

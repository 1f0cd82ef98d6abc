"""TensorFlow Lite in workers, imported only when one runs its first model.

TensorFlow Lite and the tensor accelerator take several times the time and memory of all else that a
worker imports. So a worker imports them with its first model, from folders that it may still read.
"""

import gc
import logging
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from csd_spec.program import Processor
from potash_firmware.apu.config import Config
from potash_firmware.mailbox.counters import Row
from potash_firmware.tflite import OPERATOR_GROUP

if TYPE_CHECKING:
    from potash_firmware.apu.compile_service import CompileClient
    from potash_firmware.apu.models import Models, RunModel
    from potash_firmware.apu.work_counter import WorkCounter


log = logging.getLogger(__name__)


class Inference(Protocol):
    """What programs run models by."""

    def infer_apu(self, model: memoryview, inputs: memoryview, output: memoryview) -> int: ...
    def infer_vta(self, model: memoryview, inputs: memoryview, output: memoryview) -> int: ...
    def load(self, model: memoryview, processor: Processor) -> "RunModel": ...


class LateModels:
    """The `Models` of a worker, made when a program first runs one.

    Models count in `row`, and in `counter` where time is modelled.
    """

    def __init__(
        self,
        config: Config,
        compiler: "CompileClient",
        row: Row | None,
        counter: "WorkCounter | None",
    ) -> None:
        self._config = config
        self._compiler = compiler
        self._row = row
        self._counter = counter

    @cached_property
    def _models(self) -> "Models":
        from potash_device.vta import engines
        from potash_firmware.apu.meter import Meter
        from potash_firmware.apu.models import Models

        self._compiler.runs_models()
        engines.before_fast = self._compiler.kernels
        config, row = self._config, self._row
        count_cycles = config.count_cycles and row is not None
        meter = Meter(row, count_cycles=count_cycles, counter=self._counter)
        return Models(config.vta, meter, self._compiler.model, config.vta_threads)

    def infer_apu(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        return self._models.infer_apu(model, inputs, output)

    def infer_vta(self, model: memoryview, inputs: memoryview, output: memoryview) -> int:
        return self._models.infer_vta(model, inputs, output)

    def load(self, model: memoryview, processor: Processor) -> "RunModel":
        return self._models.load(model, processor)


def preload() -> None:
    """Import what models take, for all processes that are forked from this one."""
    gc.disable()
    try:
        import email.parser  # noqa: F401 - the entry points are read with it

        from potash_device.vta import engines  # noqa: F401
        from potash_firmware.apu import models  # noqa: F401
    except ImportError as error:  # jobs with models fail, and no others
        log.error("no model can run: %s", error)
    gc.freeze()
    gc.enable()


def preload_operators() -> tuple[str, ...]:
    """Load the operators of other packages, if there are any; what is wrong with them, a sentence
    each.

    A confined process may be unable to read the folders of such a package.
    """
    from importlib import metadata

    if not metadata.entry_points(group=OPERATOR_GROUP):
        return ()
    from potash_firmware.tflite import operators

    return operators.installed().problems

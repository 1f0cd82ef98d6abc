"""TensorFlow Lite in workers, imported only when one runs its first model.

TensorFlow Lite and the tensor accelerator take several times the time and memory of all else that a
worker imports. So a worker imports them with its first model, from folders that it may still read.
"""

import gc
import logging
from typing import TYPE_CHECKING, Protocol

from csd_spec.program import Processor
from potash_firmware.tflite import OPERATOR_GROUP

if TYPE_CHECKING:
    from potash_firmware.apu.models import RunModel


log = logging.getLogger(__name__)


class Inference(Protocol):
    """What programs run models by."""

    def infer_apu(self, model: memoryview, inputs: memoryview, output: memoryview) -> int: ...
    def infer_vta(self, model: memoryview, inputs: memoryview, output: memoryview) -> int: ...
    def load(self, model: memoryview, processor: Processor) -> "RunModel": ...


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

"""The processor time of loading a model that no cache knows, in a process of its own.

The simulator's compiled code is taken from its cache, as it is the same for all models.
"""

import subprocess
import sys
import time

from potash_device import cache
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.tflite.delegate import VtaDelegate
from potash_firmware.tflite.partition_cache import MODELS
from potash_firmware.tflite.runtime import Model
from potash_firmware.vta_runtime import Runtime
from potash_firmware.vta_runtime.schedules.search import TILINGS


def measure(model: bytes) -> float:
    """Seconds for a model. Raises CalledProcessError where it cannot be loaded."""
    command = [sys.executable, "-m", __name__]
    return float(subprocess.run(command, input=model, capture_output=True, check=True).stdout)


def main() -> None:
    """Print the seconds for the model on standard input."""
    model = sys.stdin.buffer.read()
    cache.ignored.update((MODELS.kind, TILINGS.kind))
    with Runtime(Core.create(Config.default(), DRAM_BYTES, engine="fast")) as runtime:
        delegate = VtaDelegate(runtime)
        began = time.process_time()
        Model(model, delegate=delegate)
        print(time.process_time() - began)


if __name__ == "__main__":
    main()

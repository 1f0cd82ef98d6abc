"""The interpreter of TensorFlow Lite, from the package that runs models.

Models are read by LiteRT's schema in any case.
"""

import importlib
from typing import Any

from potash_firmware.tflite import runtime_package

_module = importlib.import_module(f"{runtime_package()}.interpreter")
Interpreter: Any = _module.Interpreter
OpResolverType: Any = _module.OpResolverType

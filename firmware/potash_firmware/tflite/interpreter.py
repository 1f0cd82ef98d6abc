"""The interpreter of TensorFlow Lite, from the package that runs models.

Models are read by LiteRT's schema in any case.
"""

import importlib
from typing import TYPE_CHECKING

from potash_firmware.tflite import runtime_package

__all__ = ["Interpreter", "OpResolverType"]

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType
else:
    _module = importlib.import_module(f"{runtime_package()}.interpreter")
    Interpreter, OpResolverType = _module.Interpreter, _module.OpResolverType

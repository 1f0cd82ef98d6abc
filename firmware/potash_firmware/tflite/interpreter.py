"""The interpreter: LiteRT's, or the one of tflite-runtime 2.14, its predecessor, which is still in
use on boards.

`POTASH_TFLITE=tflite-runtime` chooses the latter (extra `tflite-runtime`; it wants numpy 1). The
schema of models is LiteRT's in both cases, as the other one has none.
"""

import importlib
import os
from importlib import metadata
from typing import Any, Final

VARIABLE: Final = "POTASH_TFLITE"
MODULES: Final = {
    "litert": "ai_edge_litert.interpreter",
    "tflite-runtime": "tflite_runtime.interpreter",
}


def _module() -> Any:
    """Raises ImportError for a name that is not among them, and where the package is missing."""
    name = os.environ.get(VARIABLE) or "litert"
    if name not in MODULES:
        raise ImportError(f"{VARIABLE} is {name!r}; there is {' and '.join(MODULES)}")
    try:
        return importlib.import_module(MODULES[name])
    except ImportError as error:
        if name == "litert":
            raise
        raise ImportError(
            f"{VARIABLE} asks for {name}, which is missing: pip install 'potash[{name}]'"
        ) from error


FLOATS: Final = os.environ.get(VARIABLE, "") != "tflite-runtime"
"""Whether the reference kernel of FULLY_CONNECTED scales its sums in floating point, as LiteRT's
does."""


def runtime_version() -> str:
    """The chosen package and its version."""
    name = os.environ.get(VARIABLE) or "litert"
    package = MODULES[name].partition(".")[0].replace("_", "-")
    return f"{package} {metadata.version(package)}"


_chosen = _module()
Interpreter: Any = _chosen.Interpreter
OpResolverType: Any = _chosen.OpResolverType

"""TensorFlow Lite on the application processor: models, and the delegate that runs them on the VTA.

`runtime` runs a model; `delegate` claims its nodes; `operators` lowers them, and `partition` makes
streams of them; `quantization` is the arithmetic, `capi` the C interface. This package itself
does not load TensorFlow Lite: importing `runtime` or `interpreter` does.
"""

import functools

OPERATOR_GROUP = "potash.operators"
"""The entry points of operators that other packages add (`operators.added`)."""

LITERT, TFLITE_RUNTIME = "ai_edge_litert", "tflite_runtime"


@functools.cache
def runtime_package() -> str:
    """The package that runs models: tflite-runtime, LiteRT's predecessor, where it is installed
    with the NumPy that it was built for, else LiteRT."""
    from importlib import metadata  # it takes its time to load

    try:
        metadata.version(TFLITE_RUNTIME)
    except metadata.PackageNotFoundError:
        return LITERT
    return TFLITE_RUNTIME if metadata.version("numpy").startswith("1.") else LITERT

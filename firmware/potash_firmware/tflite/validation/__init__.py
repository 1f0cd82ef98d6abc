"""What a model must be before native code sees it: the graph (`model`), and each operator of those
that the delegate has kernels for (`operators`)."""

from potash_firmware.tflite.validation.model import ModelError, validate

__all__ = ["ModelError", "validate"]

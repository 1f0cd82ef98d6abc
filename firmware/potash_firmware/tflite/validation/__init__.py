"""Validation of a model before native code reads it: the graph (`model`), and each operator that
the delegate has kernels for (`operators`)."""

from potash_firmware.tflite.validation.model import ModelError, validate

__all__ = ["ModelError", "validate"]

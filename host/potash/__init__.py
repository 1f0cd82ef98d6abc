"""Potash: a full-system emulated NVMe computational storage device.

`potash.sdk` is for users of a device; it is imported when it is first used, since commands and
guests that do without it start sooner.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "1.0.0"  # that of potash_firmware, which is not in a guest

if TYPE_CHECKING:
    from potash import sdk as sdk


def __getattr__(name: str) -> ModuleType:
    if name == "sdk":
        return import_module("potash.sdk")
    raise AttributeError(f"module 'potash' has no attribute {name!r}")

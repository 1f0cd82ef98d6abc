"""Potash: a full-system emulated NVMe computational storage device.

`potash.sdk` is for users of a device, `potash.aio` for those of them with an event loop; `dataset`,
`potash.polars` and `potash.dask` give tables on drives to DataFrame libraries. They are imported
when they are first used, since commands and guests that do without them start sooner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"  # that of potash_firmware, which is not in a guest

if TYPE_CHECKING:
    from potash import aio as aio
    from potash import sdk as sdk


def __getattr__(name: str) -> Any:
    if name in ("aio", "sdk"):
        return import_module(f"potash.{name}")
    if name not in ("dask", "dataset", "polars"):
        raise AttributeError(f"module 'potash' has no attribute {name!r}")
    try:
        if name == "dataset":
            return import_module("potash.dataframes.dataset").dataset
        return import_module(f"potash.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"potash.{name} needs the package {error.name}, which is not installed:"
            f" pip install 'potash[{'duckdb' if name == 'dataset' else name}]'",
            name=error.name,
        ) from None

"""The cache of the compiled code of the tensor accelerator's simulator. Importing this does not
import numba, as `fast.compiling` does."""

from pathlib import Path

from potash_device.cache import Store


def versions() -> tuple[str, ...]:
    """Versions on which compiled code depends, besides its sources. numba distinguishes processors
    itself."""
    from importlib import metadata  # which the device does without until a program runs

    return tuple(map(metadata.version, ("numba", "llvmlite")))


STORE = Store("vta", [Path(__file__).parent], versions)

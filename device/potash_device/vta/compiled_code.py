"""The cache of the compiled code of the tensor accelerator's simulator. Importing this does not
import numba, as `fast.compiling` does."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from potash_device.cache import Store


def versions() -> Iterator[str]:
    """The versions on which compiled code depends, besides its sources: the modules that have them,
    as `importlib.metadata` takes longer than all else that loads compiled code. numba distinguishes
    processors itself.

    Raises ModuleNotFoundError or OSError.
    """
    for package in ("numba", "llvmlite"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{package} is not installed")
        yield Path(spec.origin).with_name("_version.py").read_text(encoding="utf-8")


STORE = Store("vta", [Path(__file__).parent], versions)

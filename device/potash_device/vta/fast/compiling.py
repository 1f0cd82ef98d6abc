"""Turning Python into machine code, and where the machine code is kept.

numba loads what it finds, so it is given a folder where nobody else can write. It looks at the file
of the function that it compiles and not at those that it calls, so the folder's name is a digest of
all sources of the packages that compile.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba
from numba.core import caching
from numba.extending import intrinsic as _intrinsic
from numba.extending import overload as _overload

from potash_device.cache import Store

# The assembler is for the tiles' inline assembly.
llvmlite.binding.initialize_native_asmparser()

_settings: Any = numba.config

_Function = TypeVar("_Function", bound=Callable[..., Any])

Number = Any
"""A machine integer, in compiled code."""
Flag = Any
"""A truth value there."""

OPTIONS: Any = {"nogil": True, "boundscheck": False, "error_model": "numpy", "_nrt": False}
"""Nothing waits for the GIL, nothing is checked, and arrays are not counted as references, which
would cost more than a small tile does; so compiled code cannot make arrays either."""


def compiled(function: _Function, inline: bool = False) -> _Function:
    """Compile when first called; the GIL is free while it runs, and nothing is checked in it.

    `inline` has the compiled code be part of what calls it.
    """
    folder = cache_folder()
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = str(folder or "")
    try:
        result: _Function = numba.njit(cache=folder is not None, forceinline=inline, **OPTIONS)(
            function
        )
    finally:
        _settings.CACHE_DIR = before
    return result


def inlined(function: _Function) -> _Function:
    """Compile into whatever compiled function calls it."""
    return compiled(function, inline=True)


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose LLVM code the decorated one emits; constants reach it as literals."""
    result: Callable[..., Any] = _intrinsic(prefer_literal=True)(function)
    return result


def implements(function: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """The decorated function gives the implementation of `function` for arguments' types."""
    # A strict one would need the same annotations as what it returns.
    result: Callable[[_Function], _Function] = _overload(
        function, jit_options=OPTIONS, strict=False
    )
    return result


_DEVICE = Path(__file__).parents[2]
STORE = Store(
    "vta",
    [_DEVICE / "vta", _DEVICE / "timing"],
    lambda: (numba.__version__, llvmlite.__version__),
)
"""What numba keeps, which tells processors apart itself."""


@functools.cache
def cache_folder() -> Path | None:
    """Where compiled code is kept; None where there is no place that is the user's alone."""
    folder = STORE.directory()
    if folder is not None:
        try:
            os.utime(folder)
        except OSError:
            _only_read()
    return folder


def _only_read() -> None:
    """Have numba take compiled code from a folder that it cannot write to, and leave none there."""

    def nothing(*_: object) -> None:
        return

    # It writes a file to see whether it can, and believes of no folder where it cannot.
    setattr(caching._CacheLocator, "ensure_cache_path", nothing)  # noqa: B010 - for mypy, a method
    setattr(caching.Cache, "save_overload", nothing)  # noqa: B010

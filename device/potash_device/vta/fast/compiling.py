"""Turning Python into machine code, and where the machine code is kept.

What was compiled is loaded as it lies there, so it may lie only where nobody else can write: a
folder of the user's own, in the cache that the XDG Base Directory Specification names. numba looks
at the file of the function that it compiles and not at those that it calls, so the folder's name
is a digest of all sources that compiled code comes from.
"""

import functools
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba
from numba.core import caching
from numba.extending import intrinsic as _intrinsic
from numba.extending import overload as _overload

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

FORGET_AFTER = 30 * 24 * 3600.0
"""Seconds after which what another version compiled is removed."""


def compiled(function: _Function) -> _Function:
    """Compile when first called; the GIL is free while it runs, and nothing is checked in it."""
    folder = cache_folder()
    before = _settings.CACHE_DIR
    _settings.CACHE_DIR = str(folder or "")
    try:
        result: _Function = numba.njit(cache=folder is not None, **OPTIONS)(function)
    finally:
        _settings.CACHE_DIR = before
    return result


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


@functools.cache
def cache_folder() -> Path | None:
    """Where compiled code is kept; None where there is no place that is the user's alone."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
        parent = base / "potash" / "vta"
        folder = parent / _digest()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (_private(parent) and _private(folder)):
            return None
    except (OSError, RuntimeError):
        return None
    try:
        os.utime(folder)
        _forget(parent)
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


def _private(folder: Path) -> bool:
    """Whether nobody else can put anything into `folder`; makes it so where it is ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return True


def _digest() -> str:
    """Names the sources, and the compiler that translates them."""
    seen = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        seen.update(path.name.encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()[:16]


def _forget(parent: Path) -> None:
    for other in parent.iterdir():
        if other.stat().st_mtime < time.time() - FORGET_AFTER:
            shutil.rmtree(other, ignore_errors=True)

"""The compiled code of the page-mapped flash translation layer, as Python calls it.

It is placed in memory as the object file that the cache has. numba, whose import takes longer and
more memory than all else that a modelled drive needs, is imported only to compile it, and LLVM only
on processors where `placing` cannot do without.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _cffi_backend import FFI  # `cffi` imports a parser of C, too, which takes 20 ms

from potash_device import object_code, placing
from potash_device.cache import Store
from potash_device.flash import state as flash
from potash_device.vta import compiled_code
from potash_firmware.ftl.words import Words


def _versions() -> tuple[str, ...]:
    return (*compiled_code.versions(), placing.processor())


STORE = Store(
    "timing",
    [
        Path(__file__).parent,
        Path(flash.__file__).parent,
        Path(compiled_code.__file__).parent / "fast/compiling.py",
    ],
    _versions,
)
NAME = "page"
"""The entry of the store: a symbol, a zero byte and an object file."""

_KIND = "int32_t(*)(int64_t, int64_t, int64_t, int64_t, int64_t)"
_loaded: list[Any] = []
"""Code that is to stay in this process."""

Native = Callable[[int, int, int, int, int], int]
"""Compiled code: the addresses of its result and of an error, of the words of a state and of a
batch, and the first request. It gives 0, or else there is an error."""


def bound(state: Words, batch: Words) -> Callable[[int], int]:
    """A function that serves the requests of a batch from an index on, as `page.run` does, whose
    result is then in `batch.results`. It gives 0, or else there was an error. The words are the
    caller's to keep."""
    return functools.partial(_native(), *batch.pointers, state.address, batch.address)


def run(state: Words, batch: Words, index: int = 0) -> int:
    """Serve the requests once; the result."""
    if bound(state, batch)(index):
        raise RuntimeError("compiled code has failed")
    return batch.results[0]


def is_compiled() -> bool:
    """True if the code is in the cache."""
    return STORE.load(STORE.name(NAME.encode())) is not None


@functools.cache
def _native() -> Native:
    name = STORE.name(NAME.encode())
    contents = STORE.load(name)
    if contents is None:
        from potash_firmware.ftl import page  # which imports numba

        symbol, code = page.object_file()
        contents = symbol.encode() + b"\0" + code
        STORE.keep(name, contents)
    encoded, _, code = contents.partition(b"\0")
    symbol = encoded.decode()
    try:
        address, owner = placing.place(code, symbol)
    except placing.CannotPlaceError:
        owner = object_code.load(code)
        address = owner.get_function_address(symbol)
    _loaded.append(owner)
    # ctypes takes half as long again for a call.
    native: Native = FFI().cast(_KIND, address)
    return native

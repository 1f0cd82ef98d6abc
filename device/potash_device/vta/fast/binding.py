"""Calls of compiled code with arguments that stay the same.

numba converts the arguments of each call from Python's objects, which takes longer than a short
stream does: 5 µs for thirty arrays. Here, they are converted once, into memory that the function
reads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba._dispatcher import compute_fingerprint
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import NativeValue, models, register_model, unbox

from potash_device.vta.fast.compiling import Number, entry, intrinsic


class Address(types.Opaque):
    """The type of the address of arguments that have the type `content`."""

    def __init__(self, content: Any) -> None:
        self.content = content
        super().__init__(f"Address({content})")


register_model(Address)(models.OpaqueModel)


@unbox(Address)  # type: ignore[no-untyped-call, untyped-decorator]
def _unbox(_kind: Any, number: Any, context: Any) -> NativeValue:
    return NativeValue(context.pyapi.long_as_voidptr(number))  # type: ignore[no-untyped-call]


@intrinsic
def arguments_at(_typing: Any, address: Any) -> Any:
    """The arguments at an `Address`."""

    def load(context: Any, builder: Any, _: Any, values: Any) -> Any:
        model = context.data_model_manager[address.content]
        place = builder.bitcast(values[0], model.get_data_type().as_pointer())
        return model.load_from_data_pointer(builder, place)

    return address.content(address), load


@intrinsic
def _put(_typing: Any, address: Any, arguments: Any) -> Any:
    def store(context: Any, builder: Any, _: Any, values: Any) -> Any:
        model = context.data_model_manager[arguments]
        place = builder.inttoptr(values[0], model.get_data_type().as_pointer())
        builder.store(model.as_data(builder, values[1]), place)
        return context.get_dummy_value()

    return types.void(address, arguments), store


@entry
def _keep(address: Number, arguments: Any) -> None:
    _put(address, arguments)


class Bound:
    """The call of an entry whose first parameter is an `Address`, and the others integers."""

    def __init__(self, function: Any, arguments: NamedTuple) -> None:
        key = function, compute_fingerprint(arguments)
        if key not in _CALLS:
            _CALLS[key] = _call(function, arguments)
        self._call, size = _CALLS[key]
        # What is there points to the arrays in `arguments`.
        self._kept = np.zeros(size // 8 + 1, np.int64), arguments
        self._address = self._kept[0].ctypes.data
        _keep(self._address, arguments)

    def __call__(self, *numbers: int) -> int:
        return self._call(self._address, *numbers)


_CALLS: dict[tuple[Any, bytes], tuple[Callable[..., int], int]] = {}
"""Results of `_call`, as numba takes 200 µs for the type of thirty arrays."""


def _call(function: Any, arguments: NamedTuple) -> tuple[Callable[..., int], int]:
    """A function for arguments of these types, and the bytes that they take."""
    kind = Address(numba.typeof(arguments))  # type: ignore[no-untyped-call]
    context = cpu_target.target_context
    parameters = function.py_func.__code__.co_argcount - 1
    call = function.compile((kind, *[types.int64] * parameters))
    return call, context.get_abi_sizeof(context.get_data_type(kind.content))

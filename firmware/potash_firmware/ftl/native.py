"""The state of a drive as compiled code holds it, in one array.

To hand over the thirty arrays of a state takes 3 µs, ten times as long as to serve a request. So
they are handed over once, and compiled code finds their addresses and sizes in this array. Its
functions that are not inlined are given the address of the array alone, as a call with all arrays
costs as much as several pages, and LLVM inlines it, which took it twice as long.
"""

from typing import Any

import numba
import numpy as np
from numba.core import types

from potash_device.flash.profile import Profile, Rate
from potash_device.vta.fast.compiling import intrinsic
from potash_firmware.ftl.state import new_state

_SMALLEST = Profile(
    channels=1, dies=1, planes=1, blocks=8, pages=1, page_bytes=4096, program_pages=1,
    capacity=4096, read_ns=(1,), program_ns=(1,), erase_ns=1, bus=Rate(1, 1), link=Rate(1, 1),
)  # fmt: skip
STATE: Any = numba.typeof(new_state(_SMALLEST, [0]))  # type: ignore[no-untyped-call]
"""The type of a state in compiled code, which is the same for all drives."""
WORDS = 512
"""Elements of the array, of 8 bytes: more than a state takes."""


def _pointer(context: Any, builder: Any, address: Any) -> Any:
    kind = context.get_value_type(STATE)
    if context.get_abi_sizeof(kind) > WORDS * np.int64().itemsize:
        raise TypeError("a drive's state has more arrays than there is room for")
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def loaded(typing: Any, address: Any) -> Any:
    """The state that `store` has left at an address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, arguments[0]))

    return STATE(types.int64), generate


@intrinsic
def store(typing: Any, state: Any, address: Any) -> Any:
    """Leave a state at an address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        builder.store(arguments[0], _pointer(context, builder, arguments[1]))
        return context.get_dummy_value()

    return types.void(STATE, types.int64), generate

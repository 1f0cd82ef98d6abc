"""The state of a drive as compiled code holds it, in one array.

To hand over the thirty arrays of a state takes 3 µs, ten times as long as to serve a request. So
they are handed over once, and compiled code finds their addresses and sizes in this array. Its
functions hand over the address of it alone.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import imputils, types
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model

from potash_device.flash.profile import Profile, Rate
from potash_device.vta.fast.compiling import intrinsic
from potash_firmware.ftl.state import new_state

SMALLEST = Profile(
    channels=1, dies=1, planes=1, blocks=8, pages=1, page_bytes=4096, program_pages=1,
    capacity=4096, read_ns=(1,), program_ns=(1,), erase_ns=1, bus=Rate(1, 1), link=Rate(1, 1),
)  # fmt: skip
"""A drive for which the same code is compiled as for any other."""
STATE: Any = numba.typeof(new_state(SMALLEST, [0]))  # type: ignore[no-untyped-call]
"""The type of a state in compiled code, which is the same for all drives."""
_INDEX: Any = ir.IntType(32)
WORDS = 512
"""Elements of the array, of 8 bytes: more than a state takes."""


_lowers: Any = imputils.lower_getattr_generic


class Pointer(types.Type):
    """The address of a named tuple of arrays, whose attributes compiled code loads as it needs
    them: handed over by value, they are hundreds of arguments of each call."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(f"Pointer({target.instance_class.__name__})")


@register_model(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        target = manager.lookup(kind.target).get_value_type()
        super().__init__(manager, kind, target.as_pointer())  # type: ignore[no-untyped-call]


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Pointer

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        found = kind.target.types[kind.target.fields.index(name)]
        return Pointer(found) if isinstance(found, types.BaseNamedTuple) else found


@_lowers(Pointer)  # type: ignore[untyped-decorator]
def _attribute(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    index = kind.target.fields.index(name)
    address, found = _part(builder, value, index), kind.target.types[index]
    if isinstance(found, types.BaseNamedTuple):
        return address
    return _load(builder, address, context.get_value_type(found))


def _load(builder: Any, address: Any, kind: Any) -> Any:
    """Load an array's address and sizes, each by itself. They never change, so LLVM need not load
    them again after a store."""
    if not isinstance(kind, ir.types.Aggregate):
        number = builder.load(address)
        number.set_metadata("invariant.load", builder.module.add_metadata([]))
        return number
    value = ir.Constant(kind, ir.Undefined)
    for index, part in enumerate(kind.elements):
        loaded = _load(builder, _part(builder, address, index), part)
        value = builder.insert_value(value, loaded, index)
    return value


def _part(builder: Any, address: Any, index: int) -> Any:
    """The address of a part."""
    return builder.gep(address, [_INDEX(0), _INDEX(index)], inbounds=True)


def _pointer(context: Any, builder: Any, address: Any) -> Any:
    kind = context.get_value_type(STATE)
    if context.get_abi_sizeof(kind) > WORDS * np.int64().itemsize:
        raise TypeError("a drive's state has more arrays than there is room for")
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def loaded(typing: Any, address: Any) -> Any:
    """The state that `store` has left at an address, as a `Pointer`."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return _pointer(context, builder, arguments[0])

    return Pointer(STATE)(types.int64), generate


@intrinsic
def store(typing: Any, state: Any, address: Any) -> Any:
    """Leave a state at an address."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        builder.store(arguments[0], _pointer(context, builder, arguments[1]))
        return context.get_dummy_value()

    return types.void(STATE, types.int64), generate

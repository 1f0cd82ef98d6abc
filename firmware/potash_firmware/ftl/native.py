"""The state of a drive and a batch of requests as compiled code finds them, by one address each.

To hand over the thirty arrays of a state takes 3 µs, ten times as long as to serve a request. So
their addresses and sizes are in an array of words (`words.Words`), and functions hand over the
address of that alone.
"""

from typing import Any

import numba
from llvmlite import ir
from numba.core import imputils, types
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model

from potash_device.vta.fast.compiling import intrinsic
from potash_firmware.ftl.words import sample_batch, sample_state

_STATE: Any = numba.typeof(sample_state())  # type: ignore[no-untyped-call]
"""The type of a state in compiled code, which is the same for all drives."""
_BATCH: Any = numba.typeof(sample_batch())  # type: ignore[no-untyped-call]
_INDEX: Any = ir.IntType(32)

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


def _at(target: Any) -> Any:
    """A function from an address to the `Pointer` there."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            kind = context.get_value_type(target)
            return builder.inttoptr(arguments[0], kind.as_pointer())

        return Pointer(target)(types.int64), generate

    return pointer


state, batch = _at(_STATE), _at(_BATCH)

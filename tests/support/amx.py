"""A model of AMX's instructions, which takes their place on the path `amx-model`: any processor with
AVX-512 VNNI executes all code of the path `amx` but these.

numba keeps code that it has compiled until the sources of the VTA change: after a change here,
remove that.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from potash_device.vta.fast.emitting import (
    I8,
    I16,
    I32,
    I64,
    LANES,
    Value,
    integer,
    load,
    scaled,
    shuffle,
    store,
)
from potash_device.vta.fast.matrix import (
    BYTES_AT,
    CONFIGURATION_BYTES,
    INSTRUCTIONS,
    PALETTE,
    REGISTER_BYTES,
    ROW_BYTES,
    ROWS_AT,
    Assembly,
)
from potash_device.vta.fast.paths import BLOCK, OFFERS, VNNI512, AmxModel, Offer

MODEL = "amx-model"
REGISTERS = 8
LOSS_AT = REGISTERS * REGISTER_BYTES + CONFIGURATION_BYTES


class Model(Assembly):
    """Emits a model of the instructions, with the registers at address `registers`, followed by
    their configuration. What the processor would refuse does nothing. The configuration is followed
    by the number of instructions after which the registers lose their contents, once."""

    def __init__(self, builder: Any, registers: Value) -> None:
        super().__init__(builder)
        self._registers = registers

    def configure(self, address: Value) -> None:
        self._call("configure", self._configure, address)

    def release(self) -> None:
        self._call("release", self._release)

    def zero(self, tile: int) -> None:
        self._call("zero", self._zero, integer(tile))

    def load(self, tile: int, address: Value, stride: Value) -> None:
        self._call("load", self._load, integer(tile), address, stride)

    def store(self, tile: int, address: Value, stride: Value) -> None:
        self._call("store", self._store, integer(tile), address, stride)

    def multiply(self, sums: int, inputs: int, weights: int) -> None:
        self._call("multiply", self._multiply, *map(integer, (sums, inputs, weights)))

    def _call(self, name: str, body: Callable[..., None], *operands: Value) -> None:
        module, name = self._builder.module, f"potash_amx_{name}"
        arguments = [self._registers, *operands]
        function = module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [I64] * len(arguments))
            function = ir.Function(module, kind, name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            builder = ir.IRBuilder(function.append_basic_block("entry"))
            self._lose(builder, function.args[0])
            body(builder, *function.args)
            builder.ret_void()
        self._builder.call(function, arguments)

    @staticmethod
    def _lose(builder: Any, registers: Value) -> None:
        left = builder.sub(load(builder, registers, LOSS_AT, I64), integer(1))
        store(builder, left, registers, LOSS_AT)
        with builder.if_then(builder.icmp_signed("==", left, integer(0))):
            _clear(builder, registers, REGISTERS * REGISTER_BYTES)

    @staticmethod
    def _configure(builder: Any, registers: Value, address: Value) -> None:
        _clear(builder, registers, REGISTERS * REGISTER_BYTES)
        own = builder.add(registers, integer(REGISTERS * REGISTER_BYTES))
        _copy(builder, own, address, integer(CONFIGURATION_BYTES))

    @staticmethod
    def _release(builder: Any, registers: Value) -> None:
        _clear(builder, registers, REGISTERS * REGISTER_BYTES + CONFIGURATION_BYTES)

    @staticmethod
    def _zero(builder: Any, registers: Value, tile: Value) -> None:
        _clear(builder, _register(builder, registers, tile), REGISTER_BYTES)

    @classmethod
    def _load(cls, builder: Any, registers: Value, tile: Value, *memory: Value) -> None:
        cls._zero(builder, registers, tile)
        for own, other, size in cls._rows(builder, registers, tile, *memory):
            _copy(builder, own, other, size)

    @classmethod
    def _store(cls, builder: Any, registers: Value, tile: Value, *memory: Value) -> None:
        for own, other, size in cls._rows(builder, registers, tile, *memory):
            _copy(builder, other, own, size)

    @staticmethod
    def _rows(builder: Any, registers: Value, tile: Value, address: Value, stride: Value) -> Any:
        """The address of each row of a register, its address in memory and its size, in a loop."""
        rows, size = _shape(builder, registers, tile)
        with cgutils.for_range(builder, rows) as row:
            own = _register(builder, registers, tile, row.index)
            yield own, builder.add(address, builder.mul(row.index, stride)), size

    @staticmethod
    def _multiply(
        builder: Any, registers: Value, sums: Value, inputs: Value, weights: Value
    ) -> None:
        shapes = [_shape(builder, registers, tile) for tile in (sums, inputs, weights)]
        (rows, columns), (rows_of_inputs, depth), (quads, columns_of_weights) = shapes
        fit = builder.and_(
            builder.icmp_unsigned("==", rows, rows_of_inputs),
            builder.and_(
                builder.icmp_unsigned("==", columns, columns_of_weights),
                builder.icmp_unsigned("==", depth, scaled(builder, quads, 4)),
            ),
        )
        bytes64, wide = ir.VectorType(I8, 64), ir.VectorType(I32, 64)
        with (
            builder.if_then(fit),
            cgutils.for_range(builder, rows) as row,
            cgutils.for_range(builder, quads) as quad,
        ):
            place = _register(builder, registers, sums, row.index)
            four = builder.add(
                _register(builder, registers, inputs, row.index), scaled(builder, quad.index, 4)
            )
            lane = builder.insert_element(
                ir.Constant(LANES, ir.Undefined), load(builder, four, 0, I32), ir.Constant(I32, 0)
            )
            given = builder.bitcast(shuffle(builder, lane, lane, [0] * BLOCK), bytes64)
            block = load(builder, _register(builder, registers, weights, quad.index), 0, bytes64)
            products = builder.mul(builder.sext(given, wide), builder.sext(block, wide))
            total = load(builder, place, 0)
            for first in range(4):
                quarter = shuffle(builder, products, products, range(first, 64, 4))
                total = builder.add(total, quarter)
            store(builder, total, place)


def _register(builder: Any, registers: Value, tile: Value, row: Value | None = None) -> Value:
    """The address of a register, or of a row of it."""
    place = builder.add(registers, scaled(builder, tile, REGISTER_BYTES))
    return place if row is None else builder.add(place, scaled(builder, row, ROW_BYTES))


def _shape(builder: Any, registers: Value, tile: Value) -> tuple[Value, Value]:
    """Rows of a register, and bytes of each; none where no configuration of palette 1 is loaded."""
    own = builder.add(registers, integer(REGISTERS * REGISTER_BYTES))
    rows = load(builder, builder.add(own, tile), ROWS_AT, I8)
    size = load(builder, builder.add(own, scaled(builder, tile, 2)), BYTES_AT, I16)
    palette = load(builder, own, 0, I8)
    loaded = builder.icmp_unsigned("==", palette, ir.Constant(I8, PALETTE))
    rows = builder.select(loaded, builder.zext(rows, I64), integer(0))
    return rows, builder.zext(size, I64)


def _clear(builder: Any, address: Value, size: int) -> None:
    place = builder.inttoptr(address, I8.as_pointer())
    cgutils.memset(builder, place, integer(size), 0)  # type: ignore[no-untyped-call]


def _copy(builder: Any, to: Value, source: Value, size: Value) -> None:
    to, source = (builder.inttoptr(address, I8.as_pointer()) for address in (to, source))
    cgutils.raw_memcpy(builder, to, source, size, 1)  # type: ignore[no-untyped-call]


OFFERS[MODEL] = Offer(AmxModel, VNNI512)
INSTRUCTIONS[AmxModel] = lambda builder, addresses: Model(builder, addresses.registers)

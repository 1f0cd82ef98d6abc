"""The processor's peak rate of multiplications: a loop of multiplying instructions alone.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VPDPBUSD and VPMADDWD.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types

from potash_device.vta.fast.compiling import Number, entry, intrinsic
from potash_device.vta.fast.emitting import I32, I64
from potash_device.vta.fast.paths import processor_features

REGISTERS = 12
"""Independent vectors, so that no instruction waits for the one before it."""
UNROLLED = 4


class Peak(NamedTuple):
    """An instruction that multiplies and adds, as assembly from two vectors to a third."""

    name: str
    features: frozenset[str]
    assembly: str
    lanes: int
    products: int
    """Products per lane and instruction."""

    @property
    def operations(self) -> int:
        """Multiplications and additions of an iteration."""
        return 2 * self.products * self.lanes * REGISTERS * UNROLLED


PEAKS = (
    Peak("vpdpbusd", frozenset({"avx512f", "avx512vnni"}), "vpdpbusd $1, $1, $0", 16, 4),
    Peak("vpdpbusd", frozenset({"avxvnni"}), "{vex} vpdpbusd $1, $1, $0", 8, 4),
    Peak("vpmaddwd", frozenset({"avx512f", "avx512bw"}), "vpmaddwd $1, $1, $0", 16, 2),
    Peak("vpmaddwd", frozenset({"avx2"}), "vpmaddwd $1, $1, $0", 8, 2),
)
"""All such instructions, the best first."""


def best() -> int | None:
    """The index in `PEAKS` of the best instruction that this processor has; None where it has
    none."""
    features = processor_features()
    return next((at for at, peak in enumerate(PEAKS) if peak.features <= features), None)


@intrinsic
def _iterations(typing: Any, which: Any, count: Any) -> Any:
    peak = PEAKS[which.literal_value]
    signature = types.int64(which, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(I32, peak.lanes)
        ones = ir.Constant(kind, [1] * peak.lanes)
        before = builder.block
        loop = builder.function.append_basic_block("iteration")
        after = builder.function.append_basic_block("iterated")
        builder.branch(loop)
        builder.position_at_end(loop)
        iteration = builder.phi(I64)
        iteration.add_incoming(ir.Constant(I64, 0), before)
        vectors = [builder.phi(kind) for _ in range(REGISTERS)]
        for vector in vectors:
            vector.add_incoming(ones, before)
        code = ir.InlineAsm(ir.FunctionType(kind, [kind, kind]), peak.assembly, "=x,x,0", True)
        added: list[Any] = list(vectors)
        for _ in range(UNROLLED):
            added = [builder.call(code, [ones, vector]) for vector in added]
        following = builder.add(iteration, ir.Constant(I64, 1))
        iteration.add_incoming(following, loop)
        for vector, result in zip(vectors, added, strict=True):
            vector.add_incoming(result, loop)
        builder.cbranch(builder.icmp_signed("<", following, arguments[1]), loop, after)
        builder.position_at_end(after)
        return following

    return signature, generate


def _of(which: int) -> Callable[[Number], Number]:
    @entry
    def iterate(count: Number) -> Number:
        return _iterations(which, count)

    return iterate


iterations = tuple(map(_of, range(len(PEAKS))))
"""For each of `PEAKS`: execute so many iterations of it."""

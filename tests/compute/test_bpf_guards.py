"""What compiled code takes for proven is true: programs that once made it believe otherwise."""

from collections.abc import Callable

import pytest

from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import EngineUnavailable, FaultKind
from potash_firmware.bpf.native.writer import verify
from support import bpf_attacks as attacks
from support.bpf import LAYOUT
from support.bpf_native import own_cache
from support.bpf_programs import Case, Observed, observe

__all__ = ["own_cache"]

INPUT, OUTPUT = 0x1000_1000, 0x1000_2000
INSIDE, ABOVE, BELOW = 8, LAYOUT.size - 4096 + 16, -4096 - 64
"""From the input: in the arena, behind it, in front of it."""


def case(code: bytes, limit: int = 100_000) -> Case:
    return Case(code, 0, (INPUT, OUTPUT, 4096, 2), bytes(LAYOUT.size), limit)


def same(case: Case) -> Observed:
    seen = observe(Engine.NATIVE, case)
    assert seen == observe(Engine.INTERPRETER, case)
    return seen


@pytest.mark.parametrize("store", [False, True], ids=["load", "store"])
@pytest.mark.parametrize("reach", [INSIDE, ABOVE, BELOW], ids=["inside", "above", "below"])
@pytest.mark.parametrize("attack", [attacks.spans, attacks.merged, attacks.drift])
def test_nothing_is_reached_outside(attack: Callable[..., bytes], reach: int, store: bool) -> None:
    seen = same(case(attack(reach, store=store), limit=1 << 40))
    if reach == INSIDE:
        assert seen.fault is None
    else:
        assert seen.fault is not None
        assert (seen.fault[0], seen.fault[2]) == (FaultKind.OUT_OF_BOUNDS, INPUT + reach)


def test_nor_by_many_products() -> None:
    seen = same(case(attacks.products(store=True)))
    assert seen.fault is not None
    assert seen.fault[0] is FaultKind.OUT_OF_BOUNDS


def test_the_limit_holds_for_a_loop_that_seems_short() -> None:
    seen = observe(Engine.NATIVE, case(attacks.endless(1_000_000), limit=5_000))
    assert seen.fault is not None
    assert seen.fault[0] is FaultKind.INSTRUCTION_LIMIT
    start = LAYOUT.input_offset
    assert int.from_bytes(seen.memory[start : start + 8], "little") < 5_000


@pytest.mark.parametrize(
    "text",
    [
        "%a = add i64 %b, 18446744073709551616",
        "%a = add i64 %b, -9223372036854775809",
        "%a = add i128 %b, 170141183460469231731687303715884105728",
        "call i64 @llvm.usub.sat.i64(i64 %a, i64 18446744073709551623)",
        "store i8 256, ptr %a",
        "ret i1 2",
    ],
)
def test_a_number_that_does_not_fit_its_type_is_never_compiled(text: str) -> None:
    with pytest.raises(EngineUnavailable, match="does not fit"):
        verify(text)


def test_numbers_that_do_are() -> None:
    text = """
    %v.300 = add i64 %b, 18446744073709551615
      %a = add i128 %b, -170141183460469231731687303715884105728
      store i8 255, ptr %r999, align 1, !tbaa !999
      br i1 %v.999, label %b999, label %u999, !prof !999
    """
    assert verify(text) == text

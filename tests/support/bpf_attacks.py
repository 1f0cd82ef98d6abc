"""Programs that led out of the arena, or past the instruction limit, while guards could overflow.

Each has a loop or a group of accesses whose limits, computed with too few bits, look harmless. The
interpreter says what is right of them: they fault, or end at the limit.
"""

import pytest

from potash_firmware.bpf.native import checks, induction, ranges, values
from support.bpf_assembler import assemble

WIDE = (1 << 62) + 1
"""What numbers of more than 64 bits are written in the digits of: each fits a register."""


def digits(number: int) -> list[int]:
    """A number in base WIDE, the first digit first."""
    found = []
    while number:
        number, digit = divmod(number, WIDE)
        found.append(digit)
    return found[::-1]


def ladder(label: str, number: int, taken: str) -> str:
    """r2 becomes `taken`; a reader of both sides of each branch thinks of 0 to `number`.

    r9 must not be 76 or 77, which no reader knows; r3 is used too.
    """
    first, *rest = digits(number)
    text = f"""
        r2 = r9
        r2 &= 1
        r3 = {first} ll
        r2 *= r3
    """
    for step, digit in enumerate(rest):
        text += f"""
        if r9 != 77 goto {label}{step}
        r2 = 0
    {label}{step}:
        r3 = {WIDE} ll
        r2 *= r3
        r3 = {digit} ll
        r2 += r3
        """
    return (
        text
        + f"""
        if r9 == 77 goto {label}
        r2 = {taken}
        if r9 != 76 goto {label}
        r2 = 0
    {label}:
    """
    )


def access(register: str, store: bool, bits: int = 8) -> str:
    place = f"*(u{bits} *)({register} + 0)"
    return f"{place} = r0" if store else f"r0 = {place}"


def spans(reach: int, *, store: bool = False) -> bytes:
    """Three accesses from the input on, at -1, 0 and `reach`; as numbers, they are 2^64 apart."""
    far = 1 << 63
    text = f"""
        r6 = r1
        r3 = {-far} ll
        r6 += r3
        r0 = 0
        if r0 == 1 goto behind
    behind:
    """
    for at in (far - 1, -far, (reach - far + far) % (1 << 64) - far):
        text += f"""
        r2 = r6
        r3 = {at} ll
        r2 += r3
        {access("r2", store, 64)}
        """
    return assemble(text + "exit")


def merged(reach: int, *, store: bool = False) -> bytes:
    """An index that is `reach`, and thought to be up to 2^128 + 64."""
    return assemble(
        f"""
        r6 = r1
        r9 = r3
        r7 = 0
        r0 = 0
    loop:
        {ladder("m", (1 << 128) + 64, str(reach))}
        r2 += r6
        {access("r2", store)}
        r7 += 1
        if r7 < 4 goto loop
        exit
        """
    )


def endless(iterations: int) -> bytes:
    """A loop of so many `iterations`, which are thought to be few, inside another; it stores them."""
    return assemble(
        f"""
        r9 = r3
        r7 = 0
        r0 = 0
        r2 = r9
        if r9 == 1 goto outer
    outer:
        {ladder("m", (1 << 128) + 64, str(iterations))}
        r8 = 0
    inner:
        r0 ^= r8
        r8 += 1
        *(u64 *)(r1 + 0) = r8
        if r8 < r2 goto inner
        r7 += 1
        if r7 < 4 goto outer
        exit
        """
    )


def drift(reach: int, *, store: bool = False) -> bytes:
    """A pointer that moves on by `reach` once, and is thought to by 2^100, 2^28 times: by 0."""
    return assemble(
        f"""
        r6 = r1
        r9 = r3
        r7 = 0
        r0 = 0
    loop:
        {access("r6", store)}
        {ladder("m", 1 << 100, str(reach))}
        r6 += r2
        r7 += 1
        if r7 == r4 goto out
        if r7 < {1 << 28} goto loop
    out:
        exit
        """
    )


def products(*, store: bool = False) -> bytes:
    """A pointer moved in many loops, by a register times a count in each; in sum by 2^128: by 0.

    All but the first are left at once, and so is that in its second iteration.
    """
    factor = 4 + 2047 * (1 << 52)
    times, rest = divmod(1 << 128, factor << 12)
    steps = []
    while times:
        steps.append((min(times, (1 << 48) - 1), "r2"))
        times -= steps[-1][0]
    iterations, rest = divmod(rest, 1 << 40)
    steps += [(iterations, "r9"), (rest, "1")]
    text = f"""
        r4 = r1
        r6 = {factor} ll
        r9 = {1 << 40} ll
        r5 = 1
        r3 = 0
        r0 = 0
        if r3 == 1 goto root
    root:
        r1 = r4
        r2 = r6
        r2 <<= 12
    """
    for index, (iterations, step) in enumerate(steps):
        leaves = "r7 & r5" if index == 0 else "r4 & r4"
        text += f"""
        r7 = 0
        r8 = {iterations} ll
    head{index}:
        if r7 >= r8 goto out{index}
        if {leaves} goto out{index}
        r1 += {step}
        r7 += 1
        goto head{index}
    out{index}:
        """
    return assemble(f"{text}\n{access('r1', store)}\nif r3 == 12345 goto root\nexit")


def _spans(patch: pytest.MonkeyPatch) -> None:
    """Distances in a group of accesses are neither taken modulo 2^64 nor limited."""
    patch.setattr(checks, "wrap", lambda value: value)
    patch.setattr(checks, "MOST_SPAN", 1 << 70)


def _limits(patch: pytest.MonkeyPatch) -> None:
    """The limits of merged values, and of what an iteration adds, have any size."""
    patch.setattr(values, "near", lambda low, high: True)


def _overflow(patch: pytest.MonkeyPatch) -> None:
    """What a guard computes with at run time has any size: registers, products, sums of them."""
    patch.setattr(ranges.Guard, "_near", lambda *_: None)
    patch.setattr(induction, "MOST_TERMS", 1000)


PUT_BACK = {"spans": _spans, "limits": _limits, "overflow": _overflow}
"""Each puts a fault back that once led out of the arena, its limits taken away."""

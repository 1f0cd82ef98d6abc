"""Values that were truncated to 32 bits, or that depend on the path taken."""

from potash_firmware.bpf.native import values
from potash_firmware.bpf.native.loops import Linear, Merged, Unsteady, near, number, unknown
from potash_firmware.bpf.native.values import Bounded, Extended, Value


def widened(form: Linear, signed: bool) -> Linear:
    """The 64 bits that a 32-bit value becomes, as a symbol that carries the condition for its
    use."""
    if form.known:
        return values.forget(form, signed)
    bounds = static(form)
    if bounds is not None:
        low, high = (-(1 << 31), 1 << 31) if signed else (0, 1 << 32)
        if low <= bounds[0] and bounds[1] < high:
            return form
    return unknown(Extended(unwidened(form), signed))


def unwidened(form: Linear) -> Linear:
    """A form without its extensions, to which it is equal under its conditions."""
    total = number(form.constant)
    for symbol, factor in form.terms:
        inner = unwidened(symbol.form) if isinstance(symbol, Extended) else unknown(symbol)
        total += inner.scaled(factor)
    return total


def static(form: Linear) -> tuple[int, int] | None:
    """The lowest and highest value of a form whose symbols all have bounds, if these are near."""
    low = high = form.constant
    for symbol, factor in form.terms:
        if not isinstance(symbol, Bounded | Merged):
            return None
        ends = factor * symbol.low, factor * symbol.high
        low, high = low + min(ends), high + max(ends)
    return (low, high) if near(low, high) else None


def merged(block: int, register: int, paths: list[Value]) -> Value:
    """The value of a register where paths meet."""
    first = paths[0]
    if all(path == first for path in paths):
        return first
    forms = [widened(path.form, False) if path.narrow else path.form for path in paths]
    differences = [form - forms[0] for form in forms]
    if all(difference.known for difference in differences):
        constants = [difference.constant for difference in differences]
        low, high = min(constants), max(constants)
        if low == high:
            return Value(forms[0])
        if near(low, high):
            return Value(forms[0] + unknown(Merged(block, register, low, high)))
    bounds = [ends for form in forms if (ends := static(form)) is not None]
    if len(bounds) == len(forms):
        low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
        return Value(unknown(Merged(block, register, low, high)))
    return Value(unknown(Unsteady(block, register)))

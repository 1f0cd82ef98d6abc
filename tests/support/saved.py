"""Changes of saved values to the limits of their declarations, and beyond.

They follow from the declared types, so a field that is new is changed, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from potash_wire.records import Range

NESTED: Any = []
for _ in range(12):
    NESTED = [NESTED]

ANYTHING: tuple[Any, ...] = (None, True, False, 1.5, float("nan"), "", "x" * 3000, "\u0000\u00e9", "AAAA", "00",
            [], {}, [1, 2, 3], [0] * 500, {"a": 1}, NESTED)  # fmt: skip
NUMBERS = (-1, 0, 1, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1, 1 << 64, 1 << 200)  # fmt: skip


def changes(kind: Any, value: Any) -> Iterator[Any]:
    """What JSON could have in the place of `value`, which is of that kind: one change in each."""
    yield from ANYTHING
    kind, ranges = _plain(kind)
    if kind is int:
        yield from NUMBERS
        for one in ranges:
            yield from (one.least - 1, one.least, one.most, one.most + 1)
    kinds = dict(_parts(kind, value))
    if isinstance(value, dict):
        yield {**value, "unknown": 1}
        for name, part in kinds.items():
            held = value.get(name, sample(part))
            yield {other: one for other, one in value.items() if other != name}
            yield from ({**value, name: one} for one in changes(part, held))
    elif isinstance(value, list):
        yield from (value * 2, value[:-1], [*value, 1])
        for at, part in kinds.items():
            held = value[at] if at < len(value) else sample(part)
            yield from ([*value[:at], one, *value[at + 1 :]] for one in changes(part, held))


def sample(kind: Any) -> Any:
    """JSON of that kind, with something in every list."""
    kind, ranges = _plain(kind)
    least = max((one.least for one in ranges), default=0)
    if kind in (int, bool):
        return kind(least)
    if kind is str:
        return "0" * least
    if kind is bytes:
        return "A" * (4 * (least // 3)) + ("", "AA==", "AAA=")[least % 3]
    if get_origin(kind) is dict or is_typeddict(kind):
        return {name: sample(part) for name, part in _parts(kind, {})}
    return [sample(part) for _, part in _parts(kind, [])]


def _plain(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A kind without its ranges and None, and the ranges."""
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        ranges = [one for one in marks if isinstance(one, Range)]
        return _plain(kind)[0], (*ranges, *_plain(kind)[1])
    if get_origin(kind) in (Union, UnionType):
        return _plain(next(one for one in get_args(kind) if one is not NoneType))
    return kind, ()


def _parts(kind: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Names or indexes of a kind's parts, and their kinds; one part of those that are alike."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is dict:
        yield next(iter(value), "1") if isinstance(value, dict) else "1", parts[1]
    elif origin is list or parts[1:] == (...,):
        yield 0, parts[0]
    elif origin is tuple:
        yield from enumerate(parts)
    elif is_typeddict(kind) or isinstance(value, dict):
        yield from get_type_hints(kind, include_extras=True).items()
    else:
        yield from enumerate(get_type_hints(kind, include_extras=True).values())

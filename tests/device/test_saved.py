"""Saved values: what their declarations let through, and how JSON is read."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest

from nvme_spec.logs import FirmwareSlotLog, SmartLog
from potash_device.saved import counts, decode, encode, exactly, fits, read_json, typed
from potash_wire.records import Range


class Pair(NamedTuple):
    first: Annotated[int, Range(1, 9)]
    second: str = "none"


@dataclass(frozen=True)
class Both:
    pairs: tuple[Pair, ...]
    data: bytes | None


class Table(TypedDict, total=False):
    one: int
    pairs: list[Pair]


class Whole(TypedDict):
    one: int


def test_a_record_comes_back_as_it_was() -> None:
    both = Both((Pair(1, "a"), Pair(9)), b"\x00\xff")
    assert decode(Both, encode(both), 1000) == both


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (Pair, [3], Pair(3, "none")),
        (Pair, {"first": 3}, Pair(3, "none")),
        (list[Pair], [[3, "x"], [0], [10], 5, None, [1, 2]], [Pair(3, "x")]),
        (dict[str, int], {"a": 1, "b": -1, "c": True, "d": "x"}, {"a": 1}),
        (Table, {"one": 1 << 64, "pairs": [[4]], "other": []}, {"pairs": [Pair(4)]}),
        (int | None, None, None),
        (Annotated[str, Range(0, 2)], "ab", "ab"),
        (bytes, "QUI=", b"AB"),
    ],
)
def test_what_fits_is_taken(kind: Any, value: object, found: object) -> None:
    assert typed(kind, value) == found


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, True),
        (int, 1.0),
        (int, -1),
        (int, 1 << 64),
        (bool, 1),
        (str, ["a"]),
        (Annotated[str, Range(0, 2)], "abc"),
        (bytes, "?"),
        (bytes, "\u20ac"),
        (Pair, [0]),
        (Pair, []),
        (Pair, [1, "a", 2]),
        (Pair, {"second": "a"}),
        (Pair, {"first": 0}),
        (Pair, {"first": 1, "third": 1}),
        (Pair, "12"),
        (tuple[Pair, ...], [[1], [0]]),
        (tuple[int, str], [1]),
        (list[int], {}),
        (dict[str, int], []),
        (Table, [1]),
        (Whole, {}),
        (Whole, {"one": "x"}),
    ],
)
def test_what_does_not_fit_is_refused(kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        typed(kind, value)


def test_nothing_is_left_out_where_a_value_is_wanted_exactly() -> None:
    assert exactly(Table, {"one": 1}) == {"one": 1}
    for value in ({"one": -1}, {"other": 1}):
        with pytest.raises(ValueError, match="Table"):
            exactly(Table, value)


def test_ranges_are_those_of_the_fields() -> None:
    assert fits(SmartLog.thermal_time_1) == (0, 0xFFFF_FFFF)
    assert fits(FirmwareSlotLog.active_slot) == (0, 7)
    assert counts(SmartLog.warning_temperature_time, 60) == (0, 60 * (1 << 32) - 1)
    assert counts(SmartLog.power_cycles) == (0, (1 << 63) - 1)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 17 + b"]" * 17,
        b'{"a":' * 17 + b"1" + b"}" * 17,
        b"[" * 100_000,
        b'["' + b"[" * 100_000,
        b'["\\"", ' + b"[" * 20 + b"]" * 21,
        b"[" + b"[]," * (1 << 18) + b"[]]",
        b"[1," * 3,
        b'\\"' * (1 << 21),
        b'"' + b'\\"' * 1000,
        b"\xff",
        "[[]]".encode("utf-16"),
        b"[" + b"9" * 5000 + b"]",
        b"[" + b" " * (1 << 23) + b"]",
    ],
)
def test_what_is_too_deep_or_too_much_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text, 1 << 22)


@pytest.mark.parametrize(
    "value", ["[{" * 40, '"[[', "\\[\\\\", ["[" * 40, "]"], {"}": {"a": [1, [2]]}}]
)
def test_brackets_in_texts_are_not_counted(value: object) -> None:
    assert read_json(json.dumps(value).encode(), 1000) == value

"""Helpers of other packages: found by entry points, called by programs, left out when they are
wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from csd_spec.program import Helper
from potash_device.trace import COMPUTE
from potash_firmware.bpf import AddedHelper, Fault, FaultKind, added
from potash_firmware.bpf.added import GROUP, NUMBERS, Found, collect
from potash_firmware.bpf.helpers import Helpers, Services
from support.bpf import arena

HERE = "helpers_for_a_test"


def point(name: str, what: str) -> EntryPoint:
    return EntryPoint(name, f"{HERE}:{what}", GROUP)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with something behind each entry point of these tests."""
    (tmp_path / f"{HERE}.py").write_text(
        "from potash_firmware.bpf import AddedHelper\n"
        "def double(arena, value, *_): return 2 * value\n"
        "TWICE = AddedHelper(40, double)\n"
        "AGAIN = AddedHelper(40, double)\n"
        "OTHER = AddedHelper(41, double)\n"
        "LOW = AddedHelper(31, double)\n"
        "HIGH = AddedHelper(64, double)\n"
        "NUMBER = 42\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, HERE, raising=False)


def test_a_helper_has_its_entry_point_s_name_and_its_own_number() -> None:
    found = collect([point("twice", "TWICE"), point("other", "OTHER")])
    assert found.names == {"twice": 40, "other": 41}
    assert found.problems == ()
    assert found.helpers[40].bound(arena())(21, 0, 0, 0, 0) == 42


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("print", "TWICE", "Potash has a helper of that name"),
        ("not-c", "TWICE", "its name cannot be that of a function in C"),
        ("low", "LOW", "its number is 31, and added helpers have 32 to 63"),
        ("high", "HIGH", "its number is 64, and added helpers have 32 to 63"),
        ("number", "NUMBER", f"{HERE}:NUMBER is not an AddedHelper"),
        ("gone", "GONE", f"module '{HERE}' has no attribute 'GONE'"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_sentence(name: str, what: str, why: str) -> None:
    found = collect([point(name, what), point("other", "OTHER")])
    assert found.names == {"other": 41}
    assert found.problems == (f"the helper {name} of {HERE} is left out: {why}",)


def test_of_two_with_one_number_neither_is_taken() -> None:
    found = collect([point("twice", "TWICE"), point("again", "AGAIN"), point("other", "OTHER")])
    assert found.names == {"other": 41}
    assert found.problems == (
        f"the helper again of {HERE} is left out: the number 40 is also that of twice of {HERE}",
        f"the helper twice of {HERE} is left out: the number 40 is also that of again of {HERE}",
    )


def test_of_two_with_one_name_neither_is_taken() -> None:
    found = collect([point("twice", "TWICE"), point("twice", "OTHER")])
    assert found.helpers == {}
    assert all("the name twice is also that of" in problem for problem in found.problems)
    assert len(found.problems) == 2


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda *_: 1 // 0, "wrong: integer division or modulo by zero"),
        (lambda *_: None, "wrong: 'NoneType' object cannot be interpreted as an integer"),
    ],
)
def test_whatever_a_helper_does_wrong_ends_the_program(call: object, reason: str) -> None:
    made = collect([])
    assert made == Found({}, ())
    found = collect([point("twice", "TWICE")]).helpers[40]
    wrong = type(found)("wrong", found.package, AddedHelper(40, call))  # type: ignore[arg-type]
    with pytest.raises(Fault) as raised:
        wrong.bound(arena())(1, 2, 3, 4, 5)
    assert raised.value.kind is FaultKind.HELPER_FAILED
    assert raised.value.reason == reason


def test_memory_is_checked_by_the_arena() -> None:
    reads = AddedHelper(NUMBERS[0], lambda memory, at, size, *_: sum(memory.bytes_at(at, size)))
    found = collect([point("twice", "TWICE")]).helpers[40]
    bound = type(found)("reads", found.package, reads).bound(arena())
    assert bound(arena().input, 4096, 0, 0, 0) == 0
    with pytest.raises(Fault) as raised:
        bound(0, 8, 0, 0, 0)
    assert raised.value.kind is FaultKind.OUT_OF_BOUNDS


def test_calls_of_added_helpers_are_traced_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = collect([point("twice", "TWICE")])
    traced: list[object] = []

    def sink(point: str, known: Mapping[str, object]) -> None:
        traced.append(known["helper"])

    monkeypatch.setattr(added, "found", lambda: found)
    monkeypatch.setattr(COMPUTE, "sink", sink)
    table = Helpers(arena(), Services(print, lambda *_: 0, lambda *_: 0), 0).table()
    assert table[40](21, 0, 0, 0, 0) == 42
    assert table[Helper.SET_OUTPUT_LENGTH](0, 0, 0, 0, 0) == 0
    assert traced == ["twice", "set_output_length"]

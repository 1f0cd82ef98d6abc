"""Random programs on both engines, and whether what compiled code takes for proven of them is true.

The known faults of guards are put back one by one: what does not find them would find no other.
"""

import os
from collections.abc import Callable
from random import Random

import pytest

from potash_firmware.bpf.errors import EngineUnavailable
from potash_firmware.bpf.native import compiler, generator, induction, loops, ranges
from support import bpf_attacks as attacks
from support.bpf import LAYOUT
from support.bpf_claims import Violation, hold
from support.bpf_extremes import extremes
from support.bpf_fuzz import fuzz, one
from support.bpf_native import own_cache
from support.bpf_programs import Case
from support.bpf_structured import structured

__all__ = ["own_cache"]

PROGRAMS: dict[str, tuple[bytes, str]] = {
    "spans": (attacks.spans(8), "spans"),
    "merged": (attacks.merged(8), "limits"),
    "endless": (attacks.endless(4), "limits"),
    "drift": (attacks.drift(8), "limits"),
    "products": (attacks.products(), "overflow"),
}
"""Programs that led outside, and the fault that let them."""

FIRST = {"spans": 0, "limits": 0, "overflow": 2200}
"""Seeds not far from one that finds the fault; from any, it takes some thousand at most."""


def case(code: bytes) -> Case:
    return Case(code, 0, (0x1000_1000, 0x1000_2000, 4096, 2), bytes(LAYOUT.size), 1 << 40)


@pytest.fixture
def put_back(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    attacks.PUT_BACK[request.param](monkeypatch)


@pytest.fixture
def unchecked_literals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "verify", lambda text: text)


def test_random_programs() -> None:
    seed = Random().getrandbits(32)
    print("seed", seed)
    print(fuzz(0.8, seed))


@pytest.mark.slow
def test_random_programs_for_long() -> None:
    """For POTASH_FUZZ_SECONDS, or ten minutes."""
    seed = Random().getrandbits(32)
    print("seed", seed)
    print(fuzz(float(os.environ.get("POTASH_FUZZ_SECONDS", "600")), seed))


@pytest.mark.parametrize("make", [structured, extremes])
def test_claims_of_random_programs_are_true(make: Callable[[Random], Case]) -> None:
    assert sum(hold(make(Random(seed))).held for seed in range(40)) > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_claims_of_programs_that_led_outside_are_true(name: str) -> None:
    hold(case(PROGRAMS[name][0]))


@pytest.mark.usefixtures("put_back", "unchecked_literals")
@pytest.mark.parametrize(
    ("name", "put_back"),
    [(name, fault) for name, (_, fault) in PROGRAMS.items()],
    indirect=["put_back"],
)
def test_false_claims_are_noticed(name: str) -> None:
    with pytest.raises(Violation):
        hold(case(PROGRAMS[name][0]))


@pytest.mark.usefixtures("put_back", "unchecked_literals")
@pytest.mark.parametrize(
    ("fault", "put_back"), [(fault, fault) for fault in attacks.PUT_BACK], indirect=["put_back"]
)
def test_random_programs_find_every_known_fault(fault: str) -> None:
    with pytest.raises(Violation):
        for seed in range(FIRST[fault], FIRST[fault] + 5_000):
            hold(extremes(Random(seed)))


def _one_iteration_less(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loops, "INCLUSIVE", frozenset())


def _no_conditions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(induction._Analysis, "_conditions_of", lambda *_: set())


def _an_instruction_less(patch: pytest.MonkeyPatch) -> None:
    cost = ranges.Guard._cost
    patch.setattr(ranges.Guard, "_cost", lambda self, loop: self._do("add", cost(self, loop), -1))


def _a_byte_less(patch: pytest.MonkeyPatch) -> None:
    inside = ranges.Guard._inside
    patch.setattr(
        ranges.Guard,
        "_inside",
        lambda self, one, *limits: inside(self, one._replace(high=one.high - 1), *limits),
    )


@pytest.mark.parametrize(
    ("mistake", "first"),
    [(_one_iteration_less, 0), (_no_conditions, 70), (_an_instruction_less, 0), (_a_byte_less, 0)],
)
def test_random_programs_find_other_mistakes(
    mistake: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(first, first + 500):
            one(seed, native=False)


@pytest.mark.usefixtures("put_back")
@pytest.mark.parametrize(
    ("name", "put_back"),
    [("spans", "spans"), ("merged", "limits"), ("endless", "limits")],
    indirect=["put_back"],
)
def test_what_does_not_fit_its_type_is_not_compiled_even_so(name: str) -> None:
    with pytest.raises(EngineUnavailable, match="does not fit"):
        compiler.assembly(PROGRAMS[name][0], 0)

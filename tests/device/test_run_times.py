"""The run times that programs declare."""

import random
from fractions import Fraction

import pytest

from csd_spec.run_times import (
    KINDS,
    MAX_TEXT,
    NOT_DECLARED,
    RunTimeError,
    declared_by,
    parse,
    with_run_time,
)
from potash_firmware.bpf import ProgramError, load_program
from support.compute_programs import SUM

COUNTS = (10, 1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("", 777),
        ("priority=7", 777),
        ("fixed=20us", 20_000),
        ("fixed=1.5us, per_byte=0.25ns", 1500 + 250),
        ("per_byte=0.001ns", 1),
        ("per_instruction=2ns", 2 * sum(COUNTS)),
        ("per_load=1us,per_call=10ns,fixed=1s", 10**9 + 3 * 1000 + 7 * 10),
        ("scale=0.5", 389),
        ("scale=10,priority=3", 7770),
    ],
)
def test_a_text_declares_a_time(text: str, ns: int) -> None:
    assert parse(text).duration(777, 1000, COUNTS) == ns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fixed", "KEY=VALUE"),
        ("fixed=1us,fixed=2us", "each key once"),
        ("fixed=20", "no time"),
        ("fixed=-1us", "no time"),
        ("fixed=1e9us", "no time"),
        ("fixed=nans", "no time"),
        ("fixed=1.us", "no number"),
        ("fixed=2000000s", "longer than"),
        ("per_loop=1us", "none of fixed"),
        ("scale=2,fixed=1us", "in place of all times"),
        ("priority=256", "0 to 255"),
        ("priority=", "0 to 255"),
        ("scale=1us", "no number"),
        ("scale=", "no number"),
    ],
)
def test_any_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RunTimeError, match=reason):
        parse(text)


def test_an_object_file_declares_the_last_time_that_it_was_given() -> None:
    assert declared_by(SUM) is NOT_DECLARED
    first = with_run_time(SUM, "fixed=20us,priority=2")
    assert declared_by(first) == parse("fixed=20us,priority=2")
    second = with_run_time(first, "per_byte=0.25ns")
    assert declared_by(second).times == {"per_byte": Fraction(1, 4)}
    assert load_program(second).code == load_program(SUM).code
    assert load_program(second).run_time == parse("per_byte=0.25ns")
    assert load_program(second + bytes(100)).run_time == parse("per_byte=0.25ns")


def test_a_program_with_a_wrong_text_is_refused() -> None:
    wrong = with_run_time(SUM, "fixed=20us").replace(b"fixed=20us", b"fixed=20xs")
    with pytest.raises(ProgramError, match="fixed=20xs is no time"):
        load_program(wrong)
    with pytest.raises(RunTimeError, match="no object file"):
        with_run_time(b"text", "fixed=20us")
    with pytest.raises(RunTimeError, match=f"no text of {MAX_TEXT} bytes"):
        declared_by(with_run_time(SUM, "fixed=20us").replace(b"fixed=20us", b"fixed=2\xff\xffs"))


def test_damaged_files_declare_nothing_or_are_refused() -> None:
    whole = with_run_time(SUM, "fixed=20us")
    chosen = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(whole[: chosen.randrange(len(whole) + 1)])
        for _ in range(chosen.randrange(4)):
            if damaged:
                damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        try:
            declared_by(bytes(damaged))
            with_run_time(bytes(damaged), "fixed=1ns")
        except RunTimeError:
            pass


def test_times_are_fractions_that_are_rounded_up_once() -> None:
    chosen = random.Random(2)
    for _ in range(200):
        keys = chosen.sample([f"per_{kind}" for kind in KINDS], 3)
        prices = {key: Fraction(chosen.randrange(10**6), 1000) for key in keys}
        text = ",".join(f"{key}={float(price):.3f}ns" for key, price in prices.items())
        counts = tuple(chosen.randrange(1 << 40) for _ in KINDS)
        exact = sum(
            prices.get(f"per_{kind}", 0) * count for kind, count in zip(KINDS, counts, strict=True)
        )
        assert parse(text).duration(0, 0, counts) == -int(-exact // 1)

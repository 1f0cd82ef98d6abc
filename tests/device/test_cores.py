"""Modelled time of processor cores, against sums worked out by hand."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from csd_spec.run_times import KINDS
from potash_device import cores as timing
from potash_device.cores import CoreProfile, Price, Work
from potash_device.flash.profile import ProfileError, Rate
from potash_firmware.bpf.counters import Kind
from potash_firmware.ftl import named

PLAIN = CoreProfile(
    dispatch_ns=500,
    clock_hz=1_000_000_000,
    cycles=(1000, 2000, 10_000, 3000, 1000, 20_000, 1500, 4000),
    helper_cycles=100,
    dram=Rate(8, 3),
    vta_hz=100_000_000,
    macs_per_cycle=4,
    query_cycles=(500, 2000, 30_000, 7000, 200, 0, 0, 0, 900),
)


def test_kinds_are_those_that_engines_count() -> None:
    assert tuple(kind.name.lower() for kind in Kind) == KINDS


@pytest.mark.parametrize(
    ("work", "ns"),
    [
        (Work(), 500),
        (Work(instructions=(10, 0, 0, 0, 0, 0, 0, 0)), 510),
        (Work(instructions=(1, 1, 1, 1, 1, 1, 2, 1)), 500 + 1 + 2 + 10 + 3 + 1 + 20 + 3 + 4),
        (Work(helpers=3), 800),
        (Work(bytes=4096), 500 + 1536),
        (Work(vta_cycles=17_300_000), 500 + 173_000_000),
        (Work(macs=10), 500 + 3),
        (Work(queries=(100, 10, 1, 2, 50, 9, 9, 9, 10)), 500 + 50 + 20 + 30 + 14 + 10 + 9),
        # Two halves: 1.5 cycles and 1.5 ns of DRAM are 3 ns together, rounded once.
        (Work(instructions=(0,) * 6 + (1, 0), bytes=4), 503),
    ],
)
def test_work_takes_what_its_parts_take(work: Work, ns: int) -> None:
    assert Price(PLAIN)(work) == ns


def test_the_sum_is_rounded_up_once_whatever_the_clock() -> None:
    chosen = random.Random(1)
    for _ in range(200):
        profile = CoreProfile(
            clock_hz=chosen.randrange(1, 1 << 31),
            cycles=tuple(chosen.randrange(50_000) for _ in Kind),
            dram=Rate(chosen.randrange(1, 100), chosen.randrange(100)),
            vta_hz=chosen.randrange(1, 1 << 31),
            macs_per_cycle=chosen.randrange(1, 100),
            query_cycles=tuple(chosen.randrange(50_000) for _ in timing.QUERY_KINDS),
        )
        counts = tuple(chosen.randrange(1 << chosen.randrange(1, 50)) for _ in Kind)
        queries = tuple(chosen.randrange(1 << 40) for _ in timing.QUERY_KINDS)
        helpers, moved, cycles, macs = (chosen.randrange(1 << 40) for _ in range(4))
        work = Work(counts, helpers, moved, cycles, macs, queries)
        second = 10**9
        taken = Fraction(sum(map(int.__mul__, counts, profile.cycles)), 1000)
        taken += Fraction(sum(map(int.__mul__, queries, profile.query_cycles)), 1000)
        taken += work.helpers * profile.helper_cycles
        taken += Fraction(work.macs, profile.macs_per_cycle)
        exact = profile.dispatch_ns + second * taken / profile.clock_hz
        exact += Fraction(work.bytes * profile.dram.ns, profile.dram.bytes)
        exact += Fraction(work.vta_cycles * second, profile.vta_hz)
        assert Price(profile)(work) == math.ceil(exact)


def test_a_profile_has_a_table_of_its_cores(tmp_path: Path) -> None:
    file = tmp_path / "drive.toml"
    file.write_text(
        'base = "tlc"\ndies = 4\n[processor]\nclock_hz = 2_000_000_000\ndram = [16, 1]\n'
        "[processor.cycles]\nalu = 0.5\ndivide = 12\n[processor.query_cycles]\nhash = 9.25\n"
    )
    found = named.cores(str(file))
    assert named.profile(str(file)).dies == 4
    assert found.clock_hz == 2_000_000_000
    assert found.dram == (16, 1)
    assert found.cycles == (500, 3000, 12_000, *timing.DEFAULT.cycles[3:])
    assert found.query_cycles[2] == 9250
    assert found.query_cycles[:2] == timing.DEFAULT.query_cycles[:2]
    assert found.vta_hz == 100_000_000
    assert named.cores("tlc") == timing.DEFAULT


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("processor = 3", "processor is not a table"),
        ("[processor]\nclock = 3", "processor has no key clock; did you mean clock_hz?"),
        ("[processor]\nclock_hz = 0", "processor: clock_hz is 0; it must be a whole number, 1 to"),
        ("[processor]\nclock_hz = true", "processor: clock_hz is True"),
        ("[processor]\nmacs_per_cycle = 1.5", "processor: macs_per_cycle is 1.5"),
        ("[processor]\ndram = [0, 1]", "processor: dram's bytes is 0"),
        ("[processor]\ndram = 4", "processor: dram must be 2 numbers"),
        ("[processor]\ncycles = 4", "processor: cycles is not a table of kinds"),
        (
            "[processor.cycles]\nmultiplies = 4",
            "processor.cycles has no key multiplies; did you mean multiply?",
        ),
        ("[processor.cycles]\nalu = -1", "processor: cycles.alu is -1, no number of cycles"),
        ("[processor.cycles]\nalu = nan", "processor: cycles.alu is nan, no number of cycles"),
    ],
)
def test_cores_that_cannot_be_are_refused_with_a_sentence(
    table: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "drive.toml"
    file.write_text(f'base = "tlc"\n{table}\n' if table.startswith("[") else f"{table}\n")
    with pytest.raises(ProfileError) as refused:
        named.cores(str(file))
    assert sentence in str(refused.value)

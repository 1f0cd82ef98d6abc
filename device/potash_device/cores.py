"""Modelled time of processor cores that run programs and models next to the data.

What a program executes is counted elsewhere, and is the same on every machine; this turns counts
into nanoseconds. `units` shares them out to jobs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, NamedTuple

from csd_spec.run_times import KINDS
from potash_device.flash.rates import LARGEST, ProfileError, Rate, require_known
from potash_wire.ranges import require_ranges
from potash_wire.records import U64, Range, Stored

CODECS = ("snappy", "lz4", "zstd", "gzip", "brotli")
"""Codecs of columns in Parquet and Arrow files."""

QUERY_KINDS = ("decode", "compare", "hash", "aggregate", *CODECS)
"""Kinds of the work of queries of tables, in the order of `Work.queries`: bytes of columns that are
decoded, values that functions are applied to, values of keys of groups, values that are
aggregated; and by codec, those of the decoded bytes that were compressed."""

THOUSAND = 1000
NS_PER_S = 1_000_000_000


LARGEST_COUNT = (1 << 63) - 1
Count = Annotated[U64, Range(0, LARGEST_COUNT)]
_Counts = Annotated[tuple[int, ...], Stored("Q", len(KINDS)), Range(0, LARGEST_COUNT)]
_QueryCounts = Annotated[tuple[int, ...], Stored("Q", len(QUERY_KINDS)), Range(0, LARGEST_COUNT)]
_Number = Annotated[U64, Range(0, LARGEST)]
_Positive = Annotated[U64, Range(1, LARGEST)]


class Work(NamedTuple):
    """Counts of a job's work."""

    instructions: _Counts = (0,) * len(KINDS)
    """eBPF instructions, by kind."""
    helpers: Count = 0
    """Calls of helpers."""
    bytes: Count = 0
    """Bytes that the cores moved in DRAM: models, their inputs and outputs, copies."""
    vta_cycles: Count = 0
    """Cycles of the tensor accelerator by its own timing model."""
    macs: Count = 0
    """Multiply-accumulate operations of models that the cores did themselves."""
    queries: _QueryCounts = (0,) * len(QUERY_KINDS)
    """Bytes or values of queries of tables, by `QUERY_KINDS`."""
    declared: Count = 0
    """One more than the nanoseconds that the program declares (`csd_spec.run_times`); 0 for one
    that declares none."""


@dataclass(frozen=True)
class CoreProfile:
    """One core and what it shares. Raises ProfileError.

    The defaults are assumptions for a Cortex-A53 and a tensor accelerator in the logic beside it.
    """

    dispatch_ns: _Number = 20_000
    """Time from the firmware's start of a job to its first instruction."""
    clock_hz: _Positive = 1_200_000_000
    cycles: Annotated[tuple[int, ...], Stored("Q", len(KINDS)), Range(0, LARGEST)] = (
        1000,
        3000,
        20_000,
        2000,
        1000,
        12_000,
        2000,
        4000,
    )
    """Cycles that a thousand instructions of each of `KINDS` take."""
    helper_cycles: _Number = 300
    """Cycles of a call of a helper and the return from it."""
    dram: Rate = field(default=Rate(4, 1))
    """Rate of a core's copies."""
    vta_hz: _Positive = 100_000_000
    macs_per_cycle: _Positive = 4
    """Rate of the core for operators of a model that the tensor accelerator does not run."""
    query_cycles: Annotated[tuple[int, ...], Stored("Q", len(QUERY_KINDS)), Range(0, LARGEST)] = (
        6000,
        12_000,
        240_000,
        9000,
        7000,
        2000,
        5000,
        13_000,
        15_000,
    )
    """Cycles of a thousand bytes or values of `QUERY_KINDS`; by default three times those of
    pyarrow 26 on an AMD EPYC."""

    def __post_init__(self) -> None:
        if len(self.cycles) != len(KINDS):
            raise ProfileError(f"processor: cycles are {len(KINDS)} numbers")
        if len(self.query_cycles) != len(QUERY_KINDS):
            raise ProfileError(f"processor: query_cycles are {len(QUERY_KINDS)} numbers")
        require_ranges(self, ProfileError, "processor: ")


DEFAULT = CoreProfile()


def from_mapping(table: object) -> CoreProfile:
    """The table `[processor]` of a profile; what it lacks is as by default.

    `cycles` is a table of `KINDS` with cycles per instruction, to three decimals, `query_cycles`
    one of `QUERY_KINDS` with cycles per byte or value; `dram` a number of bytes and the nanoseconds
    that they take. Raises ProfileError.
    """
    if not isinstance(table, Mapping):
        raise ProfileError("processor is not a table")
    values: dict[str, Any] = dict(table)
    require_known("processor has no key", values, [one.name for one in fields(CoreProfile)])
    for key, kinds in (("cycles", KINDS), ("query_cycles", QUERY_KINDS)):
        if key in values:
            values[key] = _cycles(values[key], key, kinds)
    if "dram" in values:
        rate = values["dram"]
        values["dram"] = Rate(*rate) if isinstance(rate, list) and len(rate) == 2 else rate
    return CoreProfile(**values)


def _cycles(table: object, key: str, kinds: Sequence[str]) -> tuple[int, ...]:
    if not isinstance(table, Mapping):
        raise ProfileError(f"processor: {key} is not a table of kinds of work")
    require_known(f"processor.{key} has no key", table, kinds)
    cycles = dict(zip(kinds, getattr(DEFAULT, key), strict=True))
    for kind, value in table.items():
        if type(value) not in (int, float) or not 0 <= value <= LARGEST // THOUSAND:
            raise ProfileError(f"processor: {key}.{kind} is {value!r}, no number of cycles")
        cycles[kind] = round(value * THOUSAND)
    return tuple(cycles.values())


class Price:
    """Duration of work on a core of `profile`: a call returns nanoseconds, rounded up once."""

    def __init__(self, profile: CoreProfile) -> None:
        from fractions import Fraction  # with decimals; every APU imports this module

        cycle = Fraction(NS_PER_S, profile.clock_hz)
        prices = [
            *(cycle * cycles / THOUSAND for cycles in profile.cycles),
            cycle * profile.helper_cycles,
            Fraction(profile.dram.ns, profile.dram.bytes),
            Fraction(NS_PER_S, profile.vta_hz),
            cycle / profile.macs_per_cycle,
            *(cycle * cycles / THOUSAND for cycles in profile.query_cycles),
        ]
        self._unit = math.lcm(*(price.denominator for price in prices))
        self._prices = [int(price * self._unit) for price in prices]
        self._dispatch = profile.dispatch_ns * self._unit
        self._dram = profile.dram

    def __call__(self, work: Work) -> int:
        """Nanoseconds from a job's start to the end of `work`."""
        if work.declared:
            return work.declared - 1
        instructions, *others, queries, _ = work
        counts = (*instructions, *others, *queries)
        total = sum(map(int.__mul__, counts, self._prices), self._dispatch)
        return -(-total // self._unit)

    def dram(self, moved: int) -> int:
        """Nanoseconds of that in which bytes are moved in DRAM, rounded down."""
        return moved * self._dram.ns // self._dram.bytes

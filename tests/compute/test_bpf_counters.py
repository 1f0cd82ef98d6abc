"""Instructions by kind: what an engine counts is what a plain trace of the program says."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from potash_firmware.bpf.counters import InstructionCounters, Kind
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.interpreter import Interpreter
from potash_firmware.bpf.native import compiler
from potash_firmware.bpf.native import engine as native
from potash_firmware.bpf.native.context import SIZE, Word
from support.bpf import LAYOUT, U64, arena, call, exit_, insn, lddw, load, mov, run_on, store
from support.bpf_extremes import extremes
from support.bpf_native import INPUT, case, own_cache
from support.bpf_programs import Case, observe, soup, surroundings
from support.bpf_structured import structured

__all__ = ["own_cache"]

_NAMES = {  # RFC 9669, section 3.3: classes; 4.1: codes; 5: modes
    **dict.fromkeys((0x04, 0x07), "arithmetic"),
    **dict.fromkeys((0x05, 0x06), "jump"),
}


def plainly(opcode: int) -> Kind:
    """The kind of an opcode, from the standard's tables and not from the package's."""
    what, code = _NAMES.get(opcode & 7), opcode >> 4
    if what == "arithmetic":
        return {2: Kind.MULTIPLY, 3: Kind.DIVIDE, 9: Kind.DIVIDE}.get(code, Kind.ALU)
    if what == "jump":
        return Kind.CALL if code in (8, 9) else Kind.BRANCH
    if opcode & 7 == 1:
        return Kind.LOAD
    if opcode & 7 == 0:
        return Kind.ALU
    return Kind.ATOMIC if opcode & 7 == 3 and opcode >> 5 == 6 else Kind.STORE


def traced(program: Case) -> tuple[list[int], bool]:
    """What a plain loop over an interpreter counts, and whether the program met its limit."""
    space, _, helpers, _ = surroundings(program)
    machine = Interpreter(program.code, space, helpers, program.limit)
    machine.start(program.entry, program.arguments)
    found: Counter[Kind] = Counter()
    limit = False
    try:
        while machine.frames:
            pc, before = machine.pc, machine.executed
            try:
                machine.step()
            finally:
                if machine.executed > before:
                    found[plainly(program.code[8 * pc])] += 1
    except Fault as fault:
        limit = fault.kind is FaultKind.INSTRUCTION_LIMIT
    return [found[kind] for kind in Kind], limit


def agree(program: Case) -> list[int]:
    """Both engines count what the trace does; a program at its limit may do a few more."""
    program = replace(program, limit=min(program.limit, 20_000))
    expected, limit = traced(program)
    plain, compiled = InstructionCounters(), InstructionCounters()
    seen = observe(Engine.INTERPRETER, program, plain)
    assert plain.counts == expected
    counted = observe(Engine.NATIVE, program, compiled)
    if limit:
        most = program.limit + len(program.code) // 8
        assert program.limit <= sum(compiled.counts) <= most
    else:
        assert compiled.counts == expected
        assert counted == seen
    return expected


@pytest.mark.parametrize("make", [structured, soup, extremes])
def test_engines_count_alike(make: Callable[[Random], Case]) -> None:
    for seed in range(4):
        agree(make(Random(seed)))


@pytest.mark.slow
def test_engines_count_alike_in_many_programs() -> None:
    for seed in range(6000):
        for make in (structured, soup, extremes):
            agree(make(Random(seed)))


def test_every_kind_is_counted() -> None:
    counts = agree(
        case(
            lddw(1, INPUT),
            mov(2, 6),
            insn(0x27, 2, imm=7),
            insn(0x37, 2, imm=2),
            insn(0x97, 2, imm=4),
            load(3, 1),
            store(1, 3),
            insn(0xDB, 1, 2),
            insn(0x15, 2, imm=99, offset=1),
            insn(0x85, src=1, imm=1),
            exit_,
            exit_,
        )
    )
    assert counts == [2, 1, 2, 1, 1, 1, 1, 3]


def test_what_faults_is_counted_up_to_the_fault() -> None:
    # Three accesses share a check, which fails for the second one's sake.
    counts = agree(case(lddw(1, INPUT - 516), load(2, 1, 8), load(3, 1), load(4, 1, 16), exit_))
    assert counts[Kind.LOAD] == 2
    assert counts[Kind.CALL] == 0


LOOP = [
    lddw(1, INPUT),
    mov(2, 0),
    mov(3, 0),
    load(4, 1),
    insn(0x0F, 3, 4),
    insn(0x07, 2, imm=1),
    insn(0xA5, 2, offset=-4, imm=5000),
    exit_,
]


def test_progress_is_reported_and_counts_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a nest without checks, which does not pause."""
    monkeypatch.setattr(native, "PROGRESS_INTERVAL", 1000)
    function = [insn(0x85, src=1, imm=2), insn(0x85, src=1, imm=1), exit_]
    program = case(*function, *LOOP)
    expected, _ = traced(program)
    heard: list[int] = []
    counters = InstructionCounters(lambda: heard.append(sum(counters.counts)))
    observe(Engine.NATIVE, program, counters)
    assert counters.counts == expected
    assert len(heard) == 1
    assert sum(expected) // 2 <= heard[0] < sum(expected)


def test_code_that_does_not_count_has_nothing_of_counting() -> None:
    code = b"".join([*LOOP[:-1], call(7), exit_])
    used = {}
    for by_kind in (True, False):
        text = compiler.assembly(code, 0, by_kind=by_kind)
        used[by_kind] = {int(one) for one in re.findall(r"%context, i64 (\d+)", text)}
    counting = set(range(Word.RESERVE, SIZE))
    assert used[True] & counting
    assert not used[False] & counting
    assert used[False] < used[True]


def test_the_limit_counts_beyond_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "PROGRESS_INTERVAL", 1000)
    endless = case(mov(0, 0), insn(0x05, offset=-1), limit=10_000)
    heard: list[int] = []
    counters = InstructionCounters(lambda: heard.append(sum(counters.counts)))
    seen = observe(Engine.NATIVE, endless, counters)
    assert seen.fault is not None and seen.fault[0] is FaultKind.INSTRUCTION_LIMIT
    assert 10_000 <= sum(counters.counts) <= 10_002
    assert [one // 1000 for one in heard] == list(range(1, 11))
    exact, _ = traced(case(*LOOP))
    for limit in (sum(exact), sum(exact) - 1):
        seen = observe(Engine.NATIVE, case(*LOOP, limit=limit), InstructionCounters())
        assert (seen.fault is None) == (limit == sum(exact))


def test_helpers_see_what_was_executed_before_them() -> None:
    counters = InstructionCounters()
    heard: list[list[int]] = []

    def helper(*_: int) -> int:
        heard.append(list(counters.counts))
        return 0

    code = b"".join([mov(1, 1), call(7), insn(0x27, 1, imm=3), call(7), exit_])
    for engine in (Engine.INTERPRETER, Engine.NATIVE):
        heard.clear()
        counters.counts = [0] * len(Kind)
        run_on(engine, code, 0, arena(bytearray(LAYOUT.size)), {7: helper}, (), U64, counters)
        first, second = ({kind: one[kind] for kind in Kind if one[kind]} for one in heard)
        assert first == {Kind.ALU: 1, Kind.CALL: 1}
        assert second == {Kind.ALU: 1, Kind.MULTIPLY: 1, Kind.CALL: 2}


def test_counters_go_on_from_run_to_run() -> None:
    code = b"".join([mov(0, 1), exit_])
    counters = InstructionCounters()
    machine = native.Machine(code, 0, arena(bytearray(LAYOUT.size)), {}, 100, counters)
    for runs in range(1, 4):
        machine.run(())
        assert counters.counts == [runs, 0, 0, 0, 0, 0, 0, runs]

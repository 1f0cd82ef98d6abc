"""The engines' one interface: what it gives, and what becomes of an engine that is not there."""

import logging

import pytest

from potash_firmware.bpf import engine as engines
from potash_firmware.bpf.engine import Engine, unavailable, usable
from potash_firmware.bpf.errors import Fault, FaultKind
from support.bpf import arena, exit_, load, mov, run_on


def test_the_interpreter_gives_the_value_and_counts() -> None:
    code = mov(0, -1) + exit_
    execution = run_on(Engine.INTERPRETER, code, 0, arena(), {}, (), 10)
    assert execution == (2**64 - 1, 2)


def test_a_fault_passes_through() -> None:
    with pytest.raises(Fault) as caught:
        run_on(Engine.INTERPRETER, load(0, 1) + exit_, 0, arena(), {}, (8,), 10)
    assert (caught.value.kind, caught.value.pc, caught.value.address) == (
        FaultKind.OUT_OF_BOUNDS,
        0,
        8,
    )


def test_what_is_missing_is_replaced_with_a_word_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines, "unavailable", lambda engine: "there is no LLVM")
    with caplog.at_level(logging.WARNING):
        assert usable(Engine.NATIVE) is Engine.INTERPRETER
    assert "there is no LLVM" in caplog.text


def test_the_interpreter_is_always_there() -> None:
    assert unavailable(Engine.INTERPRETER) is None
    assert usable(Engine.INTERPRETER) is Engine.INTERPRETER

"""What tests of compiled programs share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from potash_device import cache
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import FaultKind
from potash_firmware.bpf.native import engine as native
from potash_firmware.bpf.native import runtime
from support.bpf import LAYOUT, exit_, insn, lddw
from support.bpf_programs import Case, Observed, observe

BASE = 0x1000_0000
CODE_BASE = 1 << 40
INPUT, OUTPUT, RODATA = BASE + 4096, BASE + 8192, BASE + 16384
FRAME = INPUT - 512
END = RODATA + 64
B, H, W, DW = 0x10, 0x08, 0x00, 0x18


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that has nothing of other tests in it, on disk and in this process."""
    runtime.load()  # or its file would be there too
    root = tmp_path / "cache"
    monkeypatch.setattr(cache, "folder", lambda of: root)
    native.load.cache_clear()
    yield root
    native.load.cache_clear()


def same(case: Case) -> Observed:
    """Run a case on both engines, which must agree; gives what was seen."""
    expected = observe(Engine.INTERPRETER, case)
    seen = observe(Engine.NATIVE, case)
    if expected.fault is not None and expected.fault[0] is FaultKind.INSTRUCTION_LIMIT:
        assert seen.fault is not None
        assert seen.fault[0] is FaultKind.INSTRUCTION_LIMIT
    else:
        assert seen == expected
    return seen


def same_each(functions: Sequence[bytes], arguments: tuple[int, int] = (INPUT, OUTPUT)) -> None:
    """Run functions one by one, on both engines, as parts of one program that is compiled once: its
    entry calls the one that r5 points at."""
    code, starts = bundle(functions)
    for number, start in enumerate(starts):
        print("function", number)
        pointed = (*arguments, 0, 0, CODE_BASE + 8 * start)
        same(Case(code, 0, pointed, bytes(LAYOUT.size), 100_000))


def bundle(functions: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """A program of functions, the entry of which calls the one that r5 points at, and where each
    begins."""
    starts = []
    at = 2 * len(functions) + 2
    for function in functions:
        starts.append(at)
        at += len(function) // 8
    addresses = [lddw(0, start - 2 * index - 1, src=4) for index, start in enumerate(starts)]
    return b"".join([*addresses, insn(0x8D, 5), exit_, *functions]), starts


def case(
    *code: bytes, limit: int = 100_000, arguments: tuple[int, ...] = (INPUT, OUTPUT), fill: int = 0
) -> Case:
    return Case(b"".join(code), 0, arguments, bytes([fill]) * LAYOUT.size, limit)

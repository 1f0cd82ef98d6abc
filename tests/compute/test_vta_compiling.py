"""Where the fast engine's machine code is kept, when it is loaded, and that it lets others run."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numba
import numpy as np
import pytest

from potash_device import cache as caches
from potash_device.vta import engines, warming
from potash_device.vta.config import DRAM_BASE, Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.fast import compiling, layout
from potash_device.vta.fast.admission import decode
from potash_device.vta.fast.peak import PEAKS, best, iterations
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Finish,
    Gemm,
    Instruction,
    Load,
    MicroOp,
    Store,
    encode_stream,
)
from potash_device.vta.simulator import Event, Simulator
from potash_device.vta.stream import StreamError
from support.vta import CONFIGS
from support.vta_engines import Pair, finished

DEFAULT = Config.default()
find_folder = compiling.cache_folder.__wrapped__


class TestCacheFolder:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "potash" / "vta"

    def test_it_is_the_user_s_alone(self, cache: Path) -> None:
        folder = find_folder()
        assert folder is not None and folder.parent == cache
        assert [place.stat().st_mode & 0o777 for place in (cache, folder)] == [0o700, 0o700]

    def test_it_is_closed_where_it_was_open(self, cache: Path) -> None:
        cache.mkdir(mode=0o755, parents=True)
        cache.chmod(0o777)
        assert find_folder() is not None
        assert cache.stat().st_mode & 0o777 == 0o700

    def test_nothing_is_kept_where_it_is_somebody_else_s(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert find_folder() is not None
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert find_folder() is None

    def test_nothing_is_kept_behind_a_link(self, cache: Path, tmp_path: Path) -> None:
        folder = find_folder()
        assert folder is not None
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
        assert find_folder() is None

    def test_nothing_is_kept_where_there_is_no_folder(self, cache: Path) -> None:
        cache.parent.write_text("in the way")
        assert find_folder() is None

    def test_nothing_is_kept_where_others_could_have_put_something(self, cache: Path) -> None:
        folder = find_folder()
        assert folder is not None
        folder.chmod(0o777)
        assert find_folder() is None

    def test_other_sources_have_another_folder(self, cache: Path, tmp_path: Path) -> None:
        (tmp_path / "tiles.py").write_text("other tiles")
        other = caches.Store("vta", [tmp_path]).directory()
        assert other is not None and other.parent == cache
        assert other != find_folder()

    def test_code_for_another_copy_of_the_sources_is_not_taken_for_this_one_s(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They share the folder, but numba does not find what it has compiled of other files."""
        monkeypatch.setattr(warming, "cache_folder", lambda: tmp_path)
        monkeypatch.setattr(warming, "FastSimulator", mock.Mock())
        monkeypatch.setattr(warming, "run", mock.Mock())
        assert not warming.is_warm(DEFAULT)
        warming.warm(DEFAULT)
        assert warming.is_warm(DEFAULT)
        monkeypatch.setattr(warming, "__file__", str(tmp_path / "warming.py"))
        assert not warming.is_warm(DEFAULT)

    def test_what_was_not_used_for_long_is_removed(self, cache: Path) -> None:
        old, recent = cache / "old", cache / "recent"
        for folder in (old, recent):
            (folder / "vta").mkdir(parents=True)
            (folder / "vta" / "code.nbc").write_bytes(b"code")
        os.utime(old, (0, 0))
        used = find_folder()
        assert set(cache.iterdir()) == {recent, used}
        assert (recent / "vta" / "code.nbc").exists()


@compiling.compiled
def _doubled(value: compiling.Number) -> compiling.Number:
    return 2 * value


def _of_all(values: Any) -> compiling.Number:
    """8 and twice the values."""
    total = _doubled(4)
    for value in values:
        total += _doubled(value)
    return total


class TestEntries:
    def test_they_are_compiled_with_what_they_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiling, "cache_folder", lambda: None)  # or it was compiled before
        assert compiling.entry(_of_all)(np.arange(3)) == 14
        part: Any = _doubled
        (found,) = part.overloads.values()
        assert found.signature.args == (numba.int64,)
        name = found.fndesc.llvm_func_name
        assert not found.library._codegen._engine.is_symbol_defined(name)

    def test_what_they_call_runs_as_python_there(self) -> None:
        assert _doubled("ab") == "abab"

    def test_garbage_is_collected_afterwards(self) -> None:
        assert gc.isenabled()
        compiling.entry(lambda value: value + 1)(np.int64(1))
        assert gc.isenabled()


def _stream(*instructions: Instruction) -> bytes:
    return encode_stream([*instructions, Finish()], DEFAULT)


MICRO_OP = Load(memory_type=MemoryId.UOP, dram_base=DRAM_BASE // 4, y_size=1, x_size=1, x_stride=1)
MUCH = Gemm(uop_end=1, iter_in=16000, iter_out=64)
"""More than the readable simulator is left with."""


class TestAuto:
    @pytest.fixture
    def loaded(self, monkeypatch: pytest.MonkeyPatch) -> list[FastSimulator]:
        """The fast engines that were loaded."""
        found: list[FastSimulator] = []
        load = engines._fast

        def noted(*arguments: Any, **options: Any) -> FastSimulator:
            found.append(load(*arguments, **options))
            return found[-1]

        monkeypatch.setattr(engines, "_fast", noted)
        return found

    def test_a_small_program_does_without_numba(self) -> None:
        code = (
            "import sys; from potash_device.vta.core import Core;"
            "from potash_device.vta.config import Config;"
            "Core.create(Config.default(), 4096).execute((3).to_bytes(16, 'little'));"
            "print([name for name in ('numba', 'llvmlite') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert done.stdout == b"[]\n"

    def test_the_fast_engine_does_without_scipy_s_linear_algebra(self) -> None:
        code = (
            "import sys; import potash_device.vta.fast.compiling;"
            "from numba.core.registry import cpu_target; cpu_target.target_context.refresh();"
            "print('numba.np.arraymath' in sys.modules, 'scipy.linalg' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert done.stdout == b"True False\n"

    def test_a_large_one_is_run_by_the_fast_engine(self, loaded: list[FastSimulator]) -> None:
        core = Core.create(DEFAULT, 4096)
        core.execute(_stream(MICRO_OP, Gemm(uop_end=1, iter_in=1000)))
        assert not loaded
        core.execute(_stream(MICRO_OP, MUCH))
        assert len(loaded) == 1
        core.execute(_stream(MICRO_OP))
        assert len(loaded) == 1

    def test_many_small_ones_are_too(self, loaded: list[FastSimulator]) -> None:
        core = Core.create(DEFAULT, 4096)
        for _ in range(11_000):
            core.execute(_stream())
            if loaded:
                break
        assert loaded

    def test_buffers_keep_their_contents(
        self, loaded: list[FastSimulator], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        core = Core.create(DEFAULT, 1 << 16)
        values = bytes(range(1, 255)) * 40
        core.dram[: len(values)] = values
        memories = (MemoryId.INP, MemoryId.WGT, MemoryId.ACC)
        for memory in memories:
            first = DRAM_BASE // DEFAULT.element_bytes(memory)
            load = Load(memory_type=memory, dram_base=first, y_size=1, x_size=4, x_stride=4)
            core.execute(_stream(load))
        assert not loaded
        monkeypatch.setattr(engines.AutoSimulator, "INSTRUCTION_COST", 1.0)
        core.execute(_stream())
        (fast,) = loaded
        for memory, found in zip(memories, (fast.inp, fast.wgt, fast.acc), strict=True):
            held = values[: 4 * DEFAULT.element_bytes(memory)]
            assert found[:4].tobytes() == held

    def test_what_is_refused_is_refused_by_either(self, loaded: list[FastSimulator]) -> None:
        core = Core.create(DEFAULT, 4096)
        bad = _stream(Gemm(uop_end=1, iter_in=3, dst_factor_in=2047), MUCH)
        for stream in (b"\x07" * 16, b"\x07" * 16 * 20_000, bad):
            with pytest.raises(StreamError):
                core.execute(stream)
        assert loaded

    def test_a_reset_zeroes_the_buffers(self, loaded: list[FastSimulator]) -> None:
        core = Core.create(DEFAULT, 4096)
        core.dram[:64] = bytes(range(64))
        load = Load(memory_type=MemoryId.ACC, dram_base=DRAM_BASE // 64, y_size=1, x_size=1)
        core.execute(_stream(load, MUCH))
        assert loaded[0].acc.any()
        core.reset()
        assert not loaded[0].acc.any()


class TestTrace:
    def test_it_shows_the_order_of_execution(self) -> None:
        fast = FastSimulator(DEFAULT, memoryview(bytearray(4096)))
        seen: list[Event] = []
        fast.trace = seen.append
        push, pop = Dependencies.PUSH_NEXT, Dependencies.POP_PREV
        load = Load(memory_type=MemoryId.INP, dependencies=push)
        gemm = Gemm(dependencies=pop)
        fast.execute(_stream(gemm, load))
        assert [event.index for event in seen] == [1, 0, 2]

    def test_what_is_watched_has_the_same_effect(self) -> None:
        pair = Pair(DEFAULT, micro_ops=[MicroOp(1, 2, 3)])
        pair.fast.trace = lambda event: None
        pair.check(finished(Gemm(uop_end=1, iter_in=9, dst_factor_in=1)))
        pair.fast.trace = None
        pair.check(finished(Gemm(uop_end=1, iter_in=9, src_factor_in=1)))


class TestProgramsThatAreKept:
    def test_they_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("potash_device.vta.fast.simulator.KEPT_INSTRUCTIONS", 10)
        fast = FastSimulator(DEFAULT, memoryview(bytearray(4096)))
        no_op = Load(memory_type=MemoryId.INP)
        streams = [_stream(*[no_op] * count) for count in (3, 4, 5)]
        for stream in streams:
            fast.execute(stream)
        assert list(fast._programs) == streams[-1:]
        fast.execute(_stream(*[no_op] * 20))
        assert not fast._programs and fast._kept == 0

    def test_the_one_that_was_used_last_stays_longest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("potash_device.vta.fast.simulator.KEPT_INSTRUCTIONS", 10)
        fast = FastSimulator(DEFAULT, memoryview(bytearray(4096)))
        one, two, three = (
            _stream(*[Load(memory_type=MemoryId.INP, y_size=number)] * 3) for number in range(3)
        )
        for stream in (one, two, one, three):
            fast.execute(stream)
        assert list(fast._programs) == [one, three]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    ("instruction", "columns"),
    [
        (
            Gemm(uop_end=1, iter_out=3, iter_in=2, reset=True),
            {layout.UOP_END: 1, layout.ITER_OUT: 3, layout.ITER_IN: 2, layout.RESET: 1},
        ),
        (
            Alu(alu_opcode=AluOpcode.SHR, use_imm=True, imm=-7, iter_out=5, iter_in=0),
            {layout.ALU_OPCODE: 3, layout.USE_IMM: 1, layout.IMM: -7, layout.ITER_OUT: 5},
        ),
        (
            Load(memory_type=MemoryId.ACC, sram_base=3, y_size=2, x_pad_1=9),
            {layout.MEMORY_TYPE: 3, layout.SRAM_BASE: 3, layout.Y_SIZE: 2, layout.X_PAD_1: 9},
        ),
        (
            Store(memory_type=MemoryId.OUT, dram_base=2**32 - 1, x_stride=77, x_size=5),
            {
                layout.MEMORY_TYPE: 4,
                layout.DRAM_BASE: 2**32 - 1,
                layout.X_STRIDE: 77,
                layout.X_SIZE: 5,
            },
        ),
        (Finish(dependencies=Dependencies.POP_NEXT), {layout.DEPENDENCIES: 2}),
    ],
)
def test_every_field_has_its_column(
    config: Config, instruction: Instruction, columns: dict[int, int]
) -> None:
    words = np.frombuffer(instruction.encode(config).to_bytes(16, "little"), "<u8")
    row = np.zeros(layout.COLUMNS, np.int64)
    assert decode(words, layout.fields(config), row)
    expected = {layout.OPCODE: int(instruction.opcode), **columns}
    assert {at: int(row[at]) for at in range(layout.COLUMNS) if row[at] or at == 0} == expected


def test_other_threads_run_while_a_stream_does() -> None:
    """What the stream stores first is seen before it stores the last."""
    dram = memoryview(bytearray(1 << 16))
    begun, ended = 1024, 2048
    marks = [
        Store(
            memory_type=MemoryId.OUT,
            dram_base=(DRAM_BASE + at) // 16,
            y_size=1,
            x_size=1,
            dependencies=dependencies,
        )
        for at, dependencies in ((begun, Dependencies.PUSH_PREV), (ended, Dependencies.POP_PREV))
    ]
    waits = Load(memory_type=MemoryId.UOP, dependencies=Dependencies.POP_NEXT)
    tells = Load(memory_type=MemoryId.UOP, dependencies=Dependencies.PUSH_NEXT)
    simulator = Simulator(DEFAULT, dram)
    simulator.acc[:] = 1
    fast = FastSimulator(DEFAULT, dram, path="loops")
    fast.execute(_stream())
    fast.adopt(simulator)
    stream = _stream(marks[0], waits, *[MUCH] * 8, tells, marks[1])
    thread = threading.Thread(target=fast.execute, args=(stream,))
    thread.start()
    seen = 0
    while thread.is_alive():
        seen += dram[begun] == 1 and dram[ended] == 0
    thread.join()
    assert dram[ended] == 1
    assert seen


@pytest.mark.skipif(best() is None, reason="this processor has no instruction to compare with")
def test_the_peak_does_as_many_iterations_as_requested() -> None:
    at = best()
    assert at is not None
    assert iterations[at](5) == 5
    assert PEAKS[at].operations == 2 * PEAKS[at].products * PEAKS[at].lanes * 12 * 4

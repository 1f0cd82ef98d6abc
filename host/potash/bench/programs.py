"""Programs on an accelerator's processor, compared with the same C compiled for this machine.

Both work on the same memory, alternately, and their outputs must be equal. Potash's time is that of
a job whose program the worker has run before, without the compiler, which runs once for a program
and is measured separately. The native code has no bounds checks and no limit.
"""

import ctypes
import importlib.util
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from potash.bench.report import Baseline, Result, Settings, alone, paired
from potash.programs.compiler import Compiler, build, find_compiler
from potash.programs.examples import examples_folder
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash_firmware import bpf
from potash_firmware.bpf import elf, engine, reserve
from potash_firmware.bpf.arena import Layout
from potash_firmware.bpf.machine import NO_ARGUMENTS
from potash_firmware.bpf.native import compiler
from potash_firmware.bpf.native import engine as native

FOLDER = Path(__file__).parent / "kernels"
KERNELS = (
    "sum",
    "sum64",
    "histogram",
    "filter",
    "grep",
    "crc32",
    "sha256",
    "matmul",
    "sieve",
    "copy",
)
HELPER = "helper"
NAMES = (*KERNELS, HELPER)
ALL = "all kernels"

SIZE = 16 << 20
"""Bytes of input, and of output."""
HELPER_CALLS = 1 << 18
LIMIT = 1 << 62
ROUNDS = 3
"""Times that a program is compiled, and loaded."""

_Native = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_void_p,
)


def find_native() -> Compiler:
    """The compiler for this machine: clang, or else ziglang's. Raises PotashError."""
    clang = shutil.which("clang")
    if clang is not None:
        return Compiler("clang -O2", (clang,))
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler("zig cc -O2", (sys.executable, "-m", "ziglang", "cc"))
    raise PotashError("no C compiler was found for the baseline: install clang or ziglang")


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named. Raises PotashError where there is no compiler, the native engine
    cannot be used, or a program's output is not that of the native code."""
    reason = engine.unavailable(engine.Engine.NATIVE)
    if reason is not None:
        raise PotashError(reason)
    baseline = find_native()
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(prefix="potash-bench-") as folder:
        bench = _Bench(Path(folder), examples_folder() / "include", baseline)
        for index, name in enumerate(settings.names):
            progress(name, index / len(settings.names))
            if name == HELPER:
                yield from bench.helper(settings.pairs)
                continue
            results = list(bench.kernel(name, settings.pairs))
            ratios += [result.ratio for result in results if result.ratio is not None]
            yield from results
    if len(ratios) > 1:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        spread = min(ratios), max(ratios)
        native_time = Baseline(baseline.name, 1.0)
        yield Result(ALL, "mean time", mean, "of native's", native_time, mean, len(ratios), spread)


class _Bench:
    """Input, output and compilers."""

    def __init__(self, folder: Path, includes: Path, baseline: Compiler) -> None:
        self._folder = folder
        self._includes = includes
        self._baseline = baseline
        self._layout = bpf.buffer_layout(SIZE, SIZE)
        self._memory = reserve.allocate(self._layout.size)
        start = self._layout.input_offset
        self._memory[start : start + SIZE] = random.Random(SIZE).randbytes(SIZE)
        self._services = bpf.Services(lambda text: None, _no_model, _no_model)

    def kernel(self, name: str, pairs: int) -> Iterator[Result]:
        """Time beside native code's, time to compile, and time to load from the cache."""
        program = self._program(name)
        prepared = self._prepare(program)
        baseline = self._native(name)
        yield from self._compiling(name, program)
        begin = self._layout.output_offset
        output = self._memory[begin : begin + SIZE]
        outputs = []
        runs: tuple[Callable[[], tuple[float, int]], ...] = (
            lambda: self._run(prepared),
            lambda: self._run_native(baseline),
        )
        for run in runs:
            output[:] = bytes(SIZE)
            _, value = run()
            outputs.append((value & 0xFFFF_FFFF, bytes(output)))
        if outputs[0] != outputs[1]:
            raise PotashError(f"{name}: the program's output is not that of native code")
        times = []
        for index in range(pairs):
            if index % 2:
                baseline_time, potash = self._run_native(baseline)[0], self._run(prepared)[0]
            else:
                potash, baseline_time = self._run(prepared)[0], self._run_native(baseline)[0]
            times.append((potash * 1e3, baseline_time * 1e3))
        yield paired(name, "time", "ms", self._baseline.name, times)

    def helper(self, pairs: int) -> Iterator[Result]:
        program = self._program(HELPER)
        prepared = self._prepare(program)
        self._run(prepared, HELPER_CALLS)
        costs = [self._run(prepared, HELPER_CALLS)[0] / HELPER_CALLS * 1e6 for _ in range(pairs)]
        yield alone(HELPER, "call", "µs", costs)

    def _program(self, name: str) -> bpf.Program:
        built = build(
            FOLDER / f"{name}.c",
            self._folder / f"{name}.o",
            compiler=find_compiler(),
            includes=[self._includes],
        )
        return built.program

    def _native(self, name: str) -> ctypes.CDLL:
        made = self._folder / f"{name}.so"
        flags = ["-O2", "-shared", "-fPIC", f"-I{self._includes}"]
        command = [*self._baseline.command, *flags, str(FOLDER / f"{name}.c"), "-o", str(made)]
        # What the compiler leaves when it is killed is gone with the folder.
        environment = {**os.environ, "TMPDIR": str(made.parent)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise PotashError(
                f"{self._baseline.name} does not compile {name}: {done.stderr.strip()}"
            )
        return ctypes.CDLL(str(made))

    def _compiling(self, name: str, program: bpf.Program) -> Iterator[Result]:
        layout = Layout(SIZE, SIZE, data_size=len(program.data), rodata_size=len(program.rodata))
        code = elf.link(program, layout).code
        compiling, loading = [], []
        compiler.compile_program(code, program.entry)  # LLVM's own first time is not the program's
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            contents = compiler.compile_program(code, program.entry)
            compiling.append((time.perf_counter() - begun) * 1e3)
            compiler.OBJECTS.keep(native.name_of(code, program.entry), contents)
            begun = time.perf_counter()
            kept = compiler.OBJECTS.load(native.name_of(code, program.entry))
            assert kept is not None
            native.place(kept, program.entry)
            loading.append((time.perf_counter() - begun) * 1e3)
        yield alone(name, "compile", "ms", compiling)
        yield alone(name, "load from the cache", "ms", loading)

    def _prepare(self, program: bpf.Program) -> bpf.Prepared:
        return bpf.Prepared(
            program,
            self._memory,
            input_size=SIZE,
            output_size=SIZE,
            services=self._services,
            instruction_limit=LIMIT,
            engine=bpf.Engine.NATIVE,
        )

    def _run(self, prepared: bpf.Prepared, length: int = SIZE) -> tuple[float, int]:
        """Seconds, and r0."""
        begun = time.perf_counter()
        outcome = prepared.run(length, SIZE, NO_ARGUMENTS)
        return time.perf_counter() - begun, outcome.return_value

    def _run_native(self, library: ctypes.CDLL) -> tuple[float, int]:
        function = _Native(("prog", library))
        memory = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        source, target = memory + self._layout.input_offset, memory + self._layout.output_offset
        begun = time.perf_counter()
        value = function(source, target, SIZE, SIZE, None)
        return time.perf_counter() - begun, value


def _no_model(model: memoryview, given: memoryview, output: memoryview) -> int:
    raise AssertionError("no kernel runs a model")

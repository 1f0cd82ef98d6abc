"""The path of AMX: its arithmetic by a model of the tiles' instructions, around which all code is
that of the path; its instructions by their encodings; and that the kernel is asked."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir

from potash_device.vta.config import Config
from potash_device.vta.fast import paths
from potash_device.vta.fast.compiling import Number, entry
from potash_device.vta.fast.emitting import I64
from potash_device.vta.fast.matrix import Assembly, configure
from potash_device.vta.isa import Gemm, MicroOp, encode_stream
from support.amx import MODEL
from support.vta_engines import Pair, finished

DEFAULT = Config.default()
ENCODINGS: dict[str, tuple[Callable[[Assembly, Any, Any], None], str]] = {
    # The manual's opcodes, with VEX.pp for the prefix, VEX.vvvv for the second source and, from
    # memory, a SIB byte: LDTILECFG NP 0F38 49 /0, TILERELEASE NP 0F38 49 C0, TILEZERO F2 0F38 49
    # 11:reg:000, TILELOADD F2 0F38 4B /r, TILESTORED F3 0F38 4B /r, TDPBSSD F2 0F38 5E 11:rrr:bbb.
    "ldtilecfg (%rdi)": (lambda emit, at, step: emit.configure(at), "c4e2784907"),
    "tilerelease": (lambda emit, at, step: emit.release(), "c4e27849c0"),
    "tilezero %tmm3": (lambda emit, at, step: emit.zero(3), "c4e27b49d8"),
    "tileloadd (%rdi,%rsi), %tmm5": (lambda emit, at, step: emit.load(5, at, step), "c4e27b4b2c37"),
    "tilestored %tmm2, (%rdi,%rsi)": (
        lambda emit, at, step: emit.store(2, at, step),
        "c4e27a4b1437",
    ),
    "tdpbssd %tmm7, %tmm4, %tmm1": (lambda emit, at, step: emit.multiply(1, 4, 7), "c4e2435ecc"),
}


@pytest.mark.parametrize("text", ENCODINGS)
def test_encodings(text: str) -> None:
    """LLVM makes of each line what the manual says."""
    emitted, encoding = ENCODINGS[text]
    module = ir.Module()
    kind = ir.FunctionType(ir.VoidType(), [I64, I64])
    function = ir.Function(module, kind, "lines")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emitted(Assembly(builder), *function.args)
    builder.ret_void()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="x86-64", features="+amx-tile,+amx-int8"
    )
    found = machine.emit_object(llvm.parse_assembly(str(module)))
    assert bytes.fromhex(encoding) + b"\xc3" in found  # and a return


@entry
def _configure(buffers: Any, rows: Number, pairs: Number) -> None:
    configure(buffers, rows, pairs)


def test_a_configuration_of_the_registers() -> None:
    """As the manual has it: palette, bytes of each row from 16 on, rows from 48 on."""
    buffers = paths.make(MODEL, DEFAULT)
    assert isinstance(buffers, paths.AmxModel)
    _configure(buffers, 14, 3)
    found = buffers.registers[8 * 1024 :]
    assert found[0] == 1 and not found[1:16].any()
    assert found[16:48].view(np.uint16).tolist() == [64] * 4 + [48] * 2 + [64, 4] + [0] * 8
    assert found[48:64].tolist() == [14] * 6 + [12, 1] + [0] * 8


needs_model = pytest.mark.skipif(
    MODEL not in paths.available(DEFAULT), reason="the model is beside AVX-512 VNNI"
)


@needs_model
class TestModel:
    @given(
        st.sampled_from((8, 9, 14, 15, 16, 17, 28, 31, 33, 48, 49, 56, 64, 70)),
        st.sampled_from((1, 2, 3, 4, 6, 8, 12)),
        st.sampled_from((1, 2, 3, 4, 5, 7, 9)),
        st.sampled_from((1, 2, 3)),
        st.sampled_from((0, 0, 1, 40)),
        st.booleans(),
    )
    def test_any_shape(
        self, length: int, products: int, blocks: int, step: int, source: int, fresh: bool
    ) -> None:
        """Positions, runs of products and blocks, which have their inputs in common or not."""
        micro_ops = [
            MicroOp(x, 200 + step * x + k, k) for k in range(products) for x in range(length)
        ]
        gemm = Gemm(
            uop_end=len(micro_ops),
            iter_out=blocks,
            dst_factor_out=length,
            src_factor_out=source,
            wgt_factor_out=products,
        )
        stream = [Gemm(uop_end=len(micro_ops), iter_out=blocks, dst_factor_out=length, reset=True)]
        pair = Pair(DEFAULT, path=MODEL, seed=length, micro_ops=micro_ops, step_limit=1 << 20)
        assert pair.check(finished(*stream * fresh, gemm, gemm)).refusal is None

    @pytest.mark.parametrize("dst_step", [1, 2, 3])
    @pytest.mark.parametrize("block_step", [0, 1, 2, 3, 16])
    def test_blocks_that_share_accumulators(self, dst_step: int, block_step: int) -> None:
        """Any two blocks, or only those that do not follow each other, add to the same ones."""
        micro_ops = [MicroOp(dst_step * x, 300 + x, 0) for x in range(15)]
        gemm = Gemm(uop_end=15, iter_out=8, dst_factor_out=block_step, wgt_factor_out=1)
        pair = Pair(DEFAULT, path=MODEL, micro_ops=micro_ops)
        assert pair.check(finished(gemm)).refusal is None

    def test_tiles_that_lose_their_contents(self) -> None:
        """After any of the instructions: there are virtual machines where they do."""
        micro_ops = [MicroOp(x, x + k, k) for k in range(6) for x in range(28)]
        gemm = Gemm(uop_end=len(micro_ops), iter_out=2, dst_factor_out=28, wgt_factor_out=6)
        pair = Pair(DEFAULT, path=MODEL, micro_ops=micro_ops)
        buffers = pair.fast._buffers
        assert isinstance(buffers, paths.AmxModel)
        left = buffers.registers[-8:].view(np.int64)
        for instructions in range(1, 60):
            left[0] = instructions
            pair.check(finished(gemm))
            if left[0] > 0:
                break
        assert 20 < instructions < 59

    @pytest.mark.parametrize(
        ("length", "products", "tiled"), [(14, 3, 14), (31, 2, 30), (7, 1, 0), (16, 1, 0)]
    )
    def test_tiles_multiply_where_there_are_enough_products(
        self, length: int, products: int, tiled: int
    ) -> None:
        """Only they read the inputs as they are."""
        micro_ops = [MicroOp(x, x + k, k) for k in range(products) for x in range(length)]
        pair = Pair(DEFAULT, path=MODEL, micro_ops=micro_ops)
        pair.readable.wgt[:] = 1
        pair.readable.acc[:] = 0
        pair.fast.adopt(pair.readable)
        buffers = pair.fast._buffers
        assert isinstance(buffers, paths.AmxModel)
        buffers.inp[:], buffers.signed[:] = paths.BIAS + 1, 2
        pair.fast.execute(encode_stream(finished(Gemm(uop_end=len(micro_ops))), DEFAULT))
        found = pair.fast.acc[:length, 0, 0] // (16 * products)
        assert (found == 2).sum() == tiled and (found == 1).sum() == length - tiled


class TestPermission:
    def test_the_path_is_taken_where_user_processor_and_kernel_grant_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        features = "+avx512f,+avx512vl,+avx512bw,+avx512vnni,+amx-tile,+amx-int8"
        monkeypatch.setattr("numba.config.CPU_FEATURES", features)
        monkeypatch.setattr(paths, "_ask_for_amx", lambda: True)
        monkeypatch.delenv(paths.SWITCH, raising=False)
        assert paths.available(DEFAULT)[0] == "vnni512"
        monkeypatch.setenv(paths.SWITCH, "1")
        assert paths.available(DEFAULT)[0] == "amx"
        monkeypatch.setattr(paths, "_ask_for_amx", lambda: False)
        assert paths.available(DEFAULT)[0] == "vnni512"
        monkeypatch.setattr(paths, "_ask_for_amx", lambda: True)
        monkeypatch.setattr("numba.config.CPU_FEATURES", features.replace("+amx-int8", ""))
        assert paths.available(DEFAULT)[0] == "vnni512"


ALL_OF_IT = """
import numba
from potash_device.vta.config import Config
from potash_device.vta.fast import binding, execution, layout, paths, steps
import numpy as np
config = Config.default()
where = steps.sink(config, 1, 1), layout.geometry(config, 4096, 1), np.zeros(64, np.uint8)
own = np.zeros(64, np.uint32), paths.make("amx", config), np.zeros(64, np.int32)
progress = np.zeros(execution.LINE, np.int64)
work = execution.Work(*where, *own, execution.WHOLE, progress, execution.NOTHING)
execution.run.compile((binding.Address(numba.typeof(work)), numba.int64, numba.int64))
(text,) = execution.run.inspect_asm().values()
lines = ("ldtilecfg", "tilezero", "tileloadd", "tdpbssd", "tilestored", "tilerelease", "vpdpbusd")
print(*(name for name in lines if name in text))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="there is no other assembler")
def test_the_path_compiles_for_a_processor_that_has_it() -> None:
    """All of its code, which no processor here may be able to run."""
    features = "+avx512f,+avx512vl,+avx512bw,+avx512dq,+avx512vnni,+avx2,+amx-tile,+amx-int8"
    processor = {"NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(
        [sys.executable, "-c", ALL_OF_IT],
        env=os.environ | processor,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    names = "ldtilecfg tilezero tileloadd tdpbssd tilestored tilerelease vpdpbusd"
    assert done.stdout.strip() == names, done.stderr

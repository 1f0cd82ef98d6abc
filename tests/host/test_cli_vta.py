"""`potash vta`: streams on images of DRAM, streams as text, and a core's figures."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potash.cli.app import run_app
from potash.files import LONG
from potash_device.vta.assembly import assemble
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.engines import ENGINES
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Dependencies,
    Finish,
    Instruction,
    Load,
    Store,
    encode_stream,
)
from support.docs import blocks, run_shell
from support.vta import CONFIGS, TINY

LIMIT = 60
BASE = 0x1000

INCREMENT = """
 0: load acc sram_base=1 dram_base=0x40 y_size=1 x_size=2 x_stride=2
 1: load uop dram_base=0x440 y_size=1 x_size=1 x_stride=1
 2: alu add uop_end=1 iter_out=1 iter_in=2 dst_factor_in=1 use_imm imm=-7 push_next
 3: store out sram_base=1 dram_base=0x118 y_size=1 x_size=2 x_stride=2 pop_prev push_prev
 4: finish pop_next
"""
"""For the default core and DRAM from 0x1000 on: two elements of ACC at 0x1000, the micro-op at
0x1100; seven less than they are goes to 0x1180."""


class Run:
    """The files of one `potash vta run`."""

    def __init__(self, folder: Path) -> None:
        self.insns = folder / "insns.bin"
        self.dram = folder / "dram.bin"
        self.out = folder / "out.bin"
        self.folder = folder

    def __call__(self, *options: object) -> int:
        files = ["--insns", self.insns, "--dram", self.dram, "--output", self.out]
        return run_app(["vta", "run", *map(str, files), *map(str, options)])

    @property
    def nothing_is_left_over(self) -> bool:
        return not [path for path in self.folder.iterdir() if path.name.startswith(".")]


@pytest.fixture
def case(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    text = tmp_path / "insns.txt"
    text.write_text(INCREMENT)
    assert run_app(["vta", "asm", str(text), "--output", str(run.insns)]) == 0
    image = np.zeros(1024, np.uint8)
    image[:128].view("<i4")[:] = np.arange(-16, 16) * 1000
    image[0x100:0x104] = [1, 0, 0, 0]
    image[0x200:] = 0xA5
    run.dram.write_bytes(image.tobytes())
    return run


def after_increment(before: bytes) -> bytes:
    values = (np.arange(-16, 16) * 1000 - 7).astype(np.int8).tobytes()
    return before[:0x180] + values + before[0x1A0:]


class TestRun:
    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_whole_image_is_written(
        self, case: Run, engine: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = case.dram.read_bytes()
        capsys.readouterr()
        assert case("--engine", engine) == 0
        assert case.out.read_bytes() == after_increment(before)
        assert case.dram.read_bytes() == before
        said = capsys.readouterr()
        assert said.out == f"5 instructions ran on 1024 bytes of DRAM, which are in {case.out}\n"
        assert said.err == ""

    def test_it_reports_as_json(self, case: Run, capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        assert case("--json", "--order", "program", "--engine", "readable") == 0
        assert json.loads(capsys.readouterr().out) == {
            "output": str(case.out),
            "bytes": 1024,
            "base": 0x1000,
            "instructions": 5,
            "engine": "readable",
            "order": "program",
        }

    @pytest.mark.parametrize("base", [0, 0xFF0, 0x1008, 0x40000000])
    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_image_may_begin_at_any_address(self, case: Run, base: int, engine: str) -> None:
        """The same elements, seen from another first byte."""
        first = -(-base // 64) * 64
        stored = first + 0x180
        one: dict[str, Any] = {"y_size": 1, "x_size": 2, "x_stride": 2}
        stream: list[Instruction] = [
            Load(memory_type=MemoryId.ACC, dram_base=first // 64, **one),
            Store(memory_type=MemoryId.OUT, dram_base=stored // 16, **one),
            Finish(),
        ]
        case.insns.write_bytes(encode_stream(stream, Config.default()))
        values = np.arange(32, dtype="<i4") * 77 - 1000
        image = np.full(stored - base + 32, 3, np.uint8)
        image[first - base :][:128] = values.view(np.uint8)
        case.dram.write_bytes(image.tobytes())
        image[-32:] = values.astype(np.int8).view(np.uint8)
        assert case("--base", hex(base), "--engine", engine) == 0
        assert case.out.read_bytes() == image.tobytes()

    @pytest.mark.parametrize("engine", ENGINES)
    def test_program_order_ignores_tokens(self, case: Run, engine: str) -> None:
        """Without its tokens this stream stores before it computes."""
        one: dict[str, Any] = {"y_size": 1, "x_size": 1, "x_stride": 1}
        stream: list[Instruction] = [
            Store(
                memory_type=MemoryId.OUT, dram_base=0x118, dependencies=Dependencies.POP_PREV, **one
            ),
            Load(
                memory_type=MemoryId.ACC, dram_base=0x40, dependencies=Dependencies.PUSH_NEXT, **one
            ),
            Finish(),
        ]
        case.insns.write_bytes(encode_stream(stream, Config.default()))
        before = case.dram.read_bytes()
        loaded = (np.arange(-16, 0) * 1000).astype(np.int8).tobytes()
        assert case("--engine", engine) == 0
        assert case.out.read_bytes() == before[:0x180] + loaded + before[0x190:]
        assert case("--engine", engine, "--order", "program") == 0
        assert case.out.read_bytes() == before[:0x180] + bytes(16) + before[0x190:]

    @pytest.mark.parametrize("config", CONFIGS[1:], ids=["tiny", "half", "wide", "one", "large"])
    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_configuration_changes_what_an_element_is(
        self, case: Run, config: Config, engine: str
    ) -> None:
        """Negate an element of ACC and store it behind itself."""
        one: dict[str, Any] = {"y_size": 1, "x_size": 1}
        acc, out = (config.element_bytes(memory) for memory in (MemoryId.ACC, MemoryId.OUT))
        base = 1 << 16
        values = np.random.default_rng(3).integers(-(2**31), 2**31, acc // 4).astype("<i4")
        image = bytearray(bytes(4) * max(1, acc // 4) + values.tobytes() + bytes(out))
        stream: list[Instruction] = [
            Load(memory_type=MemoryId.ACC, dram_base=base // acc + 1, **one),
            Load(memory_type=MemoryId.UOP, dram_base=base // 4, **one),
            Alu(
                alu_opcode=AluOpcode.MUL,
                use_imm=True,
                imm=-1,
                uop_end=1,
                dependencies=Dependencies.PUSH_NEXT,
            ),
            Store(
                memory_type=MemoryId.OUT,
                dram_base=(base + 2 * acc) // out,
                dependencies=Dependencies.POP_PREV,
                **one,
            ),
            Finish(),
        ]
        case.insns.write_bytes(encode_stream(stream, config))
        case.dram.write_bytes(image)
        file = case.folder / "vta_config.json"
        file.write_text(json.dumps(config.to_mapping()))
        assert case("--vta-config", file, "--base", base, "--engine", engine) == 0
        width = f"<i{1 << config.log_out_width - 3}"
        image[2 * acc :] = (-values.astype(np.int64)).astype(width).tobytes()
        assert case.out.read_bytes() == image

    def test_the_image_may_be_replaced(self, case: Run) -> None:
        before = case.dram.read_bytes()
        case.dram.chmod(0o640)
        link = case.folder / "link"
        link.symlink_to(case.dram)
        case.out = link
        assert case() == 0
        assert link.is_symlink()
        assert case.dram.read_bytes() == after_increment(before)
        assert stat.S_IMODE(case.dram.stat().st_mode) == 0o640
        assert case.nothing_is_left_over

    def test_a_new_file_has_the_permissions_that_others_have(self, case: Run) -> None:
        assert case() == 0
        assert case.out.stat().st_mode == case.insns.stat().st_mode
        assert case.nothing_is_left_over

    def test_pipes_and_standard_streams(self, case: Run) -> None:
        before = case.dram.read_bytes()
        command = [sys.executable, "-m", "potash.cli.main", "vta", "run", "--insns"]
        done = subprocess.run(
            [*command, str(case.insns), "--dram", "-", "--output", "-"],
            input=before,
            capture_output=True,
            timeout=LIMIT,
            check=True,
        )
        assert done.stdout == after_increment(before)
        assert done.stderr == b"5 instructions ran on 1024 bytes of DRAM, which are in -\n"

    def test_a_long_image_shows_its_progress(
        self, case: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = case.dram.read_bytes()
        with case.dram.open("ab") as file:
            file.truncate(LONG)
        assert case() == 0
        expected = after_increment(before)
        with case.out.open("rb") as file:
            assert file.read(len(expected)) == expected
            assert not any(file.read(1 << 16))
        assert case.out.stat().st_size == LONG
        said = capsys.readouterr().err.splitlines()
        assert said == [f"potash: reading {case.dram}", f"potash: writing {case.out}"]
        case.out.unlink()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_an_interrupted_run_leaves_nothing(self, case: Run, number: signal.Signals) -> None:
        forever = "gemm uop_end=1 iter_out=16383 iter_in=16383\nfinish"
        case.insns.write_bytes(assemble(forever.splitlines(), Config.default()))
        command = [sys.executable, "-m", "potash.cli.main", "vta", "run", "--engine", "readable"]
        command += ["--insns", str(case.insns), "--dram", str(case.dram), "--output", str(case.out)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + LIMIT
            while case.nothing_is_left_over and time.monotonic() < deadline:
                assert process.poll() is None
            process.send_signal(number)
            assert process.wait(LIMIT) == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert case.nothing_is_left_over
        assert not case.out.exists()


class TestRefusedRun:
    @pytest.fixture(autouse=True)
    def quiet(self, case: Run, capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        case.out.write_bytes(b"what was there")

    def refused(self, case: Run, capsys: pytest.CaptureFixture[str], *options: object) -> str:
        """The one sentence of a run that is refused and has changed nothing."""
        assert case(*options) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("potash: ")
        assert said.err.count("\n") == 1
        assert case.out.read_bytes() == b"what was there"
        assert case.nothing_is_left_over
        return said.err

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize(
        ("line", "index", "reason"),
        [
            ("word 7", 4, "opcode 7 does not exist"),
            ("finish", 4, "FINISH is not the last instruction of the stream"),
            ("alu min reserved=0x80", 4, "alu: reserved bit 7 is set"),
            ("gemm pop_prev", 4, "deadlock: COMPUTE waits for a token from LOAD"),
            ("store out dram_base=0x140 y_size=1 x_size=1", 4, "0x1400 to 0x140f are not in DRAM"),
            ("load acc sram_base=2048 y_pad_0=1 x_size=1", 4, "is past the 2048 of ACC"),
        ],
    )
    def test_a_stream_is_refused_with_the_index_and_the_reason(
        self,
        case: Run,
        capsys: pytest.CaptureFixture[str],
        line: str,
        index: int,
        reason: str,
        engine: str,
    ) -> None:
        lines = [*INCREMENT.split("\n 4:")[0].splitlines(), line, "finish"]
        text = case.folder / "text"
        text.write_text("\n".join(lines))
        assert run_app(["vta", "asm", str(text), "--output", str(case.insns)]) == 0
        capsys.readouterr()
        said = self.refused(case, capsys, "--engine", engine, "--json")
        assert said.startswith(f"potash: {case.insns}: instruction {index}: ")
        assert reason in said

    def test_the_watchdog_can_be_set(self, case: Run, capsys: pytest.CaptureFixture[str]) -> None:
        assert "more than 1 micro-ops" in self.refused(case, capsys, "--step-limit", 1)

    @pytest.mark.parametrize("size", [0, 1, 15, 17])
    def test_a_stream_has_whole_instructions(
        self, case: Run, capsys: pytest.CaptureFixture[str], size: int
    ) -> None:
        case.insns.write_bytes(bytes(size))
        assert f"{case.insns} has {size} bytes" in self.refused(case, capsys)

    def test_an_image_has_a_byte(self, case: Run, capsys: pytest.CaptureFixture[str]) -> None:
        case.dram.write_bytes(b"")
        assert f"{case.dram} is empty" in self.refused(case, capsys)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{", "not JSON"),
            ('{"LOG_BLOK": 4}', "'LOG_BLOK' is not a key"),
            ('{"LOG_WGT_BUFF_SIZE": 20}', "these buffers are too deep: word 1 of the gemm"),
        ],
    )
    def test_a_configuration_is_refused_with_its_file(
        self, case: Run, capsys: pytest.CaptureFixture[str], text: str, reason: str
    ) -> None:
        file = case.folder / "vta_config.json"
        file.write_text(text)
        said = self.refused(case, capsys, "--vta-config", file)
        assert said.startswith(f"potash: {file}: ")
        assert reason in said

    def test_a_configuration_that_is_not_there(
        self, case: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = self.refused(case, capsys, "--vta-config", case.folder / "none")
        assert f"{case.folder / 'none'}' is neither a core (platform, paper) nor a file" in said

    def test_a_place_that_cannot_be_written(
        self, case: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        case.out = case.folder / "none" / "out"
        assert case() == 1
        said = capsys.readouterr().err
        assert said == (
            f"potash: {case.out} cannot be written: there is no folder {case.out.parent}; make it, "
            "or choose another place\n"
        )

    def test_a_full_device_is_said(self, case: Run, capsys: pytest.CaptureFixture[str]) -> None:
        case.out = Path("/dev/full")
        assert case() == 1
        said = capsys.readouterr().err
        assert said == (
            "potash: /dev/full cannot be written: No space left on device; choose another place\n"
        )

    @pytest.mark.parametrize(
        "options",
        [
            ["--base", "-1"],
            ["--base", "1x"],
            ["--base", hex(1 << 64)],
            ["--order", "none"],
            ["--engine", "none"],
            ["--dram", "-", "--insns", "-"],
        ],
    )
    def test_wrong_usage(
        self, case: Run, capsys: pytest.CaptureFixture[str], options: list[str]
    ) -> None:
        assert case(*options) == 2
        assert case.out.read_bytes() == b"what was there"


class TestText:
    def test_any_bytes_come_back(self, tmp_path: Path) -> None:
        stream, text, back = (tmp_path / name for name in ("stream", "text", "back"))
        stream.write_bytes(os.urandom(16 * 500))
        config = tmp_path / "config"
        config.write_text(json.dumps(TINY.to_mapping()))
        for options in ([], ["--vta-config", str(config)]):
            assert run_app(["vta", "disasm", str(stream), "--output", str(text), *options]) == 0
            assert run_app(["vta", "asm", str(text), "--output", str(back), *options]) == 0
            assert back.read_bytes() == stream.read_bytes()

    def test_it_shows_a_stream(self, case: Run, capsys: pytest.CaptureFixture[str]) -> None:
        capsys.readouterr()
        assert run_app(["vta", "disasm", str(case.insns), "--dram", str(case.dram)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == (
            "     0: load acc sram_base=0x1 dram_base=0x40 y_size=1 x_size=2 x_stride=2"
            "  # COMPUTE: 0x1000 to 0x107f"
        )
        assert lines[2] == "        #       0: dst=1 src=0 wgt=0"
        assert len(lines) == 6

    def test_it_shows_a_stream_as_json(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        stream = tmp_path / "stream"
        stream.write_bytes(bytes([3]) + bytes(15) + bytes([7]) + bytes(14) + b"\x80")
        assert run_app(["vta", "disasm", str(stream), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "instructions": [
                {"index": 0, "word": f"0x{3:032x}", "text": "finish", "remark": "COMPUTE"},
                {
                    "index": 1,
                    "word": "0x80000000000000000000000000000007",
                    "text": "word 0x80000000000000000000000000000007",
                    "remark": "opcode 7 does not exist",
                },
            ]
        }

    @pytest.mark.parametrize(
        ("text", "reason"),
        [(b"finish\njump\n", "line 2: 'jump' is no instruction"), (b"\xff", "is not text")],
    )
    def test_what_is_no_text_of_a_stream_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes, reason: str
    ) -> None:
        source, out = tmp_path / "text", tmp_path / "out"
        source.write_bytes(text)
        assert run_app(["vta", "asm", str(source), "--output", str(out)]) == 1
        said = capsys.readouterr().err
        assert str(source) in said
        assert reason in said
        assert said.count("\n") == 1
        assert not out.exists()


def test_the_documents_session(tmp_path: Path) -> None:
    (session,) = blocks("vta.md", "sh")
    (said,) = blocks("vta.md", "text")
    assert run_shell(session, cwd=tmp_path) == f"{said}\n"

"""`potash vta info`: a core's figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potash.cli.app import run_app
from potash_device.vta.config import Config
from support.vta import TINY


class TestInfo:
    def figures(self, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
        assert run_app(["vta", "info", "--json", *options]) == 0
        figures: dict[str, object] = json.loads(capsys.readouterr().out)
        return figures

    def test_the_papers_bandwidths(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """ "VTA: An Open Hardware-Software Stack for Deep Learning", section 2.6: 8-bit inputs and
        weights, 32-bit accumulators, BATCH=2, BLOCK_IN=16, BLOCK_OUT=16, 200 MHz."""
        config = tmp_path / "config"
        config.write_text('{"LOG_BATCH": 1}')
        options = ("--vta-config", str(config), "--clock", "200")
        memories = self.figures(capsys, *options)["memories"]
        assert isinstance(memories, dict)
        needed = [memories[name]["gbit_per_second"] for name in ("INP", "WGT", "ACC")]
        assert needed == pytest.approx([51.2, 409.6, 204.8])
        assert run_app(["vta", "info", *options]) == 0
        rows = {row.split()[0]: row.split() for row in capsys.readouterr().out.splitlines()[2:]}
        assert [rows[name][-1] for name in ("INP", "WGT", "ACC")] == ["51.2", "409.6", "204.8"]

    def test_the_papers_peak(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Section 5: 16x16 products of 8-bit values at 100 MHz are about 51 GOP/s."""
        figures = self.figures(capsys)
        assert figures["peak_gops"] == pytest.approx(51.2)
        assert figures["operations_per_cycle"] == 512
        assert Config.from_mapping(figures["config"]) == Config.default()  # type: ignore[arg-type]  # it is JSON
        assert run_app(["vta", "info"]) == 0
        assert "51.2 GOP/s at 100 MHz" in capsys.readouterr().out.splitlines()[0]

    def test_sizes_and_places_follow_the_configuration(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = tmp_path / "config"
        config.write_text(json.dumps(TINY.to_mapping()))
        figures = self.figures(capsys, "--vta-config", str(config))
        memories, encoding = figures["memories"], figures["encoding"]
        assert isinstance(memories, dict)
        assert isinstance(encoding, dict)
        assert memories["WGT"] == {
            "id": 1,
            "element_shape": [8, 4],
            "value_bits": 8,
            "element_bytes": 32,
            "elements": 16,
            "buffer_bytes": 512,
            "gbit_per_second": pytest.approx(25.6),
        }
        # 3 bits for 8 micro-ops, 4 for 16 elements of each of the others.
        assert encoding["gemm"]["uop_end"] == [11, 14]
        assert encoding["gemm"]["wgt_factor_in"] == [84, 87]
        assert encoding["micro_op"] == {"dst": [0, 3], "src": [4, 7], "wgt": [8, 11]}
        assert run_app(["vta", "info", "--encoding", "--vta-config", str(config)]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["uop_end", "11-14"] in lines
        assert ["reset", "7"] in lines

    @pytest.mark.parametrize("clock", ["0", "-1", "nan", "inf", "x"])
    def test_a_clock_that_does_not_run(self, clock: str) -> None:
        assert run_app(["vta", "info", "--clock", clock]) == 2

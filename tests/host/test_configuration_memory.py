"""Options and keys of `potash.toml` about memory and limits."""

import tomllib
from pathlib import Path

import pytest

from potash import configuration
from potash.cli.app import run_app
from potash.configuration import Configuration
from potash.toml_kinds import ConfigurationError
from potash_firmware.apu.config import Limits

HERE = Path("/somewhere")


def parsed(text: str, folder: Path) -> Configuration:
    return configuration.parse(tomllib.loads(text), folder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("5000", "power of two"),
        ("2G", "power of two"),
        ("1M:lists,wds", "submission queues"),
        ("1M:sqs,prp", "'prp' is not one of sqs, cqs, lists, rds, wds"),
        ("1M:", "'' is not one of"),
        ("much", "is not a size"),
    ],
)
def test_a_wrong_controller_memory_buffer_is_refused(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match=f'cmb in .device. is .*"64M" or .*{sentence}'):
        parsed(f'[device]\ncmb = "{text}"', HERE)
    assert run_app(["serve", "--cmb", text, "--print-config"]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_memory_in_a_bar_is_a_namespace_of_a_size_that_a_bar_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for memory, sentence in (((), "with a memory namespace"), (("12K",), "a power of two")):
        options = [word for size in memory for word in ("--memory-namespace", size)]
        assert run_app(["serve", "--memory-bar", *options, "--socket", str(tmp_path / "s")]) == 1
        assert sentence in capsys.readouterr().err


def test_memory_has_whole_pages() -> None:
    for size in ("5000", "2T", "no"):
        assert run_app(["serve", "--memory-namespace", size, "--print-config"]) == 2


def test_limits_reach_the_firmware() -> None:
    limits = parsed("[limits]\nmemory = '1G'\nseconds = 60", HERE).described_limits
    assert (limits.memory, limits.seconds) == (1 << 30, 60)
    assert limits.instructions == Limits().instructions
    frames = parsed("[limits]\nframe_size = '8K'", HERE)
    assert frames.described_limits.frame_size == 8192
    (accelerator,) = frames.described_accelerators
    assert (accelerator.frame_size, accelerator.plan.input_offset) == (8192, 8 * 8192)
    assert Configuration().described_limits == Limits()

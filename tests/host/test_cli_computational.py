"""`potash slm` and `potash cp` against a device that has both kinds of namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import potash.sdk
from nvme_spec.identify.capabilities import CommandSet
from potash.cli.app import run_app
from potash.sdk import CommandFailed, DeviceNotFound
from potash.sdk.memory_namespace import Blocks, Bytes
from potash.vm.drive import device_process
from potash_firmware.bpf.crc32c import crc32c
from support.bpf_compiler import NO_COMPILER, compiler

PATTERN = bytes(range(251)) * 400


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("device") / "s"
    options = ["--size", "1M", "--memory-namespace", "2M", "--memory-namespace", "1M"]
    with device_process(path, *options, "--compute-namespace"):
        yield str(path)


def shell(socket: str, folder: Path, *lines: str) -> int:
    """One session: what a host leaves in memory is cleared when it goes."""
    (folder / "script").write_text("\n".join(lines))
    return run_app(["acc", "shell", socket, str(folder / "script")])


def test_bytes_go_to_memory_and_come_back(
    socket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_bytes(PATTERN[:99_998])
    lines = (
        f"slm write {tmp_path}/in --offset 4K --json",
        f"slm read {tmp_path}/out --offset 4097 --data-len 99997",
        "slm fill --offset 4K --data-len 8",
        f"slm read {tmp_path}/filled --offset 4K --data-len 12",
        "slm list",
    )
    assert shell(socket, tmp_path, *lines) == 0
    written, filled, *listed = capsys.readouterr().out.splitlines()
    assert json.loads(written) == {"nsid": 2, "start": 4096, "length": 100_000}
    assert (tmp_path / "out").read_bytes() == PATTERN[1:99_998]
    assert filled == "filled: 8 bytes of namespace 2 from byte 4096"
    assert (tmp_path / "filled").read_bytes() == bytes(8) + PATTERN[8:12]
    assert listed == ["namespace 2: 2 MiB", "namespace 3: 1 MiB"]


def test_blocks_and_memory_are_copied_within_the_drive(socket: str) -> None:
    with potash.sdk.open(f"vfio-user:{socket}", queue_depth=4) as device:
        size = device.block_size
        device.write(3, PATTERN[: 20 * size])
        first, second = device.memory_namespace(2), device.memory_namespace(3)
        first.write(0, PATTERN[:4096])
        total = second.copy(512, [Blocks(1, 4, 8), Bytes(2, 4, 64), Bytes(3, 0, 512)])
        assert total == 8 * size + 64 + 512
        wanted = PATTERN[size : 9 * size] + PATTERN[4:68] + bytes(512)
        assert second.read(512, total) == wanted


def test_range_sets_are_created_listed_and_deleted(
    socket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "cp ranges create 0:4K 3:64K:8K --json",
        "cp list --json",
        "cp ranges delete 1",
        "cp ranges delete 1",
    )
    assert shell(socket, tmp_path, *lines) == 1
    out, err = capsys.readouterr()
    created, listed = map(json.loads, out.splitlines())
    assert created == {"nsid": 4, "id": 1}
    (one,) = listed["range_sets"]
    assert one["ranges"] == [
        {"nsid": 2, "start": 0, "length": 4096},
        {"nsid": 3, "start": 65536, "length": 8192},
    ]
    assert "Invalid Memory Range Set Identifier" in err


def test_programs_run_one_after_another(
    socket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four bytes are filled and copied; the checksum is that of as many bytes as were copied."""
    chain = "cp chain '1 0:4K 4 0x41414141' '0 0:4K 4K:4K 4' '2 4K:4K previous'"
    assert shell(socket, tmp_path, f"{chain} --json", chain) == 0
    report, said = capsys.readouterr().out.splitlines()
    value = crc32c(b"AAAA")
    assert json.loads(report).items() >= {"nsid": 4, "steps": 3, "return_value": value}.items()
    assert said == f"returned {value}"
    for wrong in ("", "x", "0 1 2 3", "0 1:x", "65536", "0 previous 1 2", "0 1 previous"):
        assert run_app(["cp", "chain", socket, wrong]) == 2, wrong


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["slm", "read", "-", "--offset", "2M", "--data-len", "4"],
            "Memory read failed: Invalid Fi",
        ),
        (["slm", "read", "-", "--data-len", "4", "--namespace-id", "9"], "no memory namespace 9"),
        (["slm", "fill", "--offset", "2", "--data-len", "4"], "multiples of 4"),
        (["cp", "ranges", "create", "1:0:4K"], "Invalid Memory Namespace"),
        (["cp", "ranges", "create", "5:4K"], "Invalid Memory Range Set"),
        (["cp", "activate", "--index", "60000"], "Invalid Program Index"),
        (["cp", "execute", "--index", "60000", "--range", "0:4K"], "Invalid Program Index"),
        (["cp", "execute", "--index", "0", "--namespace-id", "1"], "no compute namespace 1"),
        (
            ["cp", "chain", "1 0:4K 8 7", "0 0:4K"],
            "Invalid Field (SCT 0h, SC 02h); 1 of 2 steps had",
        ),
        (["cp", "chain", "1 0:4K 8 7", "60000"], "Invalid Program Index"),
    ],
)
def test_an_error_is_one_sentence(
    socket: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = 3 if words[1] == "ranges" else 2
    assert run_app([*words[:at], socket, *words[at:]]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_drive_without_such_namespaces_says_so(tmp_path: Path) -> None:
    target = f"vfio-user:{tmp_path / 's'}"
    with device_process(tmp_path / "s", "--size", "1M"), potash.sdk.open(target) as device:
        for find in (device.memory_namespace, device.compute_namespace):
            with pytest.raises(DeviceNotFound):
                find()
        with pytest.raises(CommandFailed):
            device.active_namespaces(CommandSet.MEMORY)


@pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)
def test_a_program_in_c_is_built_and_executed(
    socket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seven.c").write_text("int prog(void) { return 7; }")
    lines = (f"cp load {tmp_path}/seven.c --index 12", "cp execute --index 12")
    assert shell(socket, tmp_path, *lines, "cp execute --index 12 --json") == 0
    said, report = capsys.readouterr().out.splitlines()
    assert said == "returned 7"
    assert json.loads(report)["modelled_ns"] is None

"""The experiment of docs/offload.md: its programs against independent implementations, and a small
sweep with its table and picture."""

from __future__ import annotations

import json
import random
import re
import runpy
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from csd_spec.descriptors import encode_arguments
from potash.experiment.point import Point
from potash.programs.compiler import compiled
from potash.sdk import Device
from potash.sdk.memory_namespace import Bytes
from potash.testing import booted_device
from support.bpf_compiler import NO_COMPILER, compiler
from support.docs import ROOT, blocks, run_shell

FOLDER = ROOT / "examples" / "offload"
ROOM = 1 << 18
"""Bytes of the input's and of the output's range."""
WORK = ("grep", "knn", "filter", "lz4")
Execute = Callable[[str, bytes, Sequence[bytes | int]], bytes]

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)


@pytest.fixture(scope="module")
def programs() -> dict[str, bytes]:
    """The object files of the experiment's programs."""
    return {f"{name}.c": compiled(FOLDER / f"{name}.c") for name in WORK}


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with booted_device(size="8M", memory_namespaces=["1M"], compute_namespaces=1) as device:
        yield device


@pytest.fixture(scope="module")
def execute(device: Device, programs: dict[str, bytes]) -> Execute:
    """Runs a program on an input with arguments, and gives its output."""
    memory, compute = device.memory_namespace(), device.compute_namespace()
    indexes: dict[str, int] = {}

    def run(name: str, data: bytes, arguments: Sequence[bytes | int]) -> bytes:
        if name not in indexes:
            indexes[name] = compute.free_index()
            compute.load(indexes[name], programs[f"{name}.c"])
        memory.write(0, data + bytes(-len(data) % 4))
        given = [struct.pack("<I", one) if isinstance(one, int) else one for one in arguments]
        ranges = [Bytes(memory.nsid, 0, ROOM), Bytes(memory.nsid, ROOM, ROOM)]
        used = compute.execute(indexes[name], ranges, data=encode_arguments(given))
        return memory.read(ROOM, used)

    return run


def compressible(source: random.Random, size: int) -> bytes:
    """Bytes of a few values in runs, with random ones among them."""
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < size:
        run = bytes([source.randrange(3)]) * source.choice((1, 3, 20, 300, 5000))
        pieces.append(source.choice((run, source.randbytes(source.randrange(1, 400)))))
    return b"".join(pieces)[:size]


def test_compressed_blocks_are_those_of_lz4(execute: Execute) -> None:
    source, codec = random.Random(4), pa.Codec("lz4_raw")
    sizes = [*range(1, 30), 255, 270, 4096, 65_535, 65_548, 200_000]
    inputs = [compressible(source, size) for size in sizes]
    inputs += [bytes(size) for size in (12, 13, 19, 20, 300, 100_000)]
    repeated = source.randbytes(1000)
    inputs += [repeated + source.randbytes(gap) + repeated for gap in (64_535, 64_536, 70_000)]
    for data in inputs:
        block = execute("lz4", data, [len(data)])
        assert len(block) <= len(data) + len(data) // 255 + 16
        assert codec.decompress(block, len(data)).to_pybytes() == data
    assert len(execute("lz4", bytes(100_000), [100_000])) < 500
    near, far = (len(execute("lz4", data, [len(data)])) for data in inputs[-3:-1])
    assert near < far, "a match is 65 535 bytes back at most"


@pytest.mark.parametrize("wanted", [1, 2, 100, 999, 1000])
def test_the_nearest_vectors_are_numpy_s(execute: Execute, wanted: int) -> None:
    source = np.random.default_rng(wanted)
    vectors = source.integers(0, 256 if wanted % 2 else 2, (1000, 64), np.uint8)
    query = source.integers(0, 256 if wanted % 2 else 2, 64, np.uint8)
    distances = ((vectors.astype(int) - query) ** 2).sum(axis=1)
    nearest = np.argsort(distances, kind="stable")[:wanted]
    output = execute("knn", vectors.tobytes(), [1000, wanted, query.tobytes()])
    found = sorted(struct.unpack(f"<{wanted}Q", output))
    assert [(key >> 32, key & 0xFFFF_FFFF) for key in found] == [
        (distances[index], index) for index in nearest
    ]


def test_records_and_lines_are_those_of_plain_python(execute: Execute) -> None:
    source = random.Random(5)
    records = [source.randbytes(128) for _ in range(500)]
    low, high = 1 << 30, 3 << 30
    chosen = [one for one in records if low <= int.from_bytes(one[20:24], "little") <= high]
    assert execute("filter", b"".join(records), [500, 20, low, high]) == b"".join(chosen)
    lines = [source.randbytes(30).hex() + "\n" for _ in range(500)]
    chosen_lines = [line for line in lines if "a0" in line]
    text = "".join(lines).encode()
    wanted = struct.pack("<Q", len(chosen_lines)) + "".join(chosen_lines).encode()
    assert execute("grep", text, [len(text), b"a0"]) == wanted


def test_wrong_arguments_have_no_output(execute: Execute) -> None:
    uses: list[tuple[str, list[bytes | int]]] = [
        ("grep", [ROOM + 1, b"a"]),
        ("filter", [ROOM, 0, 0, 1]),
        ("knn", [ROOM // 64 + 1, 1, bytes(64)]),
        ("knn", [10, 11, bytes(64)]),
        ("knn", [10, 1, bytes(63)]),
        ("lz4", [ROOM]),
    ]
    for name, arguments in uses:
        assert execute(name, b"data", arguments) == b"", (name, arguments)


def test_the_decoder_of_the_experiment_is_lz4_s() -> None:
    decompressed = runpy.run_path(str(FOLDER / "offload.py"))["decompressed"]
    data = compressible(random.Random(6), 100_000)
    assert decompressed(pa.Codec("lz4_raw").compress(data, asbytes=True)) == data


@pytest.mark.parametrize("selectivity", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("work", WORK)
def test_the_drive_s_answers_are_the_host_s(
    device: Device, programs: dict[str, bytes], work: str, selectivity: float
) -> None:
    functions = runpy.run_path(str(FOLDER / "offload.py"))
    size = 1 << 16
    given: dict[str, Any] = {"work": work, "selectivity": selectivity, "bytes": size}
    given["run_time"] = "declared"
    point: Any = Point(given, [device], programs, 1, None)
    functions["fill"](point)
    in_drive, on_host = functions["drive"](point), functions["host"](point)
    assert in_drive["answer"] == on_host["answer"]
    compute = device.compute_namespace()
    compute.deactivate(point.index)
    compute.unload(point.index)
    if work != "knn":  # whose output is numbers
        assert 0.4 * selectivity < in_drive["output"] / size < selectivity + 0.2


def test_a_small_sweep_has_a_table_and_a_picture(tmp_path: Path) -> None:
    """`potash experiment` ends with an error where the drive and the host have other answers."""
    examples = tmp_path / "examples"
    for name in ("offload", "grep", "filter", "include"):
        shutil.copytree(FOLDER.parent / name, examples / name)
    file = examples / "offload" / "offload.toml"
    text = file.read_text()
    small = {"work": '["lz4"]', "selectivity": "[0.1]", "drives": "[1]", "bytes": "[65536]"}
    for key, values in small.items():
        text, count = re.subn(rf"^{key} = .*", f"{key} = {values}", text, flags=re.MULTILINE)
        assert count == 1
    file.write_text(text)
    experiment, figure = blocks("offload.md", "sh")[0].splitlines()
    run_shell(experiment, cwd=tmp_path)
    assert len(run_shell(figure, cwd=tmp_path).splitlines()) == 2 + 1
    rows = {row["work"]: row for row in json.loads(run_shell(f"{figure} --json", cwd=tmp_path))}
    assert list(rows) == ["lz4"]
    for row in rows.values():
        assert row["declared_ms"] < row["counted_ms"]
        assert 0.1 < row["share"] < 0.5 and row["data"] == 65_536
    assert b"lz4, declared" in (tmp_path / "results" / "offload.svg").read_bytes()

"""`potash query` on whole drives: on an accelerator and in a compute namespace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pytest

import potash.sdk
from nvme_spec.opcodes import AdminOpcode
from potash.cli.app import run_app
from potash.columns import InComputeNamespace, OnAccelerator, Request, StoredBlocks, query
from potash.sdk.errors import PotashError
from potash.sdk.transport import PendingCommand
from potash.sdk.transport import Request as TransportRequest
from potash.vm.drive import device_process
from support.columns import raw, selected, written
from support.docs import SOCKET, blocks, run_python, run_shell
from support.reports import check

ROWS = 40_000
FILTER = '((price > 120) | (price is None)) & (region != "EU")'
SOURCE = np.random.default_rng(25)
TABLE = pa.table(
    {
        "price": pa.array(SOURCE.normal(100, 20, ROWS), mask=SOURCE.random(ROWS) < 0.1),
        "region": pa.array(SOURCE.choice(["EU", "US", "AP"], ROWS)).dictionary_encode(),
        "quantity": SOURCE.integers(-99, 99, ROWS).astype(np.int16),
        "note": SOURCE.random(ROWS),
    }
)
DATA = written(TABLE, 9000)

Report = Callable[..., Any]


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("device") / "s"
    options = ("--memory-namespace", "512K", "--compute-namespace")
    with device_process(path, "--size", "16M", *options):
        yield path


@pytest.fixture
def report(socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    """Queries the table on the drive by the command, and gives its report."""
    (tmp_path / "t.arrow").write_bytes(DATA)

    def run(*arguments: str, lba: int = 8) -> Any:
        words = [str(tmp_path / "t.arrow"), *arguments, "--device", str(socket), "--lba", str(lba)]
        assert run_app(["query", *words, "--json"]) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)
        check("query", found)
        return found

    return run


@pytest.mark.parametrize("execute", [(), ("--execute",)])
def test_a_query_moves_little_and_answers_as_arrow(report: Report, execute: tuple[str]) -> None:
    aggregates = "count(), sum(quantity), min(price), mean(price)"
    found = report(aggregates, "--where", FILTER, "--by", "region", *execute)
    kept = selected(TABLE, FILTER)
    expected = kept.group_by("region").aggregate(
        [([], "count_all"), ("quantity", "sum"), ("price", "min"), ("price", "mean")]
    )
    expected = expected.set_column(0, "region", expected["region"].cast(pa.string()))
    columns = {one["name"]: one["values"] for one in found["columns"]}
    for row, values in enumerate(zip(*(columns[name] for name in columns), strict=True)):
        assert values[0] == ["AP", "US"][row]
        (same,) = expected.filter(pc.equal(expected["region"], values[0])).to_pylist()
        assert int(values[1]) == same["count_all"] and int(values[2]) == same["quantity_sum"]
        assert float(values[3]) == same["price_min"]
        assert float(values[4]) == pytest.approx(same["price_mean"], rel=1e-12)
    assert found["held"] == len(DATA) > 20 * found["moved"]
    assert found["read"] < 0.7 * len(DATA)  # of three columns, where there are four
    assert found["jobs"] == (2 if execute else 1)


@pytest.mark.parametrize("execute", [(), ("--execute",)])
def test_selected_rows_are_an_arrow_file(
    report: Report, tmp_path: Path, execute: tuple[str]
) -> None:
    text = "(price > 150) & (quantity >= 50)"
    wanted = ("--columns", "region,price", "-o", str(tmp_path / "out.arrow"))
    found = report(text, *wanted, *execute)
    made = pyarrow.feather.read_table(tmp_path / "out.arrow")
    expected = selected(TABLE, text).select(["region", "price"])
    assert made.to_pydict() == expected.to_pydict() and found["rows"] == expected.num_rows > 50
    again = tmp_path / "out.arrow"
    assert found["moved"] < len(DATA) / 10 and again.stat().st_size < len(DATA) / 10


def test_a_file_in_blocks_is_queried_again_without_being_sent(
    report: Report, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report("count()", lba=24)
    place = f"lba:24:{len(DATA)}"
    assert run_app(["query", place, "price > 175", "--device", str(socket)]) == 0
    header, *lines, moved = capsys.readouterr().out.splitlines()
    expected = selected(TABLE, "price > 175")
    assert header.split() == TABLE.column_names and len(lines) == expected.num_rows > 0
    assert lines[0].split() == [str(expected[name][0].as_py()) for name in TABLE.column_names]
    assert f"the file has {len(DATA)}, of which the drive read" in moved


def test_both_ways_find_the_same_and_leave_nothing_behind(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = [0]
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        device.write(0, DATA.ljust(-(-len(DATA) // 4096) * 4096, b"\0"))
        submit = device.transport.submit

        def counted(request: TransportRequest, timeout: float) -> PendingCommand:
            if not request.admin or request.opcode == AdminOpcode.LOAD_PROGRAM:
                moved[0] += len(request.data_out or b"") + request.data_in_length
            return submit(request, timeout)

        monkeypatch.setattr(device.transport, "submit", counted)
        compute, memory = device.compute_namespace(), device.memory_namespace()
        before = compute.programs()
        request = Request(FILTER, select=("quantity",))
        ways = (OnAccelerator(device.accelerator()), InComputeNamespace(compute, memory))
        for way in ways:
            moved[0] = 0
            result = query(request, StoredBlocks(device.namespace(), 0, len(DATA)), way)
            assert result.to_pydict() == {"quantity": raw(selected(TABLE, FILTER)["quantity"])}
            assert abs(result.moved - moved[0]) < 16  # what the commands fill up to dwords
        assert compute.programs() == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("lba:0", "count()"), "'lba:0' is not lba:BLOCK:SIZE, two numbers"),
        (("lba:0:4096", "count()"), "the file cannot be queried: it is not an Arrow file"),
        (
            ("lba:99999999:10", "count()"),
            "10 bytes from block 99999999 on are not all on the drive",
        ),
        (("lba:-8:10", "count()"), "block -8 does not start on a page"),
        (("lba:0:-1", "count()"), "-1 bytes from block 0 on are not all on the drive"),
    ],
)
def test_a_place_that_has_no_table_is_named(
    socket: Path, words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        device.write(0, bytes(4096))
    assert run_app(["query", *words, "--device", str(socket)]) in (1, 2)
    assert reason in capsys.readouterr().err


def test_a_file_that_is_on_no_drive_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.arrow").write_bytes(DATA)
    assert run_app(["query", str(tmp_path / "t.arrow"), "count()"]) == 1
    assert "name the drive by --device, and use --lba" in capsys.readouterr().err
    assert run_app(["query", "lba:0:4096", "count()"]) == 1
    assert capsys.readouterr().err == (
        "potash: lba:0:4096 is on a drive; name the drive by --device\n"
    )


def test_blocks_that_begin_no_page_are_refused() -> None:
    class Small:
        block_size, capacity = 512, 1 << 20

    with pytest.raises(PotashError, match="choose a multiple of 8"):
        StoredBlocks(Small(), 7, 100)  # type: ignore[arg-type]  # what it uses of a namespace


def test_what_the_page_shows_works(socket: Path, tmp_path: Path) -> None:
    write, ask = blocks("columns.md", "python")
    _, in_guest, over_socket, *_ = blocks("columns.md", "sh")
    shown = blocks("columns.md", "text")[0]
    run_python(write, cwd=tmp_path)
    said = run_shell(over_socket.replace(SOCKET, str(socket)), cwd=tmp_path).splitlines()
    assert said[-3:-1] == shown.splitlines()[:2]
    made = pyarrow.feather.read_table(tmp_path / "expensive.arrow")
    assert made["price"].to_pylist() == [120.0, 250.25] * 5000
    printed = run_python(ask, cwd=tmp_path, replace={SOCKET: str(socket)})
    assert (
        "{'region': ['EU', 'US'], 'count()': [5000, 5000], 'mean(price)': [9.5, 120.0]}" in printed
    )
    assert in_guest.startswith("potash guest --share sales.arrow")  # as tests/vm does it

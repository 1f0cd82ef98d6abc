"""`potash query` on whole drives: on an accelerator and in a compute namespace."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import potash.sdk
from nvme_spec.opcodes import AdminOpcode
from potash.cli.app import run_app
from potash.columns import (
    InComputeNamespace,
    InvalidQuery,
    OnAccelerator,
    QueryEngine,
    Request,
    StoredBlocks,
    query,
    run,
)
from potash.sdk.errors import InvalidRequest, PotashError
from potash.sdk.transport import PendingCommand
from potash.sdk.transport import Request as TransportRequest
from potash.testing import booted_device
from potash.vm.drive import device_process
from support.columns import ask as ask_in_memory
from support.docs import SOCKET, blocks, run_python, run_shell
from support.reports import check

ROWS = 40_000
FILTER = '((price > 120) | (price is None)) & (region != "EU")'
SOURCE = np.random.default_rng(25)
TABLE = pa.table(
    {
        "price": pa.array(SOURCE.normal(100, 20, ROWS), mask=SOURCE.random(ROWS) < 0.1),
        "region": SOURCE.choice(["EU", "US", "AP"], ROWS),
        "number": np.arange(ROWS),
        "quantity": SOURCE.integers(-99, 99, ROWS).astype(np.int16),
        "note": SOURCE.random(ROWS),
    }
)
ROWS_OF_FILTER = TABLE.filter(
    ((pc.field("price") > 120) | pc.field("price").is_null()) & (pc.field("region") != "EU")
)


def _parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(TABLE, stream, row_group_size=9000)
    return stream.getvalue()


DATA = _parquet()
Report = Callable[..., Any]
WAYS = pytest.mark.parametrize("execute", [(), ("--execute",)])


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("device") / "s"
    options = ("--memory-namespace", "4M", "--compute-namespace")
    with device_process(path, "--size", "16M", *options):
        yield path


@pytest.fixture
def report(socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    """Queries the table on the drive by the command, and gives its report."""
    (tmp_path / "t.parquet").write_bytes(DATA)

    def run(*arguments: str, lba: int = 8) -> Any:
        words = [str(tmp_path / "t.parquet"), *arguments]
        words += ["--device", str(socket), "--lba", str(lba), "--json"]
        assert run_app(["query", *words]) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)
        check("query", found)
        return found

    return run


@WAYS
def test_a_query_moves_little_and_answers_as_arrow(report: Report, execute: tuple[str]) -> None:
    aggregates = "count(), sum(quantity), min(price), mean(price)"
    found = report(aggregates, "--where", FILTER, "--by", "region", *execute)
    expected = ROWS_OF_FILTER.group_by("region").aggregate(
        [([], "count_all"), ("quantity", "sum"), ("price", "min"), ("price", "mean")]
    )
    columns = {column["name"]: column["values"] for column in found["columns"]}
    for row, values in enumerate(zip(*(columns[name] for name in columns), strict=True)):
        assert values[0] == ["AP", "US"][row]
        (same,) = expected.filter(pc.equal(expected["region"], values[0])).to_pylist()
        assert int(values[1]) == same["count_all"] and int(values[2]) == same["quantity_sum"]
        assert float(values[3]) == same["price_min"]
        assert float(values[4]) == pytest.approx(same["price_mean"], rel=1e-12)
    assert found["held"] == len(DATA) > 500 * found["moved"]
    assert found["read"] < 0.7 * len(DATA)  # of three columns, where there are five
    assert (found["jobs"], found["groups"], found["excluded"]) == (1, 5, 0)


@WAYS
def test_selected_rows_are_an_arrow_file(
    report: Report, tmp_path: Path, execute: tuple[str]
) -> None:
    columns = ("--columns", "region,price", "-o", str(tmp_path / "out.arrow"))
    found = report("(price > 150) & (quantity >= 50)", *columns, *execute)
    made = pyarrow.feather.read_table(tmp_path / "out.arrow")
    kept = TABLE.filter((pc.field("price") > 150) & (pc.field("quantity") >= 50))
    assert made.to_pydict() == kept.select(["region", "price"]).to_pydict()
    assert found["rows"] == kept.num_rows > 50 and found["moved"] < len(DATA) / 20
    assert found["columns"][0]["values"] == kept["region"].to_pylist()


def test_a_result_larger_than_a_buffer_comes_in_pieces(report: Report, tmp_path: Path) -> None:
    """Of a memory namespace of 4 MiB, the file and the request leave less than the result has."""
    for name, reading in (
        ("out.arrow", pyarrow.feather.read_table),
        ("out.csv", pyarrow.csv.read_csv),
        ("out.jsonl", lambda path: pa.Table.from_pylist(_lines(path))),
    ):
        place = ("-o", str(tmp_path / name), "--execute")
        found = report("number >= 0", "--columns", "region,number,quantity,price,note", *place)
        made = reading(tmp_path / name)
        assert made["number"].to_pylist() == [*range(ROWS)] and found["jobs"] > 1
        assert made["price"].to_pylist() == TABLE["price"].to_pylist()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_statistics_exclude_row_groups(report: Report) -> None:
    found = report(
        "number >= 36000", "--order", "-price", "--limit", "3", "--columns", "number,price"
    )
    expected = TABLE.slice(36_000).sort_by([("price", "descending")])["number"][:3].to_pylist()
    assert found["columns"][0]["values"] == list(map(str, expected))
    assert (found["excluded"], found["rows"], found["file_rows"]) == (4, 3, ROWS)
    assert found["read"] < len(DATA) / 5


def test_a_file_in_blocks_is_queried_again_without_being_sent(
    report: Report, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report("count()", lba=24)
    place = f"lba:24:{len(DATA)}"
    assert run_app(["query", place, "price > 150", "--device", str(socket)]) == 0
    header, *lines, more, moved = capsys.readouterr().out.splitlines()
    expected = TABLE.filter(pc.field("price") > 150)
    assert header.split() == TABLE.column_names and len(lines) == 20
    assert lines[0].split() == [str(expected[name][0].as_py()) for name in TABLE.column_names]
    assert more == f"… and {expected.num_rows - 20} more rows; -o FILE writes all"
    assert f", and the file has {len(DATA)}" in moved
    assert int(moved.split()[0]) < 3000  # the rows that are not shown stay on the drive


def test_a_query_is_explained_without_a_drive(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("query", "/nowhere/t.parquet", "region, sum(price)", "--by", "region", "--explain")
    assert run_app([*words, "--limit", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "on the drive:",
        "  reads       price, region",
        "  groups by   region",
        "  aggregates  region, sum(price)",
        "  sorts by    region",
        "  limits to   3 rows",
    ]
    assert run_app([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    check("query", report)
    assert json.loads(report["plans"][0]["plan"])["by"][0]["name"] == "region"


def engines(device: potash.sdk.Device) -> tuple[QueryEngine, QueryEngine]:
    compute, memory = device.compute_namespace(), device.memory_namespace()
    return OnAccelerator(device.accelerator()), InComputeNamespace(compute, memory)


def test_both_ways_find_the_same_and_count_what_they_move(
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
        request = Request(FILTER, select=("quantity",))
        for engine in engines(device):
            moved[0] = 0
            result = query(request, StoredBlocks(device.namespace(), 0, len(DATA)), engine)
            assert result.to_pydict() == {"quantity": ROWS_OF_FILTER["quantity"].to_pylist()}
            assert abs(result.moved - moved[0]) < 16  # what the commands fill up to dwords


def test_a_query_that_the_drive_refuses_says_why(socket: Path) -> None:
    with potash.sdk.open(f"vfio-user:{socket}") as device:
        device.write(0, DATA.ljust(-(-len(DATA) // 4096) * 4096, b"\0"))
        stored = StoredBlocks(device.namespace(), 0, len(DATA))
        on_accelerator, in_namespace = engines(device)
        with pytest.raises(InvalidQuery, match="the file has no column 'prise'; did you mean"):
            query(Request("prise > 1"), stored, on_accelerator)
        with pytest.raises(InvalidQuery, match="an accelerator .without --execute. gives it"):
            query(Request("prise > 1"), stored, in_namespace)
        with pytest.raises(InvalidRequest, match="create a larger one, or use an accelerator"):
            query(Request("count()"), StoredBlocks(device.namespace(), 0, 4 << 20), in_namespace)
        # The next query is answered.
        assert query(Request("count()"), stored, on_accelerator).to_pydict() == {"count()": [ROWS]}
        assert ask_in_memory(DATA, "count()").to_pydict() == {"count()": [ROWS]}
        with run(Request("note >= 0").plan(show=1), stored, on_accelerator) as answer:
            assert len(answer.rows) == 1 and answer.result().result_rows == ROWS


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("lba:0", "count()"), "'lba:0' is not lba:BLOCK:SIZE, two numbers"),
        (("lba:0:4096", "count()"), "the file is neither a Parquet file nor an Arrow file"),
        (
            ("lba:99999999:10", "count()"),
            "10 bytes from block 99999999 on are not all on the drive",
        ),
        (("lba:-8:10", "count()"), "block -8 does not start on a page"),
        (("lba:0:-1", "count()"), "-1 bytes from block 0 on are not all on the drive"),
        (("lba:0:0", "count()"), "the file is empty"),
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
    (tmp_path / "t.parquet").write_bytes(DATA)
    assert run_app(["query", str(tmp_path / "t.parquet"), "count()"]) == 1
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
    (write,) = blocks("columns.md", "python")
    ask = blocks("dataframes.md", "python")[-1]
    in_guest, over_socket = blocks("columns.md", "sh")
    shown = blocks("columns.md", "text")[0]
    run_python(write, cwd=tmp_path)
    said = run_shell(over_socket.replace(SOCKET, str(socket)), cwd=tmp_path).splitlines()
    assert said[-3:-1] == shown.splitlines()[:2]
    made = pyarrow.feather.read_table(tmp_path / "expensive.arrow")
    prices = [number % 997 / 4 for number in range(1_000_000)]
    assert made["price"].to_pylist() == [price for price in prices if price > 240]
    printed = run_python(ask, cwd=tmp_path, replace={SOCKET: str(socket)})
    assert printed.startswith("{'region': ['EU', 'US', None], 'count()': [401204, 200602, 200603]")
    assert in_guest.startswith("potash guest --share sales.parquet")  # as tests/vm does it


def test_compressed_files_are_queried_in_modelled_time() -> None:
    total = pc.sum(pc.multiply(TABLE["number"], 2)).as_py()
    request = Request("count(), total=sum(number * 2)")
    options = ["--memory-namespace", "4M", "--compute-namespace"]
    with booted_device(size="32M", time="modelled", options=options) as device:
        for data in (*(_arrow(codec) for codec in ("lz4", "zstd")), DATA):
            device.write(0, data.ljust(-(-len(data) // 4096) * 4096, b"\0"))
            for engine in engines(device):
                found = query(request, StoredBlocks(device.namespace(), 0, len(data)), engine)
                assert found.to_pydict() == {"count()": [ROWS], "total": [total]}
            assert device.accelerator().status().modelled > 100_000


def _arrow(codec: str) -> bytes:
    stream = io.BytesIO()
    pyarrow.feather.write_feather(TABLE, stream, compression=codec)
    return stream.getvalue()

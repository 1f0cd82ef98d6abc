"""Fleets within this process, and `potash fleet`."""

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from csd_spec.table_plans import Plan
from potash.cli.app import run_app
from potash.columns import Request
from potash.fleet import Dataset, Drive, Fleet, Totals, cluster, placement, read_fleet
from potash.fleet.combining import Part
from potash.fleet.placement import Placement
from potash.sdk import InvalidRequest
from potash.sdk.errors import PotashError
from support.docs import blocks, run_python
from support.fleet import FOREVER, LOOPING, SHARDS, SILENT, Grep, counted, drives
from support.processes import descendants, name
from support.reports import check

# Dask is imported by the tests alone: each worker of pytest reads this file.
pytestmark = pytest.mark.skipif(
    find_spec("distributed") is None, reason="the extra `fleet` is not installed"
)

LIMIT = 60
FEW = 2


@pytest.fixture(scope="module")
def grep(tmp_path_factory: pytest.TempPathFactory) -> Grep:
    return Grep(tmp_path_factory.mktemp("grep"))


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def fleet(grep: Grep, media: Path) -> Iterator[Fleet]:
    with Fleet(drives(media, FEW)) as fleet:
        fleet.put("logs", grep.paths)
        yield fleet


@pytest.fixture
def described(fleet: Fleet, media: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this fleet, of which commands find the drives served in its cluster."""
    monkeypatch.setattr(cluster, "within", lambda _: contextlib.nullcontext(fleet._client))
    return file_of(drives(media, FEW), media)


def file_of(drives: list[Drive], folder: Path) -> Path:
    file = folder / "fleet.toml"
    file.write_text(
        "".join(
            f'[[drive]]\nname = "{one.name}"\nmedia = "{one.media}"\nsize = "{one.size}"\n'
            f"options = {json.dumps(one.options)}\n"
            for one in drives
        )
    )
    return file


def test_outputs_come_here_or_stay_as_a_data_set(fleet: Fleet, grep: Grep, tmp_path: Path) -> None:
    grep.check(fleet.map(grep.program, "logs", grep.args))
    kept = list(fleet.map(grep.program, "logs", grep.args, keep="found"))
    assert [one.output for one in kept] == [b""] * SHARDS
    assert sum(one.moved for one in kept) == SHARDS * (len(grep.program) + 4 + len(grep.text))
    for one in kept:  # the shard is read inside the drive, and its output is written there
        assert one.held is not None and one.traffic is not None
        assert one.traffic.moved >= one.held + one.produced
        assert one.traffic.from_host < one.traffic.moved
    found = fleet.get("found", tmp_path)
    assert found.held == sum(one.produced for one in kept)
    for at, path in enumerate(grep.paths):
        assert (tmp_path / path.name).read_bytes() == grep.expected(at)
    assert [one.name for one in fleet.datasets()] == ["found", "logs"]
    assert fleet.remove("found") == SHARDS
    with pytest.raises(PotashError, match="no drive that is served has a data set 'found'"):
        fleet.dataset("found")
    fleet.put("found", grep.paths[:1])  # of another number of shards
    nothing = fleet.map(SILENT, "logs", keep="found")
    assert {one.produced for one in nothing} == {0}
    fleet.get("found", tmp_path)
    assert all(not (tmp_path / path.name).read_bytes() for path in grep.paths)
    fleet.remove("found")
    output, totals = fleet.reduce(grep.program, "logs", counted, grep.args)
    assert output == counted([grep.expected(at) for at in range(SHARDS)])
    assert totals.done == SHARDS


def test_a_device_that_dies_is_started_again_and_its_job_repeated(
    fleet: Fleet, grep: Grep, media: Path
) -> None:
    # Tests of other files may have left a device that serves the whole session.
    devices = devices_with(media)
    assert len(devices) == FEW
    os.kill(devices[0], signal.SIGKILL)
    grep.check(fleet.map(grep.program, "logs", grep.args))


def devices_with(media: Path) -> list[int]:
    """The devices of this process whose configuration names these media."""
    found = []
    for pid in descendants(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0") if name(pid) else []
        if "--config" in words:
            file = Path(words[words.index("--config") + 1])
            if str(media) in file.read_text():
                found.append(pid)
    return found


def test_jobs_that_fail_are_results(fleet: Fleet, grep: Grep) -> None:
    results = {one.shard: one for one in fleet.map(LOOPING, "logs", timeout=0.5)}
    stopped = results.pop(SHARDS - 1)
    assert grep.contents[SHARDS - 1].startswith(FOREVER)
    assert stopped.error == "the job was stopped after 0.5 s" and not stopped.missing
    assert {one.return_value for one in results.values()} == {7}
    totals = Totals()
    for one in (stopped, *results.values()):
        totals.add(one)
    assert (totals.done, totals.failed, totals.missing) == (SHARDS - 1, 1, 0)
    with pytest.raises(PotashError, match=r"the job was stopped after 0\.1 s"):
        fleet.reduce(LOOPING, "logs", counted, timeout=0.1)


def test_what_was_released_is_not_cancelled(fleet: Fleet) -> None:
    """The scheduler would drop the client, and all that comes behind it would be lost."""
    client = fleet._client
    first = client.submit(int, 1, pure=False)
    assert first.result(LIMIT) == 1
    second = client.submit(time.sleep, first, pure=False)
    first.release()
    cluster.cancel(client, [first, second])
    assert client.submit(int, 2, pure=False).result(LIMIT) == 2


def test_what_cannot_be_done_is_refused(fleet: Fleet, grep: Grep, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(16 << 20))
    with pytest.raises(PotashError, match="no room for 16777216 bytes in one piece"):
        fleet.put("large", [large])
    large.write_bytes(bytes(1 << 20))
    fleet.put("large", [large])
    (one,) = fleet.map(LOOPING, "large")
    assert one.error == "the input has 1048576 bytes, but the accelerator takes 524288"
    assert fleet.remove("large") == 1
    for dataset, paths in ("..", grep.paths), ("a/b", grep.paths), ("same", grep.paths[:1] * 2):
        with pytest.raises(PotashError):
            fleet.put(dataset, paths)
    large.write_bytes(b"")
    with pytest.raises(InvalidRequest, match="large is empty"):
        fleet.put("logs", [*grep.paths[1:], large])
    assert len(fleet.dataset("logs").shards) == SHARDS
    with pytest.raises(InvalidRequest, match="would replace their inputs"):
        list(fleet.map(LOOPING, "logs", keep="logs"))
    with pytest.raises(InvalidRequest, match="the program is an empty file"):
        list(fleet.map(b"", "logs"))


def test_a_drive_with_other_contents_is_left_alone(tmp_path: Path) -> None:
    media = tmp_path / "other"
    media.write_bytes(bytes(4096) + b"a file system" + bytes((8 << 20) - 4109))
    before = media.read_bytes()
    with pytest.raises(PotashError, match="drive d0 is not served: .*something else in its first"):
        Fleet([Drive("d0", str(media))], patience=0).__enter__()
    assert media.read_bytes() == before


def test_nothing_listens_that_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Bokeh is installed, for which these modules stand, or where TLS is asked for."""
    shown: list[object] = []
    dashboard = importlib.import_module("distributed.dashboard")
    for who in ("scheduler", "worker"):
        module = SimpleNamespace(connect=lambda *given, **_: shown.append(given))
        monkeypatch.setitem(sys.modules, f"distributed.dashboard.{who}", module)
        monkeypatch.setattr(dashboard, who, module, raising=False)
    dask: Any = importlib.import_module("dask")
    with (
        dask.config.set({"distributed.comm.require-encryption": True}),
        cluster.within(1) as client,
    ):
        assert client.submit(int, "7").result() == 7
        assert client.scheduler.address.startswith("inproc://")
        listening = _listening()
    assert all(address == "0100007F" for address in listening), listening
    assert not shown


def _listening() -> list[str]:
    """The addresses at which this process accepts TCP connections, as proc(5) has them."""
    mine = {os.readlink(one) for one in Path("/proc/self/fd").iterdir() if os.path.lexists(one)}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [
        row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine
    ]


def test_the_commands_report(
    grep: Grep, described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.o"
    program.write_bytes(LOOPING)

    def run(command: str, *rest: object, code: int = 0) -> Any:
        with pytest.raises(SystemExit, match=str(code)) if code else contextlib.nullcontext():
            run_app(["fleet", command, str(described), *map(str, rest), "--json"])
        report = json.loads(capsys.readouterr().out)
        check(f"fleet {command}", report)
        return report

    put = run("put", "few", *grep.paths[-2:])
    assert put == {"dataset": "few", "files": 2, "size": sum(map(len, grep.contents[-2:]))}
    mapped = run("map", program, "few", "--timeout", 0.5, code=1)
    assert [one["return_value"] for one in mapped["shards"]] == [7, None]
    assert (mapped["done"], mapped["failed"], mapped["missing"]) == (1, 1, 0)
    status = run("status")
    assert [one["files"] for one in status["drives"]] == [1 + SHARDS // FEW] * FEW
    assert run_app(["fleet", "status", str(described)]) == 0
    assert f"few: 2 shards, {put['size']} bytes" in capsys.readouterr().out
    assert run("remove", "few") == {"dataset": "few", "files": 2, "size": None}


def test_an_interrupt_leaves_nothing_behind(grep: Grep, tmp_path: Path) -> None:
    file, program = file_of(drives(tmp_path, 1), tmp_path), tmp_path / "program.o"
    program.write_bytes(LOOPING)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with Fleet(read_fleet(file).drives) as fleet:
        fleet.put("logs", grep.paths[-1:])
    with subprocess.Popen(
        [sys.executable, "-m", "potash.cli", "fleet", "map", file, program, "logs"],
        env={**os.environ, "TMPDIR": str(scratch)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + LIMIT
        # The device, its firmware's processes, and a worker that runs the program.
        while len(found := descendants(process.pid)) < 4:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said, wrong = process.communicate(timeout=LIMIT)
    assert (process.returncode, said, wrong) == (130, b"", b"\npotash: interrupted\n")
    while left := [name(pid) for pid in found if name(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status", "fleet.toml", "--scheduler", "tcp://127.0.0.1:1"], 1, "shared = true"),
        (["serve", "fleet.toml"], 2, "serve needs a Dask cluster: --scheduler ADDRESS"),
        (["status", "none.toml"], 2, "none.toml cannot be read: No such file or directory"),
    ],
)
def test_mistakes_are_sentences(
    arguments: list[str], code: int, said: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file_of(drives(tmp_path, 1), tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_app(["fleet", *arguments]) == code
    assert said in capsys.readouterr().err


def test_no_scheduler_and_no_dask_are_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_LIMIT", "1s")
    with pytest.raises(PotashError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        Fleet([Drive("d0")], scheduler="tcp://127.0.0.1:1").__enter__()
    with pytest.raises(PotashError, match="at tls://127.*: it needs a certificate"):
        Fleet([Drive("d0")], scheduler="tls://127.0.0.1:1").__enter__()
    dask: Any = importlib.import_module("dask")
    with (
        dask.config.set({"distributed.comm.require-encryption": True}),
        pytest.raises(PotashError, match="at tcp://127.*: Dask's configuration allows tls:// only"),
    ):
        Fleet([Drive("d0")], scheduler="tcp://127.0.0.1:1").__enter__()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PotashError, match=r"a fleet needs .* pip install 'potash\[fleet\]'"):
        Fleet([Drive("d0")]).__enter__()


def test_a_table_in_shards_is_one_table(
    fleet: Fleet, described: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each shard has a dictionary of its own; a drive that has none takes no part."""
    source = np.random.default_rng(9)
    table = pa.table(
        {
            "key": source.choice(["a", "b", "c"], 4000),
            "x": source.normal(size=4000),
            "n": source.integers(-9, 9, 4000),
        }
    )
    paths = [tmp_path / f"{at}.arrow" for at in range(3)]
    for at, path in enumerate(paths):
        part = table.slice(at * 1500, 1500)
        part = part.set_column(0, "key", part["key"].dictionary_encode())
        pyarrow.feather.write_feather(part, path)
    fleet.put("sales", paths)
    fleet.put("notes", [described])
    rows = fleet.query("sales", Request("x > 2", select=("key", "x")))
    expected = table.filter(pc.greater(table["x"], 2)).select(["key", "x"])
    assert rows.to_pydict() == expected.to_pydict()
    with pytest.raises(PotashError, match="notes/fleet.toml: the file is neither a Parquet file"):
        fleet.query("notes", Request("count()"))
    with pytest.raises(PotashError, match="sales/.*: the file has no column 'y'"):
        fleet.query("sales", Request("y > 2"))
    asked = ("sum(n), count()", "--where", "x > 0", "--by", "key", "--json")
    assert run_app(["fleet", "query", str(described), "sales", *asked]) == 0
    report = json.loads(capsys.readouterr().out)
    check("fleet query", report)
    kept = table.filter(pc.greater(table["x"], 0)).group_by("key")
    sums = kept.aggregate([("n", "sum"), ([], "count_all")]).sort_by("key").to_pydict()
    assert [one["values"] for one in report["columns"]] == [
        list(map(str, sums[name])) for name in ("key", "n_sum", "count_all")
    ]
    assert report["held"] == sum(path.stat().st_size for path in paths)
    assert (report["file_rows"], report["jobs"]) == (4000, 3)
    best = ("mean(n)", "--by", "key", "--order", "-2", "--limit", "2")
    output = tmp_path / "out.csv"
    assert run_app(["fleet", "query", str(described), "sales", *best, "-o", str(output)]) == 0
    means = table.group_by("key").aggregate([("n", "mean")]).sort_by([("n_mean", "descending")])
    assert pyarrow.csv.read_csv(output)["mean(n)"].to_pylist() == means["n_mean"][:2].to_pylist()
    capsys.readouterr()
    assert run_app(["fleet", "query", str(described), "sales", *best, "--explain"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "on each drive:" and "on this host:" in said
    assert said[-1] == "  limits to   2 rows"
    fleet.remove("sales")
    fleet.remove("notes")


def test_a_data_set_is_a_data_frame_of_dask(
    fleet: Fleet, described: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import potash.dask

    table = pa.table(
        {"region": ["a", "b", None, "a"], "n": [1, None, 3, 4], "price": [5, 150, 200, 350]}
    )
    paths = [tmp_path / f"{at}.parquet" for at in range(2)]
    for at, path in enumerate(paths):
        pyarrow.parquet.write_table(table.slice(2 * at, 2), path)
    dataset = fleet.put("sales", paths)
    whole = potash.dask.read(fleet, "sales").compute(scheduler="threads")
    assert pa.Table.from_pandas(whole, preserve_index=False).to_pydict() == table.to_pydict()
    asked = fleet.query("sales", Request("mean(price), count()", by="region")).to_pydict()
    plans: list[Plan] = []

    def recorded(found: Dataset, plan: Plan) -> list[Part]:
        plans.append(plan)
        return Fleet.run_shards(fleet, found, plan)

    monkeypatch.setattr(fleet, "run_shards", recorded)
    some = potash.dask.read(fleet, dataset, where="price > 100")
    total = some.groupby("region").price.sum().compute(scheduler="threads")
    assert total.to_dict() == {"a": 350, "b": 150}
    assert {tuple(field.name for field in plan.select) for plan in plans[1:]} == {
        ("region", "price")
    }
    assert len(some.partitions[1]) == 2
    with pytest.raises(PotashError, match="no column 'y'"):
        potash.dask.read(fleet, "sales", where="y > 1")
    with pytest.raises(TypeError, match="threads"):
        pickle.dumps(potash.dask._Reader(fleet, dataset, Plan(), []))
    example, place = blocks("dataframes.md", "python")[2], {'"fleet.toml"': repr(str(described))}
    assert run_python(example, replace=place).count("350.0") == 2
    means = potash.dask.aggregate(fleet, "sales", "mean(price), count()", by="region")
    assert means.compute(scheduler="threads").to_dict("list") == asked
    fleet.remove("sales")


def test_a_drive_whose_device_could_not_start_again_comes_back_later(
    grep: Grep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "INTERVAL", 0.05)
    (drive,) = drives(tmp_path, 1)
    media = Path(str(drive.media))
    with Fleet([drive], patience=LIMIT) as fleet:
        fleet.put("logs", grep.paths[:1])
        hidden = media.rename(tmp_path / "hidden")
        media.write_bytes(b"a file system" + bytes(8 << 20))
        (device,) = devices_with(media)
        os.kill(device, signal.SIGKILL)
        (lost,) = fleet.map(grep.program, "logs", grep.args)
        assert lost.error
        hidden.replace(media)
        deadline = time.monotonic() + LIMIT
        while not fleet.seen():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (found,) = fleet.map(grep.program, "logs", grep.args)
        assert found.output == grep.expected(0)


def test_a_client_ends_for_good_what_it_has_had_started_and_nothing_else() -> None:
    from potash.fleet.serving import PLUGIN, ServedDrive, about

    def known(dask_worker: Any) -> list[ServedDrive]:
        plugin = dask_worker.plugins.get(PLUGIN)
        return list(plugin.drives.values()) if plugin else []

    with cluster.within(4) as client:
        first, second = (Placement(client, [Drive("d0", size="8M")], LIMIT) for _ in range(2))
        thread = threading.Thread(target=first.open)
        thread.start()
        while not any(client.run(known).values()):
            time.sleep(0.01)
        second.open()
        thread.join()
        ((address, (served,)),) = client.run(known).items()
        second.close()
        assert client.run(about)[address].drives
        first.close()
        assert not client.run(about)[address].drives
        # The drive's last job may have lost its device to that.
        with pytest.raises(PotashError, match="it was ended"):
            served.start()
        assert not served.ready

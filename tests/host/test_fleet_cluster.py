"""Fleets on a Dask cluster that Dask's own commands have started, as fleet.md shows, and whose workers
are killed."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from potash.fleet import Drive, Fleet, Totals
from potash.sdk.errors import PotashError
from support.docs import ROOT
from support.fleet import LOOPING, SHARDS, Grep, counted, drives
from support.processes import descendants, runs

# Dask is imported by the tests alone: each worker of pytest reads this file.
pytestmark = pytest.mark.skipif(
    find_spec("distributed") is None, reason="the extra `fleet` is not installed"
)

LIMIT = 60
DRIVES = 2
DASK = Path(sys.executable).with_name("dask")
TESTS = ROOT / "tests"


class Cluster:
    """A scheduler, and workers by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.scheduler = self._run("scheduler", "--port", "0")
        while not (self.file.exists() and self.file.read_text().endswith("}")):
            assert self.scheduler.poll() is None
            time.sleep(0.05)
        self.address = str(json.loads(self.file.read_text())["address"])

    def start(self, name: str, **environment: str) -> None:
        """A worker, which connects when it is ready."""
        options = ["--name", name, "--no-nanny", "--nthreads", "4", "--no-dashboard"]
        options += ["--local-directory", str(self.folder)]
        self.workers[name] = self._run("worker", *options, **environment)

    def wait(self) -> None:
        """Until all workers that were started and not killed are there."""
        distributed: Any = import_module("distributed")
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=LIMIT)

    def kill(self, name: str) -> None:
        """As the kernel does where memory has run out; its devices go with it."""
        worker = self.workers.pop(name)
        below = descendants(worker.pid)
        worker.kill()
        worker.wait()
        deadline = time.monotonic() + LIMIT
        while any(map(runs, below)):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> None:
        """Killed, as a worker may wait for a scheduler that ends; no drive is served any more."""
        for process in (*self.workers.values(), self.scheduler):
            process.kill()
        for process in (*self.workers.values(), self.scheduler):
            process.wait(LIMIT)

    def _run(self, what: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [DASK, what, "--scheduler-file", self.file, "--host", "127.0.0.1", *options,
             "--dashboard-address", "127.0.0.1:0"],
            # What is killed leaves its folders.
            env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(self.folder), **environment},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory: drives flush what they write."""
    place = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path("/tmp")
    folder = place / f"potash-fleet-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start("first")
        cluster.start("second")
        cluster.wait()
        yield cluster
    finally:
        cluster.end()


def test_results_are_complete_though_a_worker_dies_in_the_middle(
    cluster: Cluster, folder: Path
) -> None:
    grep = Grep(folder)
    with Fleet(
        drives(folder, DRIVES, shared=True), scheduler=cluster.address, patience=LIMIT
    ) as fleet:
        places = fleet.placement.places
        assert len({one.worker for one in places.values()}) == DRIVES
        put = fleet.put("logs", grep.paths)
        assert [drive for drive, _ in put.shards] == list(places) * (SHARDS // DRIVES)
        assert put.held == sum(map(len, grep.contents))

        running = fleet.map(grep.program, "logs", grep.args)
        results = [next(running)]
        cluster.kill("first")
        results += running
        grep.check(results)
        assert len({one.worker for one in places.values()}) == 1
        assert fleet.placement.moves == 1
        totals = Totals()
        for one in results:
            totals.add(one)
        assert (totals.done, totals.shards) == (SHARDS, SHARDS)
        assert totals.moved < totals.held / 20

        # A job that its client does not want any more ends, and its drive takes the next one.
        looping = fleet.map(LOOPING, "logs")
        assert next(looping).return_value == 7
        looping.close()
        output, totals = fleet.reduce(grep.program, "logs", counted, grep.args)
        assert output == counted([grep.expected(at) for at in range(SHARDS)])
        assert totals.moved == sum(one.moved for one in results)

    with Fleet([Drive("d0")], scheduler=cluster.address) as fleet:
        assert fleet.datasets() == []  # another d0: that of before has ended


def test_shards_of_drives_that_cannot_come_back_are_missing(cluster: Cluster, folder: Path) -> None:
    grep = Grep(folder)
    first, last = drives(folder, DRIVES, shared=True)
    pinned = replace(last, worker="first", shared=False)
    with Fleet([first, pinned], scheduler=cluster.address, patience=1) as fleet:
        results = {one.shard: one for one in fleet.map(grep.program, "logs", grep.args)}
        assert all(results[at].output == grep.expected(at) for at in (0, 2))
        assert all(results[at].missing for at in (1, 3))
        assert fleet.placement.missing("d1") == (
            "drive d1 is not served: worker first, which alone has its media, is not there"
        )
        with pytest.raises(PotashError, match="shards of logs are missing: 1, 3"):
            fleet.reduce(grep.program, "logs", counted, grep.args)
        with pytest.raises(PotashError, match="drive d1 is not served"):
            fleet.put("more", grep.paths)
    in_memory = Drive("m", size="8M", options=last.options)
    with Fleet([last, in_memory], scheduler=cluster.address, patience=1) as fleet:
        fleet.put("two", [grep.paths[-1], grep.paths[0]])
        looping = fleet.map(LOOPING, "two")
        assert (done := next(looping)).shard == 1 and not done.error
        cluster.kill("second")
        (lost,) = looping
        assert lost.missing and lost.name == "two/part-3"
        assert lost.error == "drive d1 is not served: there is no worker that serves it"
        gone = "it was in the memory of a worker that is gone"
        assert fleet.placement.missing("m") == f"drive m is not served: {gone}"


def test_a_worker_without_potash_is_named(cluster: Cluster, folder: Path) -> None:
    other = folder / "other" / "potash"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'potash'\")")
    cluster.start("bare", PYTHONPATH=str(other.parent))
    cluster.wait()
    with pytest.raises(PotashError, match=r"worker tcp://127\.0\.0\.1:\d+ has no Potash"):
        Fleet([Drive("d0")], scheduler=cluster.address).__enter__()
    cluster.kill("bare")


def test_a_scheduler_that_is_gone_is_the_error_of_its_shards(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one, as it ends the cluster."""
    monkeypatch.setattr("potash.fleet.cluster.CONNECT_LIMIT", "2s")
    cluster.start("last")
    cluster.wait()
    drive = replace(drives(folder, DRIVES, shared=True)[-1], name="other")
    with Fleet([drive], scheduler=cluster.address) as fleet:
        fleet.put("end", [Grep(folder).paths[-1]])
        looping = fleet.map(LOOPING, "end")
        threading.Timer(0.5, cluster.scheduler.kill).start()
        assert [one.error for one in looping] == ["the Dask scheduler is gone"]

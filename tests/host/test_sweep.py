"""`potash sweep`: what is tried, what comes of it, which cores are on the front, and who works."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potash.cli.app import run_app
from potash.cli.device.sweep import draw
from potash.fleet import workers
from potash.sdk.errors import PotashError
from potash.sdk.progress import silent
from potash.sweep import networks, points, space
from potash.sweep.networks import Network
from potash.sweep.points import Outcome, Point, Task, carry_out
from potash.sweep.space import Core, SpaceError
from potash.vta.scheduled import SHAPES
from potash_device.vta.config import CORES, Config
from potash_device.vta.timing.parameters import PYNQ
from potash_firmware.vta_runtime.schedules import Conv2d
from support.dask_cluster import dask_cluster
from support.processes import descendants

SMALL = Conv2d(1, 16, 8, 8, 16, (3, 3), padding=(1, 1, 1, 1))
NETWORK = Network("small", {SMALL: 3, Conv2d(1, 16, 1, 1, 10, (1, 1)): 1}, {})
LIMIT = 60


def serially(tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
    for at, task in enumerate(tasks):
        yield at, carry_out(task)


def cores(*varied: str, base: Config = CORES["paper"]) -> list[Core]:
    return list(space.cores([space.axis(text) for text in varied], base, PYNQ))


def test_every_combination_is_a_core_of_its_own() -> None:
    found = cores("block=8,32", "buffers=1/8,1/4", "bus_bytes=4,16", "clock=1e8,2e8")
    assert len(found) == 16
    assert len({(core.config, core.parameters) for core in found if not core.reason}) == 16
    first = found[0]
    assert first.varied == (("block", 8), ("buffers", 0.125), ("bus_bytes", 4), ("clock", 1e8))
    assert (first.config.block_in, first.config.block_out) == (8, 8)
    assert first.config.log_wgt_buff_size == CORES["paper"].log_wgt_buff_size - 3
    assert first.config.log_uop_buff_size == CORES["paper"].log_uop_buff_size
    assert (first.parameters.bus_bytes, first.parameters.clock) == (4, 1e8)


def test_each_buffer_can_be_set_by_its_size() -> None:
    (core,) = cores("uop=8K", "inp=16K", "wgt=128K", "acc=65536", "batch=2", "block_out=32")
    assert core.reason == ""
    assert core.config == replace(
        CORES["paper"], log_uop_buff_size=13, log_inp_buff_size=14, log_wgt_buff_size=17,
        log_acc_buff_size=16, log_batch=1, log_block_out=5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("varied", "said"),
    [
        (["blocks=8"], "'blocks' is none of block, "),
        (["block"], "'block' is not NAME=VALUE,VALUE"),
        (["block=8,"], "is not NAME=VALUE,VALUE"),
        (["block=x"], "'x' is not a whole number"),
        (["block=24"], "a block of 24 is not a power of two"),
        (["block=0"], "a block of 0 is not a power of two"),
        (["buffers=1/0"], "'1/0' is not a factor"),
        (["wgt=3K"], "a wgt buffer of 3072 is not a power of two"),
        (["wgt=3X"], "'3X' is not a size"),
        (["bus_bytes=1.5"], "'1.5' is not a whole number"),
        (["clock=fast"], "'fast' is not a number"),
        (["block=8", "block=16"], "block is varied twice"),
        ([f"latency={','.join(map(str, range(101)))}"] + [f"decode={','.join(map(str, range(100)))}"],
         "these are 10100 cores, and 10000 are the most"),
    ],
)  # fmt: skip
def test_what_cannot_be_varied_is_a_sentence(varied: list[str], said: str) -> None:
    with pytest.raises(SpaceError) as caught:
        cores(*varied)
    assert said in str(caught.value)


def test_cores_that_cannot_be_are_kept_with_the_reason() -> None:
    found = cores("block=8,16", "bus_bytes=0,8")
    reasons = [core.reason for core in found]
    assert "too deep" in reasons[1]
    assert "bus_bytes is 0" in reasons[2]
    assert reasons[3] == ""


def test_resnet_18_has_twenty_convolutions() -> None:
    """3.63 G operations: the 1.8 G multiply-adds of "Deep Residual Learning", table 1, without
    those of the classifier, which is no convolution."""
    found = networks.network("resnet18")
    assert sum(found.shapes.values()) == 20
    assert found.operations == 2 * 1813561344
    assert set(networks.network("C3").shapes) == {SHAPES["C3"]}


def test_a_network_takes_as_long_as_its_layers_as_often_as_they_occur() -> None:
    (core,) = cores()
    (point,) = points.swept([core], [NETWORK], ["sram"], serially, silent)
    each = [carry_out(Task(shape, CORES["paper"], PYNQ)).cycles for shape in NETWORK.shapes]
    assert all(cycles and cycles > 0 for cycles in each)
    assert point.cycles == 3 * (each[0] or 0) + (each[1] or 0)
    assert point.latency == point.cycles / 100e6
    assert point.gops == pytest.approx(
        2 * (3 * 64 * 16 * 16 * 9 + 160) / point.latency / 1e9
    )  # 64 pixels, 16 by 16 channels, 9 taps; 10 columns of 16
    sizes = {"UOP": 16 << 10, "INP": 32 << 10, "WGT": 256 << 10, "ACC": 128 << 10, "OUT": 32 << 10}
    assert points.sram_bytes(core.config) == sum(sizes.values())
    assert points.multipliers(core.config) == 256
    assert point.front


def test_what_has_no_schedule_is_said_and_not_dropped() -> None:
    found = cores("acc=1K,128K", "block=16")
    shape = Conv2d(1, 16, 4, 4, 16, (1, 1))
    network = Network("wide", {shape: 1}, {})

    def refuses(tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        for at, task in enumerate(tasks):
            small = task.config.log_acc_buff_size == 10
            yield at, Outcome(None, "too small") if small else Outcome(100)

    small, large = points.swept(found, [network], ["sram"], refuses, silent)
    assert (small.cycles, small.reason, small.front) == (None, "too small", False)
    assert (large.cycles, large.front) == (100, True)


def test_a_depthwise_layer_takes_any_blocks() -> None:
    shape = replace(SMALL, depthwise=True)
    network = Network("depthwise", {shape: 1}, {})
    assert network.operations == 2 * 64 * 16 * 9
    equal, fewer, more = points.swept(
        cores("buffers=1/4", "block_out=16,8,32"), [network], ["sram"], serially, silent
    )
    assert equal.cycles == carry_out(Task(shape, CORES["paper"], PYNQ)).cycles
    for point in (equal, fewer, more):
        assert point.cycles is not None
    # Sixteen channels are two blocks of eight.
    assert fewer.cycles is not None and equal.cycles is not None
    assert fewer.cycles > equal.cycles


def test_no_layer_is_timed_twice_on_a_core() -> None:
    seen: list[Task] = []

    def noting(tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        seen.extend(tasks)
        return iter([(at, Outcome(1)) for at, _ in enumerate(tasks)])

    twice = Network("again", dict(NETWORK.shapes), {})
    found = points.swept(cores("bus_bytes=4,8"), [NETWORK, twice], ["sram"], noting, silent)
    assert len(seen) == 4
    assert [point.cycles for point in found] == [4, 4, 4, 4]


COSTS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([4, 8, 16]), st.sampled_from(["16", "32"])),
    max_size=12,
)


@given(COSTS)
def test_the_front_is_what_nothing_beats(found: list[tuple[int, int, str]]) -> None:
    made = [
        Point.of(NETWORK, cores(f"bus_bytes={bus}", f"block={block}", "buffers=1/4")[0], cycles)
        for cycles, bus, block in found
    ]
    marked = points.marked(made, ["multipliers", "bandwidth"])
    for one, mine in zip(marked, found, strict=True):
        beaten = any(
            other != mine
            and other[0] <= mine[0]
            and other[1] <= mine[1]
            and int(other[2]) <= int(mine[2])
            for other in found
        )
        assert one.front is not beaten


def test_the_picture_shows_every_point_and_joins_the_front() -> None:
    found = points.marked(
        [
            Point.of(NETWORK, core, cycles)
            for core, cycles in zip(
                cores("buffers=1/4,1/2,1", "bus_bytes=8"), (400, 200, 300), strict=True
            )
        ]
        + [Point.of(NETWORK, cores("block=8")[0], None, "too deep")],
        ["sram"],
    )
    assert [point.front for point in found] == [True, True, False, False]
    root = xml.fromstring(draw(found, ["sram"]))
    circles = root.findall("{*}circle")
    assert len(circles) == 3
    assert sum(one.get("fill") != "white" for one in circles) == 2
    hints = {title.text for one in circles if (title := one.find("{*}title")) is not None}
    assert "small: buffers 0.25, bus_bytes 8\n0.004 ms, 221 GOP/s, on the front" in hints
    left, right = sorted(float(one.get("cx", "0")) for one in circles if one.get("fill") != "white")
    assert left < right, "more bytes are to the right"
    none = draw([found[-1]], ["sram"])
    assert b"no configuration is feasible" in none


def test_processes_of_this_machine_find_the_same_until_one_dies() -> None:
    tasks = [
        Task(shape, core.config, core.parameters)
        for core, shape in itertools.product(cores("bus_bytes=4,8"), NETWORK.shapes)
    ]
    with workers.local(carry_out, 1) as work:
        assert dict(work(tasks)) == dict(serially(tasks))
        with pytest.raises(PotashError, match="try --jobs 1"):
            for _ in work(
                [Task(SMALL, CORES["paper"], replace(PYNQ, latency=at)) for at in range(64)]
            ):
                for pid in descendants(os.getpid()):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if b"spawn_main" in command:
                        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_no_worker(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "potash.cli.main", "sweep", "C1", "C12", "--jobs", "2"]
    command += ["--vary", f"latency={','.join(map(str, range(40)))}"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + LIMIT
        while len(found := descendants(process.pid)) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        # As from a terminal: everybody in the foreground gets it.
        os.killpg(process.pid, number)
        said, wrong = process.communicate(timeout=LIMIT)
    assert said == b""
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert wrong.decode().splitlines()[-1] == "potash: interrupted"
        assert b"Traceback" not in wrong
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_the_command_reports_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "local", lambda carry_out, count: _Here())
    plot = tmp_path / "sweep.svg"
    line = ["sweep", "C5", "--vary", "block=8,32", "--vary", "bus_bytes=8,16", "--against", "sram"]
    assert run_app([*line, "--plot", str(plot), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    feasible = [one for one in report["points"] if one["feasible"]]
    assert [one["varied"] for one in feasible] == [
        {"block": 32, "bus_bytes": 8},
        {"block": 32, "bus_bytes": 16},
    ]
    assert [one["front"] for one in feasible] == [False, True]
    assert len(report["points"]) == 4
    xml.fromstring(plot.read_bytes())
    assert run_app([*line, "--all"]) == 0
    said = capsys.readouterr().out
    assert "4 configurations: 1 on the front (*), 1 behind it, 2 not feasible:" in said
    assert "  2: these buffers are too deep" in said
    assert len([row for row in said.splitlines() if row.startswith("*")]) == 1


class _Here:
    def __enter__(self) -> object:
        return serially

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nonsense"], 1, "'nonsense' is not a network; there are resnet18, its layers C1"),
        (["none.tflite"], 1, "none.tflite cannot be read: No such file or directory"),
        (["--vary", "block=7"], 2, "--vary: a block of 7 is not a power of two"),
        (["--jobs", "1", "--scheduler", "x"], 2, "--jobs and --scheduler exclude each other"),
        (["--set", "bus_bytes=0"], 1, "--set: bus_bytes is 0"),
    ],
)
def test_mistakes_are_sentences(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["sweep", *arguments]) == code
    assert said in capsys.readouterr().err


def test_without_dask_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert run_app(["sweep", "C5", "--scheduler", "tcp://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        "potash: --scheduler needs the Python package distributed: pip install 'potash[fleet]'\n"
    )


def test_a_dask_cluster_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra `fleet` is not installed")
    monkeypatch.setattr("potash.fleet.cluster.CONNECT_LIMIT", "1s")
    nobody = "tcp://127.0.0.1:1"
    refused = pytest.raises(PotashError, match=f"no Dask scheduler answers at {nobody}")
    with refused, workers.cluster(carry_out, nobody):
        pass
    tasks = [Task(shape, CORES["paper"], PYNQ) for shape in NETWORK.shapes]
    with dask_cluster(threads=1) as address, workers.cluster(carry_out, address) as work:
        assert dict(work(tasks)) == dict(serially(tasks))

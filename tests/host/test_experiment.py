"""`potash experiment`: what its file may say, how points are measured, resumed and drawn, and the
page about it."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree as xml

import pytest

from csd_spec.traffic import TimedCompletion, TrafficLog
from potash import __version__
from potash.cli.app import run_app
from potash.experiment import plan, plot
from potash.experiment.plan import Task
from potash.experiment.runs import carry_out
from potash.fleet import workers
from support.bpf_compiler import NO_COMPILER, compiler
from support.dask_cluster import dask_cluster
from support.docs import blocks, run_python
from support.processes import descendants
from support.reports import check

FUNCTIONS = """
def fill(point):
    point.kept = sum(point.each(lambda drive: 1))

def offload(point):
    point.compute(1000 * point["size"] + 100 * point.seed)
    return {"answer": point["size"], "share": point["size"] / 2, "kept": point.kept}

def host(point):
    point.compute(2000 * point["size"])
    return {"answer": point["size"]}
"""
FILE = """
functions = "mine.py"
program = "offload"
baseline = "host"
prepare = "fill"
repetitions = 3
seed = 1
[vary]
size = [1, 4, 100]
drives = [2]
[drive]
"""

MODEL = """
functions = "mine.py"
program = "amplification"
baseline = "published"
plot = "x=spare,y=amplification,by=policy+method"
[vary]
spare = [30, 60]
policy = ["gc=greedy", "gc=fifo"]
[small]
spare = [30]
[model]
drive = "femu"
blocks = 48
pages = 4
capacity = "32M"
reserve = 2
background = 0
"""
PUBLISHED = """
def published(point):
    both = [{"amplification": 2.0}, {"amplification": 3.0}]
    return both if point["policy"] == "gc=fifo" else None
"""
MODELLED = blocks("experiment.md", "python")[1] + PUBLISHED


SVG = "{http://www.w3.org/2000/svg}"


class PlayedDrive:
    """A drive that completes a command whenever it is asked."""

    capacity = max_transfer = 4096

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def traffic(self, before: TrafficLog | None = None) -> TrafficLog:
        if before is None:
            return TrafficLog()
        done = TimedCompletion(opcode=2, arrived=50, began=60, completed=70)
        return TrafficLog(commands=3, to_host=5, completed=1, completions=(done,))


class Files:
    """An experiment in a directory, whose points are measured here on drives that are played."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.measured: list[Task] = []
        self.write()

    def write(self, file: str = FILE, functions: str = FUNCTIONS) -> None:
        (self.folder / "mine.toml").write_text(file)
        (self.folder / "mine.py").write_text(functions)

    def run(self, *options: str) -> int:
        file, out = str(self.folder / "mine.toml"), str(self.folder / "out")
        return run_app(["experiment", file, "-o", out, *options])

    def rows(self, name: str = "results.csv") -> list[dict[str, str]]:
        with (self.folder / "out" / name).open() as file:
            return list(csv.DictReader(file))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    found = Files(tmp_path)

    @contextmanager
    def here(carry_out: Callable[[Task], object], *_: object) -> Iterator[object]:
        def work(tasks: Sequence[Task]) -> Iterator[tuple[int, object]]:
            for at, task in enumerate(tasks):
                found.measured.append(task)
                yield at, carry_out(task)

        yield work

    monkeypatch.setattr("potash.cli.device.experiment.pool", here)
    monkeypatch.setattr("potash.experiment.runs.booted_device", lambda **_: PlayedDrive())
    return found


def test_each_point_is_measured_and_its_traffic_counted(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files.run() == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["method", "size", "elapsed_ns", "answer", "share", "kept"]
    assert table[3] == ["offload", "1", "1200", "1", "0.5", "2"]
    assert files.run("--json", "--plot", "x=size,y=elapsed_ns,by=method") == 0
    report = json.loads(capsys.readouterr().out)
    check("experiment", report)
    rows = files.rows()
    assert len(rows) == len(report["rows"]) == 3 * 3 * 2
    assert rows[2] == {
        "version": __version__, "point": "0", "repetition": "1", "seed": "2",
        "method": "offload", "size": "1",
        "drives": "2", "elapsed_ns": "1200", "commands": "6", "admin_commands": "0",
        "to_host": "10", "from_host": "0", "moved": "0", "completed": "2", "answer": "1",
        "share": "0.5", "kept": "2",
    }  # fmt: skip
    assert (rows[3]["method"], rows[3]["elapsed_ns"], rows[3]["kept"]) == ("host", "2000", "")
    reserved = files.rows("completions.csv")
    assert reserved[1] == {
        "point": "0", "repetition": "0", "method": "offload", "drive": "1", "kind": "0",
        "csi": "0", "opcode": "2", "status": "0", "nsid": "0", "arrived": "0", "began": "10",
        "completed": "20",
    }  # fmt: skip
    arrow = (files.folder / "out" / "results.arrow").read_bytes()
    assert arrow.startswith(b"ARROW1")
    settings = json.loads((files.folder / "out" / "experiment.json").read_text())
    assert settings["functions"] == FUNCTIONS and settings["experiment"]["seed"] == 1
    # Three points a line; the program's have error bars, the host's repetitions are the same.
    root = xml.fromstring((files.folder / "out" / "plot.svg").read_bytes())
    hints = [
        title.text
        for one in root.iter(f"{SVG}circle")
        if (title := one.find(f"{SVG}title")) is not None
    ]
    assert hints[0] == "1: 1200 ± 100" and hints[3] == "1: 2000" and len(hints) == 6
    assert {"5", "20", "50"} <= {one.text for one in root.iter(f"{SVG}text")}, "decimal log axes"


def test_an_experiment_goes_on_where_it_was(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(functions="def")
    assert files.run() == 1  # and a directory without a finished point is for any experiment
    files.measured.clear()
    capsys.readouterr()
    broken = FUNCTIONS.replace("2000 * point", "(1 / (100 - point['size']) + 2000) * point")
    files.write(functions=broken)
    assert files.run() == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"potash: .*mine\.py:10, in host: at size 100, drives 2: ZeroDivisionError: division by zero",
        said,
    )
    assert len(files.measured) == 7
    assert files.run() == 1 and len(files.measured) == 8
    files.write()
    assert files.run() == 1
    assert "results of another experiment" in capsys.readouterr().err
    for one in (files.folder / "out").rglob("*.json"):
        one.unlink()
    assert files.run() == 0
    first = (files.folder / "out" / "results.csv").read_bytes()
    (files.folder / "out" / "points" / "00001-002.json").unlink()
    files.measured.clear()
    assert files.run() == 0
    assert [(one.number, one.repetition) for one in files.measured] == [(1, 2)]
    assert (files.folder / "out" / "results.csv").read_bytes() == first
    (files.folder / "out" / "points" / "00001-002.json").write_text("[1")
    assert files.run() == 1
    assert "00001-002.json is damaged; delete it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("program =", "not TOML"),
        ("", "mine.toml: the key functions is missing"),
        ('functions = "mine.py"', "the key program is missing"),
        ("size = 3\n" + FILE, "there is no key size; it belongs in [drive]"),
        (FILE + "\n[varied]\n", "there is no key varied; there are functions, program"),
        (FILE.replace('"host"', "3"), "baseline is a text"),
        (FILE.replace("= 3\n", "= 0\n"), "repetitions is a whole number from 1 to 1000"),
        (FILE.replace("[1, 4, 100]", "3"), "vary.size is a list of values"),
        (FILE.replace("[1, 4, 100]", "[1, 1]"), "vary.size has numbers or texts, each once"),
        (FILE.replace("[1, 4, 100]", "[nan]"), "vary.size has numbers or texts, each once"),
        (FILE.replace("drives =", "moved ="), "vary.moved needs another name; moved is a column"),
        (FILE.replace("[2]", "[0]"), "vary.drives has whole numbers from 1 to 64"),
        (FILE.replace("drives = [2]", "profile = [2]"), "vary.profile has texts"),
        (FILE.replace("drives = [2]", "ftl = [2]"), "vary.ftl has texts, as --ftl takes them"),
        (FILE.replace("drives = [2]", f"x = {list(range(4000))}"), "12000 points"),
        (FILE + 'sise = "1M"', "[drive]: a drive got an unexpected keyword argument 'sise'"),
        (FILE + 'size = "much"', "much"),
        (FILE.replace("mine.py", "none.py"), "none.py cannot be read: No such file"),
        (FILE.replace("[vary]", 'files = ["no"]\n[vary]'), "no cannot be read: No such file"),
        (FILE + "[model]", "there are both [model] and [drive]; an experiment has one of them"),
        ('options = ["n"]\n' + FILE, "options is a list of parameters in [vary]"),
        (FILE + "[small]\nn = [1]", "small.n is no parameter in [vary]"),
        ('plot = "x=size"\n' + FILE, "a plot is x=COLUMN,y=COLUMN"),
        (MODEL.replace("blocks = 48", "block = 2"), "[model]: there is no key block; did you mean"),
    ],
)  # fmt: skip
def test_a_wrong_file_ends_in_a_sentence(
    files: Files, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    files.write(file=line)
    assert files.run() == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("potash: ") and said in error
    assert not files.measured


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ("def offload(point:", "mine.py:1: SyntaxError: "),
        ("import nothing_such", "ModuleNotFoundError: No module named 'nothing_such'"),
        ("fill = host = print", "mine.py has no function offload"),
        (FUNCTIONS.replace("def fill", "def full"), "mine.py has no function fill"),
        (FUNCTIONS.replace('{"answer": point["size"]}', "3"), "host returned 3, not a dict"),
        (FUNCTIONS.replace('{"answer": point["size"]}', "[{}, 3]"), "host returned 3, not a dict"),
        (FUNCTIONS.replace('"share"', '"seed"'), "offload returned 'seed': 0.5, which is no column"),
        (FUNCTIONS.replace('point["size"] / 2', "[]"), "offload returned 'share': [], which is no"),
        (FUNCTIONS.replace('point["size"] / 2', "1e999"), "returned 'share': inf, which is no"),
        (FUNCTIONS.replace('point["size"] / 2', "1 << 63"), "returned 'share': 9223372036854775808"),
        (FUNCTIONS.replace('point["size"] / 2', "chr(0xD800)"), "'share': '\\ud800', which is no"),
        (FUNCTIONS.replace('"size"]}', '"size"] + 1}'), "the answers differ (offload: 1, host: 2)"),
        (FUNCTIONS.replace('point["size"] +', 'point["sise"] +'), "in offload: at size 1, drives 2"),
        (FUNCTIONS.replace("point.compute(1", "raise SystemExit(1"), "in offload: at size 1"),
    ],
)  # fmt: skip
def test_a_wrong_function_ends_in_a_sentence(
    files: Files, capsys: pytest.CaptureFixture[str], functions: str, said: str
) -> None:
    files.write(functions=functions)
    assert files.run() == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("potash: ") and said in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x=size", "a plot is x=COLUMN,y=COLUMN"),
        ("x=size,y=none", "there is no column none; there are version, "),
        ("x=method,y=size", "method has 'offload', which is no number"),
        ("x=size,y=kept", "kept has None, which is no number"),
    ],
)
def test_a_wrong_plot_ends_in_a_sentence(
    files: Files, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert files.run("--plot", text) in (1, 2)
    assert said in capsys.readouterr().err


def test_options_of_drives_name_files_that_workers_get(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = "class Mine:\n    def victim(self, superblocks): return 0\n"
    (files.folder / "gc.py").write_text(policy)
    seen: list[str] = []

    def booted(**options: Any) -> PlayedDrive:
        (said,) = options["policies"]
        seen.append(said)
        kind, file, name = re.split("[=:]", said)
        assert (kind, Path(file).read_text(), name) == ("gc", policy, "Mine")
        return PlayedDrive()

    monkeypatch.setattr("potash.experiment.runs.booted_device", booted)
    file = FILE.replace("[vary]", 'files = ["gc.py"]\n[vary]')
    files.write(file.replace("drives = [2]", 'policy = ["gc=gc.py:Mine"]'))
    assert files.run() == 0
    assert len(set(seen)) == len(seen) == 18, "each run has copies of its own"


def test_a_dask_cluster_measures_the_same(files: Files) -> None:
    tasks = plan.read(files.folder / "mine.toml").tasks()
    with dask_cluster(threads=2) as address, workers.cluster(carry_out, address) as work:
        assert dict(work(tasks)) == dict(enumerate(map(carry_out, tasks)))


EXTENDED = """
def ask(point):
    (drive,) = point.drives
    return {name: drive.admin(opcode).result for name, opcode in (("file", 0xC4), ("package", 0xC8))}
"""


def test_a_cluster_measures_drives_with_extensions_of_files_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = (
        "from potash.extend import admin_command\n"
        '@admin_command({}, name="Answer", data="none")\n'
        "def answer(drive, command): return {}\n"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "answers.py").write_text(answer.format(0xC4, 42))
    packages = tmp_path / "packages"
    metadata = packages / "answering-1.0.dist-info"
    metadata.mkdir(parents=True)
    (packages / "answering.py").write_text(answer.format(0xC8, 43))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: answering\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[potash.extensions]\nanswering = answering\n")
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    files = Files(tmp_path)
    files.write('functions = "mine.py"\nprogram = "ask"\n[drive]\ntime = "fast"', EXTENDED)
    with dask_cluster(threads=1) as address:
        extend = ("--extend", str(tmp_path / "mine" / "answers.py"), "--extend", "answering")
        assert files.run("--scheduler", address, *extend) == 0, capsys.readouterr()
    (row,) = files.rows()
    assert (row["file"], row["package"]) == ("42", "43")
    settings = json.loads((files.folder / "out" / "experiment.json").read_text())
    assert set(settings["files"]) == {"answers.py"}
    assert settings["experiment"]["extensions"][1] == "answering"
    (tmp_path / "answers.py").write_text("")
    assert files.run("--extend", str(tmp_path / "answers.py"), *extend) == 1
    assert "two files are called answers.py; rename one of them" in capsys.readouterr().err


def test_an_experiment_on_the_model_alone_is_compared_with_published_values(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.write(MODEL, MODELLED)
    (files.folder / "mine.toml").rename(files.folder / "experiment.toml")
    out = files.folder / "out"
    assert run_app(["experiment", str(files.folder), "-o", str(out), "--small"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] + row[3:4] for row in table[1:]] == [
        ["gc=greedy", "30"],
        ["gc=fifo", "30", "2.5"],
    ]
    found = float(files.rows()[2]["amplification"])
    assert 1 < found < 4 and table[2][4] == f"{100 * (found / 2.5 - 1):+.1f}"
    methods = [row["method"] for row in files.rows()]
    assert methods == [*["amplification", "published"] * 2, "published"]
    assert "elapsed_ns" not in files.rows()[0]
    root = xml.fromstring((out / "plot.svg").read_bytes())
    rings = [one for one in root.iter(f"{SVG}circle") if one.get("fill") == "none"]
    assert len(rings) == 2, "the value, and its sign in the legend"
    line = [one for one in root.iter(f"{SVG}circle") if one.get("fill") == rings[0].get("stroke")]
    assert len(line) == 1, "in the colour of what the program found"


def test_results_have_a_directory_by_the_name_of_the_experiment(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(MODEL, MODELLED)
    monkeypatch.chdir(files.folder)
    assert run_app(["experiment", "mine.toml", "--small"]) == 0
    assert (files.folder / "results" / "mine-small" / "results.csv").exists()


def test_a_parameter_may_be_an_option_of_the_drives_or_a_key_of_the_model(files: Files) -> None:
    varied = FILE.replace("size = [1, 4, 100]", 'scheduler = ["fifo", "rr:9us"]')
    files.write('options = ["scheduler"]\n' + varied)
    tasks = plan.read(files.folder / "mine.toml").tasks()
    assert [task.drive["scheduler"] for task in tasks[::3]] == ["fifo", "rr:9us"]
    files.write('options = ["reserve"]\n' + MODEL.replace("[small]", "reserve = [3]\n[small]"))
    assert plan.read(files.folder / "mine.toml").tasks()[0].drive["reserve"] == 3


def test_an_axis_is_linear_where_its_values_are_near_each_other() -> None:
    rows: list[dict[str, Any]] = [{"method": "a", "x": x, "y": 10 + x} for x in (0, 1)]
    root = xml.fromstring(plot.draw(plot.Plot("x", "y"), rows))
    assert {"0", "10"} <= {one.text for one in root.iter(f"{SVG}text")}


def small(folder: Path) -> list[str]:
    """The experiment of the page, with fewer values; the command that runs it."""
    (file,) = blocks("experiment.md", "toml")
    for pattern, value in (("selectivity", "[0.1]"), ("drives", "[1]"), ("repetitions", "1")):
        file, found = re.subn(rf"{pattern} = .*", f"{pattern} = {value}", file)
        assert found == 1
    (folder / "scan.toml").write_text(file)
    (folder / "scan.c").write_text(blocks("experiment.md", "c")[0])
    (folder / "scan.py").write_text(blocks("experiment.md", "python")[0])
    (command,) = blocks("experiment.md", "sh")
    assert command.startswith("potash ")
    return [sys.executable, "-m", "potash.cli.main", *command.split()[1:], "--jobs", "2"]


def test_the_page_s_experiment_compares_both_command_sets_with_the_host(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip(NO_COMPILER)
    subprocess.run(small(tmp_path), cwd=tmp_path, check=True, timeout=120)
    with (tmp_path / "results" / "results.csv").open() as file:
        rows = {row["line"]: row for row in csv.DictReader(file)}
    assert set(rows) == {f"{one}, drives: 1" for one in ("vendor", "compute", "host")}
    assert len({row["answer"] for row in rows.values()}) == 1
    for name, row in rows.items():
        host = name.startswith("host")
        assert int(row["moved"]) == (0 if host else 1 << 20)
        assert (int(row["to_host"]) == 1 << 20) if host else (int(row["to_host"]) < 150_000)
    with (tmp_path / "results" / "completions.csv").open() as file:
        reserved = list(csv.DictReader(file))
    jobs = [one for one in reserved if one["kind"] == "1"]
    assert [int(one["arrived"]) < int(one["completed"]) for one in jobs] == [True]
    assert b"vendor, drives: 1" in (tmp_path / "results" / "plot.svg").read_bytes()


def test_the_page_s_clock_passes_with_commands_and_what_the_host_computes() -> None:
    said = run_python(blocks("experiment.md", "python")[2])
    assert int(said.split()[0]) > 5000 and said.endswith(" ns\n")


def test_a_worker_that_is_terminated_in_a_point_ends() -> None:
    source = "import signal\ndef wait(point): signal.raise_signal(signal.SIGTERM)"
    task = ("{'drives': 0}", "{'time': 'fast'}", "('wait',)", "''", "'mine.py'", repr(source), "{}")
    script = f"""
from potash.experiment.plan import Task
from potash.experiment.runs import carry_out
try:
    carry_out(Task(0, 0, 0, {", ".join(task)}))
except BaseException:
    print("goes on, as a worker of concurrent.futures does")
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, b"", b"")


def test_an_interrupted_experiment_leaves_nothing(tmp_path: Path) -> None:
    command = small(tmp_path)
    (tmp_path / "scan.c").write_text("")
    (tmp_path / "scan.toml").write_text(
        'functions = "scan.py"\nprogram = "wait"\n[vary]\nn = [1, 2]\n'
    )
    (tmp_path / "scan.py").write_text("import time\ndef wait(point): time.sleep(60)\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while not any(scratch.rglob("drive")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        found = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, wrong = process.communicate(timeout=60)
    assert process.returncode == 130
    assert wrong.decode().splitlines()[-1] == "potash: interrupted"
    assert b"Traceback" not in wrong
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    assert not list(scratch.iterdir())

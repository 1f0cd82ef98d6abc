"""The pages on adding something, followed: each change is made to a copy of the source, and
used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from potash.vm.drive import device_process
from support.bpf_compiler import NO_COMPILER, compiler
from support.docs import ROOT, SOCKET, blocks, environment

LIMIT = 120
TREES = ("device", "firmware", "host")


def run(code: str, environ: Mapping[str, str], cwd: Path) -> str:
    """What a block prints when it is run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def changed(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a copy of the source in which the page's changes have been made."""
    changes = blocks(page, "diff")
    assert changes
    for tree in TREES:
        if any(f"\n+++ b/{tree}/" in change for change in changes):
            shutil.copytree(ROOT / tree, folder / tree)  # with what is compiled
        else:
            (folder / tree).symlink_to(ROOT / tree)
    for change in changes:
        command = ["git", "apply", "-C1", "-"]
        done = subprocess.run(
            command,
            cwd=folder,
            input=change + "\n",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )
        assert done.returncode == 0, f"{page}: {done.stderr}"
    paths = os.pathsep.join(str(folder / tree) for tree in TREES)
    monkeypatch.setenv("PYTHONPATH", paths)
    yield {**environment(), "PYTHONPATH": paths}


def test_a_register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (attempt,) = blocks("adding/register.md", "python")
    socket = tmp_path / "s"
    with (
        changed("adding/register.md", tmp_path, monkeypatch) as environ,
        device_process(socket, "--size", "16M"),
    ):
        said = run(attempt.replace(SOCKET, str(socket)), environ, tmp_path)
    assert said == "60 half seconds\n"


def test_an_extension(tmp_path: Path) -> None:
    extension, attempt, slow, waiting, layer, fair, test = blocks("extend.md", "python")
    files = {"latency.py": extension, "slow.py": slow, "mine.py": layer, "fair.py": fair}
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    socket = tmp_path / "s"
    options = ["--size", "32M", "--time", "modelled", "--ftl", "Mine"]
    options += ["--compute-units", "8", "--scheduler", "Fair"]
    for name in ("latency.py", "mine.py", "fair.py"):
        options += ["--extend", str(tmp_path / name)]
    with device_process(socket, *options):
        said = run(attempt.replace(SOCKET, str(socket)), environment(), tmp_path)
    assert said == "1\n" and "# 1\n" in attempt + "\n"
    fault = ("--fault", "io read lba=7 delay=20ms")
    with device_process(socket, "--size", "16M", "--extend", str(tmp_path / "slow.py"), *fault):
        said = run(waiting.replace(SOCKET, str(socket)), environment(), tmp_path)
    assert said.splitlines() == re.findall("# (7 .*|07.*)", waiting)
    (tmp_path / "test_latency.py").write_text(test + "\n")
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_latency.py"]
    done = subprocess.run(
        pytest_, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_an_alu_opcode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (attempt,) = blocks("adding/alu-opcode.md", "python")
    with changed("adding/alu-opcode.md", tmp_path, monkeypatch) as environ:
        listed, output = run(attempt, environ, tmp_path).splitlines()
        assert "alu" in listed and "xor" in listed
        assert output == str([value ^ 5 for value in range(16)])
        assert f"# {output}" in attempt
        # The loops that numba compiles, as the Python that they are.
        loops = (
            "import numpy as np\n"
            "from potash_device.vta.fast import pieces\n"
            "acc, other = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)\n"
            "pieces.with_immediate(acc, pieces.XOR, np.int32(5))\n"
            "pieces.with_source(acc, other, pieces.XOR)\n"
            "print(acc.tolist())\n"
        )
        said = run(loops, {**environ, "NUMBA_DISABLE_JIT": "1"}, tmp_path)
        assert said.strip() == str([value ^ 5 ^ 3 for value in range(16)])


@pytest.mark.slow
def test_an_alu_opcode_in_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed sources are compiled anew, which takes its time."""
    (attempt,) = blocks("adding/alu-opcode.md", "python")
    assert 'The same with `engine="fast"`.' in (ROOT / "docs/adding/alu-opcode.md").read_text()
    with changed("adding/alu-opcode.md", tmp_path, monkeypatch) as environ:
        fast = attempt.replace('engine="readable"', 'engine="fast"')
        said = run(fast, {**environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path)
    assert said.splitlines()[-1] == str([value ^ 5 for value in range(16)])


def test_an_nvme_command(tmp_path: Path) -> None:
    extension, attempt = blocks("adding/nvme-command.md", "python")
    (tmp_path / "checksum.py").write_text(extension + "\n")
    socket = tmp_path / "s"
    with device_process(socket, "--size", "16M", "--extend", str(tmp_path / "checksum.py")):
        said = run(attempt.replace(SOCKET, str(socket)), environment(), tmp_path)
    assert said == "True\n"


def supported(environ: Mapping[str, str], folder: Path) -> str:
    """The page of what is supported, as `make docs-page` makes it of the changed source."""
    site = str(ROOT / "docs" / "site")
    code = f"import sys; sys.path.append({site!r}); from supported_page import page; print(page())"
    return run(code, environ, folder)


def test_a_log_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, socket = "adding/log-page.md", tmp_path / "s"
    contents, attempt = blocks(page, "python")
    place = "firmware/potash_firmware/rpu/logs/media_work.py"
    assert f"`{place}`" in (ROOT / "docs" / page).read_text()
    with changed(page, tmp_path, monkeypatch) as environ:
        (tmp_path / place).write_text(contents + "\n")
        with device_process(socket, "--size", "16M", "--allow-faults"):
            said = run(attempt.replace(SOCKET, str(socket)), environ, tmp_path)
        assert said == "(1, 1)\n(1, 0)\n"
        assert "| C7h | Media Work | yes | controller | – |" in supported(environ, tmp_path)


def test_a_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page, socket = "adding/feature.md", tmp_path / "s"
    value, attempt = blocks(page, "python")
    place = "firmware/potash_firmware/rpu/features/locate.py"
    assert f"`{place}`" in (ROOT / "docs" / page).read_text()
    with changed(page, tmp_path, monkeypatch) as environ:
        (tmp_path / place).write_text(value + "\n")
        with device_process(socket, "--size", "16M", verbose=True):
            said = run(attempt.replace(SOCKET, str(socket)), environ, tmp_path)
        stored, refusal = said.splitlines()
        assert stored == "2" and "Invalid Field" in refusal
        assert "the locate light is blinking" in capfd.readouterr().err
        row = "| C0h | Locate Light | yes | controller | saved | 0 to 2: off, on, blinking |"
        assert row in supported(environ, tmp_path)


def install(folder: Path, module: str, name: str, points: str) -> None:
    """What pip makes of a package of one module: that, and what its metadata say."""
    folder.mkdir()
    (folder / "popcount.py").write_text(module)
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)


def with_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a Python that has the packages of a folder."""
    environ = environment()
    environ["PYTHONPATH"] += os.pathsep + str(folder)
    monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
    return environ


def shell(code: str, environ: Mapping[str, str], cwd: Path) -> str:
    done = subprocess.run(
        ["sh", "-ec", code],
        env=dict(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("installed", [False, True])
def test_a_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    if compiler() is None:
        pytest.skip(NO_COMPILER)
    page = "adding/helper.md"
    (module,), (program,), (toml,) = (blocks(page, kind) for kind in ("python", "c", "toml"))
    attempt, on_drive = blocks(page, "sh")
    (tmp_path / "bits.c").write_text(program + "\n")
    source, environ = "popcount.py", environment()
    if installed:
        project = tomllib.loads(toml)["project"]
        points = f"[potash.extensions]\npopcount = {project['entry-points']['potash.extensions']['popcount']}"
        install(tmp_path / "packages", module + "\n", project["name"], points)
        source, environ = "popcount", with_package(tmp_path / "packages", monkeypatch)
    else:
        (tmp_path / source).write_text(module + "\n")
    attempt = attempt.replace("popcount.py", source)
    assert shell(attempt, environ, tmp_path).splitlines()[-1].split() == ["12"]
    assert "prints 12" in (ROOT / "docs" / page).read_text()
    listed = shell(f"potash bpf --extend {source} helpers", environ, tmp_path).splitlines()
    assert listed[-1].split()[:2] == ["40", "popcount"]
    socket = tmp_path / "s"
    monkeypatch.chdir(tmp_path)
    with device_process(socket, "--size", "16M", "--extend", source):
        said = shell(on_drive.replace(SOCKET, str(socket)), environ, tmp_path)
    assert said.split() == ["12"]


def test_a_helper_that_is_broken_harms_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[potash.helpers]\npopcount = popcount:POPCOUNT\n"
    install(tmp_path / "packages", "raise RuntimeError('not today')\n", "potash-popcount", points)
    helper = with_package(tmp_path / "packages", monkeypatch)
    command = [sys.executable, "-m", "potash.cli.main", "bpf", "helpers", "--json"]
    done = subprocess.run(
        command, env=helper, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 1
    sentence = "the helper popcount of potash-popcount is left out: not today"
    assert f'"problems": ["{sentence}"]' in done.stdout and '"name": "print"' in done.stdout
    table = (
        "| the package cannot be imported | `the helper popcount of potash-popcount is left out: ` "
    )
    assert table in (ROOT / "docs" / "adding" / "helper.md").read_text()
    said = tmp_path / "said"
    socket = tmp_path / "s"
    with said.open("wb") as stream:
        example = ROOT / "examples" / "add"
        serve = ["serve", "--socket", str(socket), "--size", "16M", "--json"]
        with subprocess.Popen(
            [sys.executable, "-m", "potash.cli.main", *serve],
            env=helper,
            stdout=subprocess.PIPE,
            stderr=stream,
        ) as device:
            try:
                assert device.stdout is not None and device.stdout.readline()
                shell(
                    f"potash run vfio-user:{socket} {example}/program.o {example}/input.bin out"
                    " --arg 520 --arg 1024",
                    helper,
                    tmp_path,
                )
            finally:
                device.terminate()
    assert (tmp_path / "out").read_bytes() == (example / "expected.bin").read_bytes()
    assert sentence in said.read_text()

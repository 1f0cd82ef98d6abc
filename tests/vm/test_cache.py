"""The cache: names that hold what an entry was made from, and nothing half made."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from potash.vm import cache
from potash.vm.cache import Cache, files_key, key
from potash.vm.errors import PackagesUnavailable


def test_a_key_tells_parts_apart_that_look_alike_when_joined() -> None:
    alike = [("ab", "c"), ("a", "bc"), ("abc",), (("ab", "c"),), (("a", "b"), "c"), ("c", "ab")]
    assert len({key(*parts) for parts in alike}) == len(alike)


def test_a_key_is_the_same_in_another_process() -> None:
    script = "import sys; from potash.vm.cache import key; print(key('a', ['b', b'c']))"
    roots = os.pathsep.join(path for path in sys.path if path)
    said = subprocess.check_output(
        [sys.executable, "-c", script], env=dict(os.environ, PYTHONPATH=roots, PYTHONHASHSEED="7")
    )
    assert said.decode().strip() == key("a", ["b", b"c"])


def test_the_key_of_files_follows_their_names_and_their_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("x")
    first = files_key(tmp_path, [one])
    os.utime(one, (1, 1))
    assert files_key(tmp_path, [one]) == first
    two.write_text("x")
    assert files_key(tmp_path, [two]) != first
    one.write_text("y")
    assert files_key(tmp_path, [one]) != first


def test_the_folder_follows_xdg_and_ignores_a_relative_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/c")
    assert cache.folder() == Path("/var/tmp/c/potash/vm")
    for named in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert cache.folder() == Path("/home/somebody/.cache/potash/vm")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    place = Cache(tmp_path / "c")
    built: list[Path] = []

    def build(path: Path) -> None:
        built.append(path)
        path.write_text("whole")

    with place.locked():
        first = place.entry("images", "k", build)
        assert place.entry("images", "k", build) == first
    assert first.read_text() == "whole" and len(built) == 1


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    place = Cache(tmp_path)

    def build(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), place.locked():
        place.entry("trees", "k", build)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / "unfinished-x" / "deep").mkdir(parents=True)
    with Cache(tmp_path).locked():
        assert not (tmp_path / "unfinished-x").exists()


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from potash.vm import cache\n"
        "from potash.vm.cache import Cache; cache.UNTOLD = 0.0\n"
        "def told(label, fraction): print(label, flush=True)\n"
        "with Cache(Path(sys.argv[1])).locked(told): print('mine', flush=True)\n"
    )
    roots = os.pathsep.join(path for path in sys.path if path)
    with Cache(tmp_path).locked():
        second = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, PYTHONPATH=roots),
        )
        assert second.stdout is not None
        # It says so before it waits, and can only say "mine" after this block.
        assert second.stdout.readline().startswith("waiting for another")
    rest, _ = second.communicate(timeout=30)
    assert rest == "mine\n"


def test_a_short_wait_is_not_worth_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    with contextlib.ExitStack() as first:
        first.enter_context(Cache(tmp_path).locked())
        ends = threading.Timer(0.05, first.close)
        ends.start()
        with Cache(tmp_path).locked(lambda label, fraction: said.append(label)):
            assert said == []
        ends.join()


def test_pruning_keeps_what_was_used_last(tmp_path: Path) -> None:
    place = Cache(tmp_path)
    with place.locked():
        for age, name in enumerate(("a", "b", "c")):
            path = place.entry("images", name, Path.touch)
            os.utime(path, (100 + age, 100 + age))
        place.entry("images", "a", Path.touch)  # used again, so the newest now
        place.prune("images", 2)
    assert {path.name for path in (tmp_path / "images").iterdir()} == {"a", "c"}


@pytest.mark.parametrize("foreign", ["potash", "potash/vm", "potash/vm/trees", "potash/vm/trees/k"])
def test_what_another_user_has_put_there_is_refused(
    foreign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "potash/vm/trees/k").mkdir(parents=True)
    place, others = Cache(tmp_path / "potash/vm"), tmp_path / foreign
    real = os.stat

    def owned(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        fields = list(real(path, follow_symlinks=follow_symlinks))
        fields[stat.ST_UID] += path == others
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", owned)
    refused = pytest.raises(PackagesUnavailable, match=f"{others} belongs to another user")
    with refused, place.locked():
        place.entry("trees", "k", Path.mkdir)


def test_nobody_else_may_write_to_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "potash" / "vm"
    root.mkdir(parents=True)
    for folder in (root.parent, root):
        folder.chmod(0o777)
    with Cache(root).locked():
        assert [folder.stat().st_mode & 0o777 for folder in (root.parent, root)] == [0o755, 0o755]

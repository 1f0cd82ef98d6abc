"""Bringing packages: what apt is told, and that nothing unsigned gets through."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.sdk.errors import PotashError
from potash.sdk.progress import silent
from potash.vm import packages
from potash.vm.cache import Cache
from potash.vm.errors import PackagesUnavailable
from potash.vm.packages import Archive, Closure, configuration, parse_dump, source_lines

DUMP = """APT "";
APT::NeverAutoRemove:: "^firmware-linux.*";
APT::Update::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";
APT::Get::AllowUnauthenticated "true";
Acquire::http::Proxy "http://proxy.example:3128/";
Acquire::Retries "3";
Acquire::Languages "de";
Acquire::AllowInsecureRepositories "true";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Dir::State::Lists "/elsewhere";
"""


ODD = "a \"b': c,d;e"
"""A folder whose name means something to a shell, to apt, to QEMU and to the dynamic loader."""


def test_only_the_network_s_settings_of_the_machine_are_kept() -> None:
    text = configuration(parse_dump(DUMP), own_sources=True)
    lines = text.splitlines()
    assert 'Acquire::http::Proxy "http://proxy.example:3128/";' in lines
    assert 'Acquire::Retries "3";' in lines
    assert 'Acquire::Languages "none";' in lines
    assert 'APT::Get::AllowUnauthenticated "false";' in lines
    assert 'Dir::Etc::SourceParts "/dev/null";' in lines
    assert 'Dir::State::Lists "./lists";' in lines
    for word in ("Post-Invoke", "Insecure", "DEP-11", "/elsewhere", '"true";'):
        assert (word == '"true";' and text.count(word) == 1) or word not in text


def test_every_source_is_trusted_by_the_pinned_keyring_alone() -> None:
    archive = "http://archive.example/debian"
    assert source_lines(archive, Path("/k.gpg")).splitlines() == [
        f"deb [signed-by=/k.gpg] {archive} trixie main",
        f"deb [signed-by=/k.gpg] {archive} trixie-backports main",
    ]


def test_another_wish_is_another_tree() -> None:
    one = Closure("t", "trixie", ("a", "b"))
    others = [Closure("t", "sid", ("a", "b")), Closure("t", "trixie", ("a",))]
    others.append(Closure("t", "trixie", ("a", "b"), ("./usr/share/doc",)))
    assert one.key == Closure("other title", "trixie", ("a", "b")).key
    assert one.key not in {other.key for other in others}


@contextlib.contextmanager
def bringing(cache: Cache, address: str) -> Iterator[Archive]:
    with cache.locked(), Archive(cache, address, silent) as archive:
        yield archive


@pytest.fixture
def unsigned(tmp_path: Path) -> Path:
    """An archive with everything but a signature, as a file: address names it."""
    if any(shutil.which(tool) is None for tool in packages.TOOLS):
        pytest.skip("there is no apt here")
    if not any(path.is_file() for path in packages.KEYRINGS):
        pytest.skip("there is no Debian archive keyring here")
    for suite in (packages.RELEASE, packages.BACKPORTS):
        index = tmp_path / "archive" / "dists" / suite / "main" / "binary-amd64"
        index.mkdir(parents=True)
        (index / "Packages").write_text("")
        (index.parents[1] / "Release").write_text(
            f"Origin: Debian\nSuite: {suite}\nCodename: {suite}\nComponents: main\n"
            "Architectures: amd64\nDate: Sat, 01 Nov 2025 00:00:00 UTC\n"
        )
    return tmp_path / "archive"


def test_an_unsigned_archive_is_refused_and_leaves_nothing(tmp_path: Path, unsigned: Path) -> None:
    cache = Cache(tmp_path / ODD / "cache")
    with (
        bringing(cache, f"file:{unsigned}") as archive,
        pytest.raises(PackagesUnavailable, match="not signed"),
    ):
        archive.tree(packages.GUEST)
    assert [path.name for path in cache.root.iterdir()] == ["lock"]


def test_an_archive_that_is_not_there_is_one_sentence(tmp_path: Path, unsigned: Path) -> None:
    cache = Cache(tmp_path / ODD / "cache")
    with (
        bringing(cache, f"file:{unsigned}/nowhere") as archive,
        pytest.raises(PackagesUnavailable, match="apt failed: ") as caught,
    ):
        archive.tree(packages.QEMU)
    assert "\n" not in str(caught.value)


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cache = Cache(tmp_path / "cache")
    with (
        bringing(cache, "file:/nowhere") as archive,
        pytest.raises(PackagesUnavailable, match="lacks apt-get, apt-config, dpkg-deb"),
    ):
        archive.tree(packages.QEMU)


def test_unpacking_merges_usr_and_gives_nobody_rights(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb here")
    source = tmp_path / "source"
    (source / "DEBIAN").mkdir(parents=True)
    (source / "DEBIAN" / "control").write_text(
        "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: d\n"
    )
    for name in ("bin/old", "usr/bin/new", "usr/share/doc/p/text"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    (source / "bin/old").chmod(0o4755)
    archive = tmp_path / "p.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", str(source), str(archive)],
        check=True,
        capture_output=True,
    )
    root = tmp_path / "root"
    root.mkdir()
    packages.unpack([archive], root, Closure("t", "s", (), ("./usr/share/doc",)), silent)
    assert (root / "usr/bin/old").read_text() == "bin/old"
    assert (root / "usr/bin/new").exists() and not (root / "usr/share/doc").exists()
    assert (root / "bin").is_symlink()
    assert not (root / "usr/bin/old").stat().st_mode & 0o7000


def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb here")
    damaged = tmp_path / "damaged.deb"
    damaged.write_bytes(b"!<arch>\nnothing more")
    with pytest.raises(PotashError, match="damaged.deb cannot be unpacked"):
        packages.unpack([damaged], tmp_path, Closure("t", "s", ()), silent)

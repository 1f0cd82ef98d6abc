"""Finding the Debian archive in apt's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from potash.vm import packages
from potash.vm.defaults import MIRROR_VARIABLE
from potash.vm.errors import PackagesUnavailable
from potash.vm.packages import Repository, debian_archive, read

HOST = "http://archive.example/debian"


LINE = f"deb [ arch=amd64 signed-by=/k.gpg ] {HOST} trixie main contrib # a comment\n"
STANZA = f"""Types: deb deb-src
URIs: {HOST}
Suites: bookworm
 trixie
Components: main
Signed-By: /k.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: sid
Components: main
"""


def apt_folder(root: Path, name: str, text: str) -> tuple[str, ...]:
    """Options for an apt that has these sources alone."""
    (root / name).write_text(text)
    (root / "sources.list").touch()
    parts = ("sources.list", "parts") if name == "sources.list" else ("none", ".")
    options = (f"SourceList={root / parts[0]}", f"SourceParts={root / parts[1]}")
    return tuple(f"-oDir::Etc::{option}" for option in options)


@pytest.mark.parametrize(
    ("name", "text", "suites"),
    [
        ("sources.list", LINE, {"trixie"}),
        ("debian.sources", STANZA, {"bookworm", "trixie"}),
        ("saved.list.save", LINE, set()),
        ("sources.list", f"# {LINE}deb-src {HOST} sid main\n", set()),
    ],
)
def test_apt_names_its_sources(tmp_path: Path, name: str, text: str, suites: set[str]) -> None:
    found = read(*apt_folder(tmp_path, name, text))
    main = [source for source in found if source.component == "main"]
    assert {source.uri for source in found} <= {f"{HOST}/"}
    assert {source.suite for source in main} == suites


def test_without_apt_there_are_no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert read() == []


def test_the_archive_is_neither_security_nor_another_vendor_s() -> None:
    found = [
        Repository("http://archive.example/debian-security", "bookworm-security", "main"),
        Repository("http://archive.example/node", "nodistro", "main"),
        Repository("http://archive.example/ubuntu", "noble", "main"),
        Repository("cdrom:[Debian]/", "bookworm", "main"),
        Repository("http://archive.example/own", "stable", "contrib"),
        Repository(HOST + "/", "bookworm-updates", "main"),
    ]
    assert debian_archive(found) == HOST
    assert debian_archive(found[:-1]) is None


def test_an_address_that_ends_as_debian_s_is_preferred() -> None:
    vendor = Repository("https://vendor.example/packages", "stable", "main")
    assert debian_archive([vendor, Repository(HOST, "sid", "main")]) == HOST
    assert debian_archive([vendor]) == vendor.uri


def test_the_archive_is_that_of_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    assert packages.mirror(None, *apt_folder(tmp_path, "debian.sources", STANZA)) == HOST


def test_the_option_goes_before_the_environment_and_that_before_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = apt_folder(tmp_path, "debian.sources", STANZA)
    monkeypatch.setenv(MIRROR_VARIABLE, "https://environment.example/debian/")
    assert packages.mirror(None, *apt) == "https://environment.example/debian"
    assert packages.mirror("file:/srv/debian", *apt) == "file:/srv/debian"


def test_no_archive_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    with pytest.raises(PackagesUnavailable, match="set POTASH_DEBIAN_MIRROR, or .* to the address"):
        packages.mirror(None, *apt_folder(tmp_path, "sources.list", ""))


@pytest.mark.parametrize("named", ["archive.example/debian", "http://a/debian trixie", "-o x"])
def test_an_option_that_is_no_address_is_refused(named: str) -> None:
    with pytest.raises(PackagesUnavailable, match="not an address"):
        packages.mirror(named)

"""Finding the Debian archive in apt's configuration, in both of its formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from potash.vm import sources
from potash.vm.errors import PackagesUnavailable
from potash.vm.sources import Source, debian_archive, parse_deb822, parse_list

HOST = "http://archive.example/debian"


def test_a_line_gives_its_address_suite_and_components() -> None:
    text = f"deb {HOST} bookworm main contrib # a comment\n"
    assert list(parse_list(text)) == [Source(HOST, "bookworm", ("main", "contrib"))]


@pytest.mark.parametrize(
    "options", ["[arch=amd64]", "[ arch=amd64 signed-by=/k.gpg ]", "[arch=amd64 trusted=yes]"]
)
def test_a_line_s_options_are_passed_over(options: str) -> None:
    found = list(parse_list(f"deb {options} {HOST} trixie main"))
    assert found == [Source(HOST, "trixie", ("main",))]


@pytest.mark.parametrize(
    "text",
    [f"# deb {HOST} sid main", f"deb-src {HOST} sid main", "deb [", "deb x", ""],
)
def test_what_is_no_binary_entry_gives_nothing(text: str) -> None:
    assert list(parse_list(text)) == []


def test_a_stanza_names_several_addresses_and_suites() -> None:
    text = f"""# The archive
Types: deb deb-src
URIs: {HOST} http://other.example/debian
Suites: bookworm
 bookworm-updates
Components: main
# between fields
Signed-By: /usr/share/keyrings/k.gpg
"""
    assert list(parse_deb822(text)) == [
        Source(uri, suite, ("main",))
        for uri in (HOST, "http://other.example/debian")
        for suite in ("bookworm", "bookworm-updates")
    ]


@pytest.mark.parametrize("field", ["Enabled: no", "enabled: FALSE", "Types: deb-src"])
def test_a_stanza_that_is_off_or_only_of_sources_gives_nothing(field: str) -> None:
    types = "" if field.startswith("Types") else "Types: deb\n"
    text = f"{types}{field}\nURIs: {HOST}\nSuites: sid\nComponents: main\n"
    assert list(parse_deb822(text)) == []


def test_a_key_written_into_a_stanza_is_no_field() -> None:
    text = f"""Types: deb
URIs: {HOST}
Suites: sid
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 Suites: not-a-field
"""
    assert list(parse_deb822(text)) == [Source(HOST, "sid", ("main",))]


def test_the_archive_is_neither_security_nor_another_vendor_s() -> None:
    found = [
        Source("http://archive.example/debian-security", "bookworm-security", ("main",)),
        Source("http://archive.example/node", "nodistro", ("main",)),
        Source("http://archive.example/ubuntu", "noble", ("main",)),
        Source("cdrom:[Debian]/", "bookworm", ("main",)),
        Source("http://archive.example/own", "stable", ("contrib",)),
        Source(HOST + "/", "bookworm-updates", ("main",)),
    ]
    assert debian_archive(found) == HOST
    assert debian_archive(found[:-1]) is None


def test_an_address_that_ends_as_debian_s_is_preferred() -> None:
    vendor = Source("https://vendor.example/packages", "stable", ("main",))
    assert debian_archive([vendor, Source(HOST, "sid", ("main",))]) == HOST
    assert debian_archive([vendor]) == vendor.uri


def apt_folder(root: Path) -> Path:
    (root / "sources.list.d").mkdir()
    ubuntu = "http://archive.example/ubuntu"
    (root / "sources.list").write_text(f"deb {ubuntu} noble main\n")
    stanza = f"Types: deb\nURIs: {HOST}\nSuites: trixie\nComponents: main\n"
    (root / "sources.list.d" / "debian.sources").write_text(stanza)
    (root / "sources.list.d" / "ignored.list.save").write_text(f"deb {HOST} sid main\n")
    return root


def test_files_of_both_formats_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sources.ENVIRONMENT, raising=False)
    assert sources.mirror(apt=apt_folder(tmp_path)) == HOST


def test_the_option_goes_before_the_environment_and_that_before_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = apt_folder(tmp_path)
    monkeypatch.setenv(sources.ENVIRONMENT, "https://environment.example/debian/")
    assert sources.mirror(apt=apt) == "https://environment.example/debian"
    assert sources.mirror("file:/srv/debian", apt=apt) == "file:/srv/debian"


def test_no_archive_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(sources.ENVIRONMENT, raising=False)
    with pytest.raises(PackagesUnavailable, match="--debian-mirror or POTASH_DEBIAN_MIRROR"):
        sources.mirror(apt=tmp_path)


@pytest.mark.parametrize("named", ["archive.example/debian", "http://a/debian trixie", "-o x"])
def test_an_option_that_is_no_address_is_refused(named: str) -> None:
    with pytest.raises(PackagesUnavailable, match="not an address"):
        sources.mirror(named)

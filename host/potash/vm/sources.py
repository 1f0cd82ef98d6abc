"""Which Debian archive this machine uses, read from apt's own configuration.

Both of sources.list(5)'s formats are understood: one line an entry (`deb [options] uri suite
components`) and deb822 stanzas. Only the address is taken from an entry; what is fetched from it,
and by which key it must be signed, `packages` decides. Pure functions over text, but for `read`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from potash.vm.errors import PackagesUnavailable

ENVIRONMENT = "POTASH_DEBIAN_MIRROR"
APT = Path("/etc/apt")
CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid")
SUITES = ("oldoldstable", "oldstable", "stable", "testing", "unstable", "experimental")
EXTENSIONS = ("", "-updates", "-backports", "-proposed-updates")
SCHEMES = ("http", "https", "ftp", "file", "copy", "mirror", "mirror+http", "mirror+https")
FALSE = ("no", "false", "without", "off", "disable", "0")


class Source(NamedTuple):
    """One archive that apt may fetch binary packages from."""

    uri: str
    suite: str
    components: tuple[str, ...]


def parse_list(text: str) -> Iterator[Source]:
    """The `deb` entries of a one-line-format file (sources.list(5), "one-line-style format")."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] != "deb":
            continue
        words = words[1:]
        if words and words[0].startswith("["):
            # Options stand in one pair of brackets, with or without spaces inside them.
            closing = next((i for i, word in enumerate(words) if word.endswith("]")), len(words))
            words = words[closing + 1 :]
        if len(words) >= 2:
            yield Source(words[0], words[1], tuple(words[2:]))


def parse_deb822(text: str) -> Iterator[Source]:
    """The `deb` entries of a deb822 file (sources.list(5), "deb822-style format")."""
    for stanza in _stanzas(text.splitlines()):
        if stanza.get("enabled", "yes").strip().lower() in FALSE:
            continue
        if "deb" not in stanza.get("types", "").split():
            continue
        components = tuple(stanza.get("components", "").split())
        for uri in stanza.get("uris", "").split():
            for suite in stanza.get("suites", "").split():
                yield Source(uri, suite, components)


def _stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    name = ""
    for line in [*lines, ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0].isspace():
            if name:
                fields[name] += " " + line.strip()
        else:
            label, colon, value = line.partition(":")
            name = label.strip().lower() if colon else ""
            if name:
                fields[name] = value.strip()


def debian_archive(sources: Iterable[Source]) -> str | None:
    """The address of Debian's main archive among some sources, or None.

    The security archive has the same suites under another name and lacks what is asked for here;
    another vendor's archive has other suites.
    """
    known = {name + extension for name in CODENAMES + SUITES for extension in EXTENSIONS}
    found = [
        source.uri.rstrip("/")
        for source in sources
        if source.suite in known
        and "main" in source.components
        and urlsplit(source.uri).scheme in SCHEMES
    ]
    # A vendor may reuse Debian's names; the real one is usually served as ".../debian".
    return min(found, key=lambda uri: not uri.endswith("/debian"), default=None)


def read(apt: Path = APT) -> list[Source]:
    """Every source that the machine's apt configuration names; unreadable files are passed over."""
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    stanzas = sorted((apt / "sources.list.d").glob("*.sources"))
    found: list[Source] = []
    for parse, paths in ((parse_list, lists), (parse_deb822, stanzas)):
        for path in paths:
            try:
                found += parse(path.read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
    return found


def mirror(option: str | None = None, apt: Path = APT) -> str:
    """The Debian archive to use: the option, the environment, or what apt is configured with.

    Raises:
        PackagesUnavailable: there is none, or it is no address.
    """
    named = option or os.environ.get(ENVIRONMENT)
    if named:
        if urlsplit(named).scheme not in SCHEMES or any(c.isspace() for c in named):
            raise PackagesUnavailable(
                f"the Debian mirror {named!r} is not an address that apt understands"
            )
        return named.rstrip("/")
    archive = debian_archive(read(apt))
    if archive is None:
        raise PackagesUnavailable(
            "this machine's apt configuration names no Debian archive: give one with "
            f"--debian-mirror or {ENVIRONMENT}"
        )
    return archive

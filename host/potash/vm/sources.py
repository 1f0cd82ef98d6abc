"""Which Debian archive this machine uses, as apt itself reads its configuration.

Only the address is taken; `packages` decides what is fetched from it, and by which key it must be
signed.
"""

import os
import subprocess
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from potash.vm.errors import PackagesUnavailable

ENVIRONMENT = "POTASH_DEBIAN_MIRROR"
CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid")
SUITES = ("oldoldstable", "oldstable", "stable", "testing", "unstable", "experimental")
EXTENSIONS = ("", "-updates", "-backports", "-proposed-updates")
SCHEMES = ("http", "https", "ftp", "file", "copy", "mirror", "mirror+http", "mirror+https")
FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
"""Of `apt-get indextargets` (apt-get(8)): a line for each index of packages."""


class Source(NamedTuple):
    """One archive that apt may fetch binary packages from."""

    uri: str
    suite: str
    component: str


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
        and source.component == "main"
        and urlsplit(source.uri).scheme in SCHEMES
    ]
    # A vendor may reuse Debian's names; the real one is usually served as ".../debian".
    return min(found, key=lambda uri: not uri.endswith("/debian"), default=None)


def read(*options: str) -> list[Source]:
    """Every source of binary packages that the machine's apt knows; none where there is no apt.

    `options` are further options of apt-get.
    """
    command = ["apt-get", "indextargets", "--no-release-info", *options, "--format", FORMAT]
    try:
        done = subprocess.run(
            [*command, "Created-By: Packages"], capture_output=True, text=True, check=False
        )
    except OSError:
        return []
    return [Source(*line.split("\t")) for line in done.stdout.splitlines()]


def mirror(option: str | None = None, *options: str) -> str:
    """The Debian archive to use: the option, the environment, or what apt is configured with.

    `options` are further options of apt-get.

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
    archive = debian_archive(read(*options))
    if archive is None:
        raise PackagesUnavailable(
            "this machine's apt configuration names no Debian archive (Ubuntu's does not): set "
            f"{ENVIRONMENT}, or --debian-mirror, to the address of one"
        )
    return archive

"""Debian packages, downloaded and unpacked into the cache: no root, and nothing outside it.

apt does the work, with sources, lists and archives of its own below a scratch folder and an empty
dpkg status file, so that it fetches the whole closure of what is asked for whatever is installed
here. It checks the archive's signature against Debian's own keyring (`Signed-By`) and every package
against the signed index; packages are then unpacked without running their scripts. See apt.conf(5),
sources.list(5), apt-secure(8). apt reports which archive this machine uses; only the address is
taken from there.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.vm.cache import Cache, key
from potash.vm.defaults import MIRROR_VARIABLE
from potash.vm.errors import PackagesUnavailable
from potash.vm.parent_death import dies_with_parent

CODENAMES = ("bullseye", "bookworm", "trixie", "forky", "duke", "sid")
SUITES = ("oldoldstable", "oldstable", "stable", "testing", "unstable", "experimental")
EXTENSIONS = ("", "-updates", "-backports", "-proposed-updates")
SCHEMES = ("http", "https", "ftp", "file", "copy", "mirror", "mirror+http", "mirror+https")
FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
"""Format of `apt-get indextargets` (apt-get(8)): a line for each index of packages."""


class Repository(NamedTuple):
    """A repository from which apt may fetch binary packages."""

    uri: str
    suite: str
    component: str


def debian_archive(sources: Iterable[Repository]) -> str | None:
    """The address of Debian's main archive among some sources, or None.

    The security archive has the same suites under another name and lacks what is asked for here;
    another vendor's archive has other suites.
    """
    suites = {name + extension for name in CODENAMES + SUITES for extension in EXTENSIONS}
    found = [
        source.uri.rstrip("/")
        for source in sources
        if source.suite in suites
        and source.component == "main"
        and urlsplit(source.uri).scheme in SCHEMES
    ]
    # A vendor may reuse Debian's names; the real one is usually served as ".../debian".
    return min(found, key=lambda uri: not uri.endswith("/debian"), default=None)


def read(*options: str) -> list[Repository]:
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
    return [Repository(*line.split("\t")) for line in done.stdout.splitlines()]


def mirror(option: str | None = None, *options: str) -> str:
    """The Debian archive to use: the option, the environment, or what apt is configured with.

    `options` are further options of apt-get. Raises PackagesUnavailable where there is none, or it
    is not an address.
    """
    named = option or os.environ.get(MIRROR_VARIABLE)
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
            f"{MIRROR_VARIABLE}, or --debian-mirror, to the address of one"
        )
    return archive


RELEASE = "trixie"
BACKPORTS = "trixie-backports"
KEYRING_PACKAGE = "debian-archive-keyring"
KEYRINGS = tuple(
    Path("/usr/share/keyrings") / name
    for name in ("debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
)
TOOLS = ("apt-get", "apt-config", "dpkg-deb", "tar")
# The machine's settings for reaching the network are kept; those that would weaken the checking of
# signatures, or fetch indexes that are not read here, are not.
KEPT = re.compile(r"Acquire::(?!IndexTargets|Languages|Allow)")
UNREACHABLE = (
    "check the network, or name another archive with --debian-mirror; potash demo --embedded needs "
    "none"
)
# The unpacked trees merge /usr, as Debian's do.
MERGED = ("bin", "sbin", "lib", "lib64")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LIBRARY_FOLDERS = (LIBRARIES, f"{LIBRARIES}/ceph")
LOADER = "usr/lib64/ld-linux-x86-64.so.2"


@dataclass(frozen=True)
class Closure:
    """The named packages with everything that they depend on, preferably from one suite. `title` is
    its name in progress reports; paths of `exclude` (tar's patterns) are not unpacked."""

    title: str
    suite: str
    packages: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return key(self.suite, self.packages, self.exclude)


QEMU = Closure("QEMU", BACKPORTS, ("qemu-system-x86",), ("./usr/share/doc", "./usr/share/man"))
GUEST = Closure(
    "the guest's Linux",
    RELEASE,
    (
        "linux-image-cloud-amd64",
        "busybox-static",
        "nvme-cli",
        "fio",
        "e2fsprogs",
        "util-linux",
        "python3.13",
        "zstd",
    ),
    ("./usr/lib/modules", "./usr/share/doc", "./usr/share/man", "./usr/share/locale"),
)


def loader_command(tree: Path, binary: Path) -> list[str]:
    """The command that starts a binary of an unpacked tree with the tree's own loader and
    libraries.

    The libraries are named from where the binary is, as the loader would divide a path at colons.
    """
    folders = (os.path.relpath(tree / folder, binary.parent) for folder in LIBRARY_FOLDERS)
    path = ":".join(f"$ORIGIN/{folder}" for folder in folders)
    return [str(tree / LOADER), "--library-path", path]


def program_command(tree: Path, name: str) -> list[str]:
    """The command that runs a program of an unpacked tree on this machine."""
    program = tree / name
    return [*loader_command(tree, program), "--argv0", str(program), str(program)]


class Archive:
    """The Debian archive. Its index is fetched when a tree is missing for the first time.

    It is a context manager, inside which the lock of the cache of trees must be held. Without a
    `mirror`, the archive's address is read from the machine's configuration.
    """

    def __init__(self, cache: Cache, mirror: str | None, progress: Progress) -> None:
        self._cache = cache
        self._mirror = mirror
        self._progress = progress
        self._apt: Apt | None = None
        self._owned = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def tree(self, closure: Closure) -> Path:
        """The folder of an unpacked closure, which is downloaded if it is missing. Raises
        PackagesUnavailable where a tool is missing, or the packages cannot be downloaded or
        verified, and PotashError where they cannot be unpacked."""

        def build(place: Path) -> None:
            archives = self._index(closure).download(closure, self._progress)
            unpack(archives, place, closure, self._progress)
            (place / "packages").write_text("".join(f"{path.name}\n" for path in archives))

        return self._cache.entry("trees", closure.key, build)

    def _index(self, closure: Closure) -> "Apt":
        if self._apt is None:
            missing = [tool for tool in TOOLS if shutil.which(tool) is None]
            if missing:
                raise PackagesUnavailable(
                    f"{closure.title} is downloaded with {', '.join(TOOLS)}, and this machine "
                    f"lacks {', '.join(missing)}"
                )
            address = mirror(self._mirror)
            scratch = self._owned.enter_context(self._cache.scratch())
            # sources.list takes no path with a comma, as the cache's may be.
            folder = self._owned.enter_context(TemporaryDirectory(prefix="potash-"))
            keyring = find_keyring(Path(folder), self._progress)
            apt = Apt(scratch / "apt", source_lines(address, keyring))
            self._progress("reading the Debian archive's index", None)
            apt.run("update", "-o", "APT::Update::Error-Mode=any")
            self._apt = apt
        return self._apt


def versions(root: Path) -> list[str]:
    """The file names of the packages that a tree was unpacked from: names with versions."""
    return (root / "packages").read_text().split()


def source_lines(address: str, keyring: Path) -> str:
    """The sources.list of both suites, trusted by one keyring alone."""
    lines = [f"deb [signed-by={keyring}] {address} {suite} main" for suite in (RELEASE, BACKPORTS)]
    return "\n".join(lines) + "\n"


def find_keyring(scratch: Path, progress: Progress) -> Path:
    """Debian's archive keyring: the system's, or one fetched with the system's own trust.

    On a machine that is not Debian but has its package (Ubuntu does), apt verifies the package
    that holds the keyring by the keys that the machine already trusts.
    """
    for path in KEYRINGS:
        if path.is_file():
            return path
    progress("downloading Debian's archive keyring", None)
    apt = Apt(scratch, None)
    apt.run("update")
    apt.run("download", KEYRING_PACKAGE)
    for archive in scratch.glob("*.deb"):
        _unpack_one(archive, scratch, ())
    for path in KEYRINGS:
        found = scratch / path.relative_to("/")
        if found.is_file():
            return found
    raise PotashError(f"the package {KEYRING_PACKAGE} holds no keyring that is known here")


def configuration(system: Mapping[str, str], *, own_sources: bool) -> str:
    """The apt.conf of a scratch folder, for an apt-get that runs there: relative paths need no
    quoting, whatever the folder's name contains. Of the machine's settings, those of the network
    are kept; its sources are used unless there are `own_sources`."""
    settings = {name: value for name, value in system.items() if KEPT.match(name)}
    settings |= {
        "Dir::State": "./state",
        "Dir::State::Lists": "./lists",
        "Dir::State::Status": "./status",
        "Dir::Cache": "./cache",
        "Dir::Log": "./log",
        # The machine's hooks and preferences do not apply to packages that are only unpacked.
        "Dir::Etc::Parts": "/dev/null",
        "Dir::Etc::Main": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Architectures": "amd64",
        "APT::Install-Recommends": "false",
        "APT::Install-Suggests": "false",
        "APT::Get::AllowUnauthenticated": "false",
        # The downloader's own user could not reach into a folder that is private to this one.
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    if own_sources:
        settings |= {
            "Dir::Etc::SourceList": "./sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Trusted": "/dev/null",
            "Dir::Etc::TrustedParts": "/dev/null",
        }
    return "".join(f'{name} "{value}";\n' for name, value in settings.items())


def parse_dump(text: str) -> dict[str, str]:
    """The settings that `apt-config dump` prints, one `Name "value";` a line; lists are dropped."""
    pairs = re.findall(r'^([\w:./+-]+) "(.*)";$', text, re.MULTILINE)
    return {name: value for name, value in pairs if value and not name.endswith("::")}


class Apt:
    """apt-get working in one scratch folder, with a sources.list, or with the machine's own
    sources."""

    def __init__(self, folder: Path, source_list: str | None) -> None:
        self.folder = folder
        self.source_list = source_list

    def prepare(self) -> None:
        """Write the configuration and the empty folders that apt needs."""
        for name in ("state", "lists/partial", "cache/archives/partial", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").touch()
        if self.source_list is not None:
            (self.folder / "sources.list").write_text(self.source_list)
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False)
        text = configuration(parse_dump(dump.stdout), own_sources=self.source_list is not None)
        (self.folder / "apt.conf").write_text(text)

    def run(self, *arguments: str, progress: tuple[Progress, str] | None = None) -> None:
        """Run apt-get; its progress is read from its status descriptor and reported to `progress`.
        Raises PackagesUnavailable where apt-get fails; its own last error is the reason."""
        if not (self.folder / "apt.conf").exists():
            self.prepare()
        environment = dict(os.environ, LC_ALL="C", APT_CONFIG=str(self.folder / "apt.conf"))
        reader, writer = os.pipe()
        with TemporaryFile() as said, open(reader, encoding="utf-8", errors="replace") as status:
            process = subprocess.Popen(
                dies_with_parent(
                    ["apt-get", "-y", "-q", "-o", f"APT::Status-Fd={writer}", *arguments]
                ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                pass_fds=(writer,),
                cwd=self.folder,
                # Ctrl-C at the terminal is this process's business.
                start_new_session=True,
            )
            try:
                os.close(writer)
                for line in status:
                    _report(line, progress)
                code = process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            if code:
                said.seek(0)
                raise PackagesUnavailable(
                    f"apt failed: {_reason(said.read().decode(errors='replace'))}"
                )

    def download(self, closure: Closure, progress: Progress) -> list[Path]:
        """Fetch a closure's packages. Returns their files, sorted by name."""
        # Two closures may need different versions of a package.
        archives = self.folder / "cache" / "archives"
        for path in archives.glob("*.deb"):
            path.unlink()
        self.run(
            "install",
            "--download-only",
            "-t",
            closure.suite,
            *closure.packages,
            progress=(progress, f"downloading {closure.title}"),
        )
        return sorted(archives.glob("*.deb"))


def unpack(archives: Sequence[Path], root: Path, closure: Closure, progress: Progress) -> None:
    """Unpack packages into one folder, without their maintainer scripts."""
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for index, archive in enumerate(archives):
        progress(f"unpacking {closure.title}", index / len(archives))
        _unpack_one(archive, root, closure.exclude)
    progress(f"unpacking {closure.title}", 1.0)


def _unpack_one(archive: Path, root: Path, exclude: Sequence[str]) -> None:
    command = ["tar", "-x", "-C", str(root), "--keep-directory-symlink"]
    # Unpacked files must not belong to another user or run with another user's rights.
    command += ["--no-same-owner", "--no-same-permissions"]
    command += [f"--exclude={pattern}" for pattern in exclude]
    source = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with source:
        done = subprocess.run(command, stdin=source.stdout, capture_output=True, check=False)
        said = done.stderr or source.communicate()[1]
    if done.returncode or source.returncode:
        reason = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[0]
        raise PotashError(f"the package {archive.name} cannot be unpacked: {reason}")


def _report(line: str, progress: tuple[Progress, str] | None) -> None:
    # "dlstatus:<item>:<percent>:<description>"
    words = line.split(":", 3)
    if progress is None or len(words) < 3 or words[0] != "dlstatus":
        return
    try:
        progress[0](progress[1], min(1.0, float(words[2]) / 100))
    except ValueError:
        return


def _reason(said: str) -> str:
    errors = [line[2:].strip() for line in said.splitlines() if line.startswith(("E:", "W:"))]
    first = errors[0] if errors else (said.strip().splitlines() or ["it said nothing"])[-1]
    return f"{first}; {UNREACHABLE}" if "Failed to fetch" in first else first

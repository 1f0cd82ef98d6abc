"""The guest's file system, as two archives: a base of Debian's programs, and an overlay of
Potash's.

The base is busybox, nvme-cli, fio, e2fsprogs, blkzone and Python with the shared libraries that
their own loader names; the overlay is the SDK, the light commands and the agent. Python's modules
come with bytecode that is never checked against its source (PEP 552, unchecked hash-based),
compiled by the guest's own Python, as an emulated processor is slow at finding and compiling
sources.
"""

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from potash.sdk.errors import PotashError
from potash.vm.packages import LIBRARIES, LIBRARY_FOLDERS, LOADER, loader_command, program_command

MAGIC = b"070701"
TRAILER = "TRAILER!!!"
ALIGNMENT = 4


class Entry(NamedTuple):
    """A file: `mode` with its type bits, its bytes (for a symbolic link, the target), its device
    number."""

    mode: int
    data: bytes | Path = b""
    major: int = 0
    minor: int = 0


def header(inode: int, entry: Entry, data_size: int, name_size: int) -> bytes:
    """The fixed part of an entry: magic and thirteen fields of eight digits, owned by root, dated
    1970."""
    directory = stat.S_ISDIR(entry.mode)
    fields = (
        inode,
        entry.mode,
        0,  # c_uid
        0,  # c_gid
        2 if directory else 1,  # c_nlink
        0,  # c_mtime: a date would make equal content different archives
        data_size,
        0,  # c_maj
        0,  # c_min
        entry.major,
        entry.minor,
        name_size,
        0,  # c_chksum: only in the "crc" format
    )
    return MAGIC + b"".join(b"%08X" % field for field in fields)


class Archive:
    """A tree of files to be written as one archive. Parent folders are added automatically."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def directory(self, name: str) -> None:
        """Add a folder, and those above it, unless they are there."""
        path = _relative(name)
        for folder in (*reversed(path.parents), path)[1:]:  # the first one is the root
            self.entries.setdefault(str(folder), Entry(stat.S_IFDIR | 0o755))

    def file(self, name: str, data: bytes | Path, mode: int = 0o644) -> None:
        """Add a regular file from bytes or from a file (read when the archive is written)."""
        self._add(name, Entry(stat.S_IFREG | mode, data))

    def symlink(self, name: str, target: str) -> None:
        self._add(name, Entry(stat.S_IFLNK | 0o777, target.encode()))

    def device(self, name: str, major: int, minor: int, mode: int) -> None:
        """Add a character device node; no privilege is needed to write one into an archive."""
        self._add(name, Entry(stat.S_IFCHR | mode, b"", major, minor))

    def copy(self, source: Path, name: str, mode: int | None = None) -> None:
        """Add a file with its own executable bits, following links."""
        bits = stat.S_IMODE(source.stat().st_mode) if mode is None else mode
        self.file(name, source, bits & 0o755)

    def write(self, stream: BinaryIO) -> None:
        """Write the archive, folders before what is in them."""
        ordered = sorted(self.entries.items(), key=lambda item: PurePosixPath(item[0]).parts)
        for inode, (name, entry) in enumerate(ordered, start=1):
            data = entry.data.read_bytes() if isinstance(entry.data, Path) else entry.data
            _put(stream, inode, name, entry, data)
        _put(stream, 0, TRAILER, Entry(0), b"")

    def _add(self, name: str, entry: Entry) -> None:
        path = _relative(name)
        self.directory(str(path.parent))
        self.entries[str(path)] = entry


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name.lstrip("/"))
    if ".." in path.parts:
        raise ValueError(f"an archive's name cannot leave the archive: {name}")
    return path


def _put(stream: BinaryIO, inode: int, name: str, entry: Entry, data: bytes) -> None:
    encoded = os.fsencode(name) + b"\0"
    head = header(inode, entry, len(data), len(encoded)) + encoded
    stream.write(head + bytes(-len(head) % ALIGNMENT))
    stream.write(data)
    stream.write(bytes(-len(data) % ALIGNMENT))


PYTHON = "python3.13"
STDLIB = f"usr/lib/{PYTHON}"
DIST = "usr/lib/python3/dist-packages"
PROGRAMS = (
    "usr/sbin/nvme",
    "usr/bin/fio",
    "usr/sbin/mke2fs",
    "usr/sbin/e2fsck",
    "usr/sbin/blkzone",
    f"usr/bin/{PYTHON}",
)
FILE_SYSTEMS = {f"mkfs.ext{n}": "mke2fs" for n in (2, 3, 4)} | {
    f"fsck.ext{n}": "e2fsck" for n in (2, 3, 4)
}
"""Links in `usr/sbin` to programs that act by the name that they are called by."""
# Parts of the standard library that programs in the guest do not need: tests, tools, user
# interfaces, and modules that need large libraries.
UNUSED = re.compile(
    r"(.+/)?(__pycache__|test|idlelib|ensurepip|pydoc_data|turtledemo|tkinter|unittest|xmlrpc|venv"
    r"|wsgiref|curses|dbm|sqlite3|lib2to3|_pyrepl|config-3[^/]*|turtle\.py|doctest\.py"
    r"|(_tkinter|_ssl|_hashlib|_curses|_curses_panel|_dbm|_gdbm|_sqlite3|_test\w+|_xx\w+"
    r"|_codecs_(cn|hk|jp|kr|tw|iso2022)|readline|nis)\.cpython[^/]*)"
)
# Whole packages: Potash's, and the two that these import, in the versions that are tested.
LIGHT_PACKAGES = ("potash_wire", "nvme_spec", "csd_spec", "pyvfio_user", "click", "rich")
# Of `potash`, what runs in a guest.
LIGHT_PATTERNS = (
    "*.py",
    "sdk/**/*.py",
    "columns/*.py",
    "cli/*.py",
    "cli/drive/**/*.py",
    "vm/__init__.py",
    "vm/agent.py",
    "vm/frames.py",
)
COMMAND = """#!/usr/bin/python3 -s
import sys

from potash.cli.main import main

sys.exit(main())
"""
FOLDERS = ("dev", "proc", "sys", "tmp", "run", "root", "mnt", "share", "etc", "usr/local/bin")
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost potash\n",
    "etc/profile": "export PATH=/usr/local/bin:/usr/bin:/usr/sbin\nexport PS1='\\u@\\h:\\w# '\n",
}


def init_script() -> bytes:
    return (files("potash.vm") / "init.sh").read_bytes()


def base(tree: Path, scratch: Path) -> Archive:
    """The archive of Debian's programs, of an unpacked tree; `scratch` is an empty folder to
    compile in."""
    archive = Archive()
    for name in ("bin", "sbin", "lib", "lib64"):
        archive.directory(f"usr/{name}")
        archive.symlink(name, f"usr/{name}")
    for name in FOLDERS:
        archive.directory(name)
    for name, text in TEXTS.items():
        archive.file(name, text.encode())
    archive.device("dev/console", 5, 1, 0o600)
    archive.device("dev/null", 1, 3, 0o666)
    archive.copy(tree / LOADER, LOADER, 0o755)
    archive.symlink("usr/bin/python3", PYTHON)
    archive.copy(tree / "usr/bin/busybox", "usr/bin/busybox", 0o755)
    for name in PROGRAMS:
        archive.copy(tree / name, name, 0o755)
    for name, program in FILE_SYSTEMS.items():
        archive.symlink(f"usr/sbin/{name}", program)
    _applets(archive, tree)
    binaries = [tree / name for name in PROGRAMS]
    binaries += _python(archive, tree, scratch)
    for name, source in sorted(libraries(tree, binaries)):
        archive.copy(source, f"{LIBRARIES}/{name}", 0o755)
    return archive


def overlay(tree: Path, scratch: Path) -> Archive:
    """The archive of Potash's own code: the SDK, the light commands, the agent and the init
    script."""
    for source, name in own_sources():
        target = scratch / DIST / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    compile_tree(tree, scratch)
    archive = Archive()
    _add_tree(archive, scratch)
    archive.file("init", init_script(), 0o755)
    archive.file("usr/bin/potash", COMMAND.encode(), 0o755)
    return archive


def own_sources() -> Iterator[tuple[Path, str]]:
    """The files of Potash that go into a guest: the path of each, and its name below DIST."""
    for package in LIGHT_PACKAGES:
        yield from _package_files(package, ("**/*.py",))
    yield from _package_files("potash", LIGHT_PATTERNS)


def _package_files(package: str, patterns: Sequence[str]) -> Iterator[tuple[Path, str]]:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise PotashError(f"the package {package} is not installed where its files can be read")
    root = Path(next(iter(found.submodule_search_locations)))
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            yield path, f"{package}/{path.relative_to(root)}"


def compile_tree(tree: Path, root: Path) -> None:
    """Compile every module below a folder, as the guest will find them at `/`."""
    command = program_command(tree, f"usr/bin/{PYTHON}")
    command += ["-S", "-s", "-m", "compileall", "-q"]
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/", str(root)]
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise PotashError(f"the guest's Python cannot compile its modules: {said[-1]}")


def _applets(archive: Archive, tree: Path) -> None:
    listing = subprocess.run(
        [str(tree / "usr/bin/busybox"), "--list"], capture_output=True, text=True, check=True
    )
    for name in listing.stdout.split():
        # Programs in usr/bin are found first, and busybox has a `mke2fs` with far fewer functions.
        if not {f"usr/bin/{name}", f"usr/sbin/{name}"} & archive.entries.keys():
            archive.symlink(f"usr/bin/{name}", "busybox")


def _python(archive: Archive, tree: Path, scratch: Path) -> list[Path]:
    """Add Python's modules, compiled. Returns the extension modules, whose libraries are needed
    too."""
    for source in sorted((tree / STDLIB).rglob("*")):
        name = source.relative_to(tree / STDLIB)
        if any(UNUSED.fullmatch(str(part)) for part in (name, *name.parents)):
            continue
        if source.is_file():
            (scratch / STDLIB / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, scratch / STDLIB / name)
    compile_tree(tree, scratch)
    _add_tree(archive, scratch)
    modules = (tree / STDLIB / "lib-dynload").glob("*.so")
    return [path for path in modules if not UNUSED.fullmatch(str(path.relative_to(tree / STDLIB)))]


def _add_tree(archive: Archive, root: Path) -> None:
    for parent, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(parent) / name
            # The scratch folder goes away before the archive is written.
            archive.file(str(path.relative_to(root)), path.read_bytes())


def libraries(tree: Path, binaries: Sequence[Path]) -> set[tuple[str, Path]]:
    """The shared libraries that some programs need: name and file, as the tree's loader says."""
    needed: set[tuple[str, Path]] = set()
    folders = [tree / folder for folder in LIBRARY_FOLDERS]
    for binary in binaries:
        listing = subprocess.run(
            [*loader_command(tree, binary), "--list", str(binary)],
            capture_output=True,
            text=True,
            check=False,
        )
        # Only names are read: paths may contain anything.
        for name in re.findall(r"^\s*(\S+) => ", listing.stdout, re.MULTILINE):
            if (name := Path(name).name) == Path(LOADER).name:
                continue
            path = next((path for path in folders if (path / name).exists()), None)
            if path is None:
                raise PotashError(f"the guest's {binary.name} lacks the library {name}")
            needed.add((name, path / name))
        if listing.returncode:
            raise PotashError(f"the guest's {binary.name} cannot run: {listing.stderr.strip()}")
    return needed

"""Guests with what `potash guest` leaves out: Linux's modules, and programs of Debian."""

from __future__ import annotations

import lzma
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from potash.sdk.progress import silent
from potash.vm import rootfs
from potash.vm.errors import PackagesUnavailable
from potash.vm.images import GuestImages, vmlinux, zstd
from potash.vm.packages import LIBRARIES, RELEASE, Archive, Closure
from potash.vm.rootfs import libraries

PACKAGES = Closure(
    "Linux's modules and tools for file systems and clusters",
    RELEASE,
    ("linux-image-cloud-amd64", "btrfs-progs", "util-linux-extra", "lvm2-lockd", "sanlock"),
    ("./usr/share/doc",),
)
SETUP = "cat /modules/order | while read module; do insmod /modules/$module || exit 1; done"


def unpacked(images: GuestImages, closure: Closure = PACKAGES) -> Path:
    """The folder of unpacked packages. The test is skipped if they cannot be downloaded."""
    try:
        with images.cache.locked(silent), Archive(images.cache, None, silent) as archive:
            return archive.tree(closure)
    except PackagesUnavailable as error:
        pytest.skip(str(error))


def kernel(images: GuestImages, packed: Path, folder: Path) -> Path:
    """A package's kernel, uncompressed, in `folder`."""
    with_zstd = next(images.cache.root.glob("trees/*/usr/bin/zstd")).parents[2]
    linux = folder / "vmlinux"
    linux.write_bytes(vmlinux(packed.read_bytes(), lambda data: zstd(with_zstd, data)))
    return linux


def with_packages(
    images: GuestImages, folder: Path, module: str, programs: Sequence[str]
) -> GuestImages:
    """The guest with the packages' kernel, a module of it (`SETUP` loads it), and programs."""
    tree = unpacked(images)
    (packed,) = tree.glob("boot/vmlinuz-*")
    linux = kernel(images, packed, folder)
    archive = rootfs.Archive()
    order = list(modules(tree, module))
    for name, content in order:
        archive.file(f"modules/{name}.ko", content)
    archive.file("modules/order", "".join(f"{name}.ko\n" for name, _ in order).encode())
    tools = [tree / program for program in programs]
    for tool in tools:
        archive.copy(tool, f"usr/bin/{tool.name}", 0o755)
    for name, library in sorted(libraries(tree, tools)):
        archive.copy(library, f"{LIBRARIES}/{name}", 0o755)
    initrd = folder / "initrd"
    shutil.copyfile(images.initrd, initrd)
    with initrd.open("ab") as stream:
        archive.write(stream)
    return replace(images, kernel=linux, initrd=initrd)


def modules(tree: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """A module after those that it needs, in the order in which they are loaded."""
    files = {
        path.name.split(".")[0].replace("-", "_"): path
        for path in tree.glob("usr/lib/modules/*/kernel/**/*.ko.xz")
    }
    loaded: set[str] = set()

    def load(one: str) -> Iterator[tuple[str, bytes]]:
        if one in loaded or one not in files:  # not a file: built in
            return
        loaded.add(one)
        content = lzma.decompress(files[one].read_bytes())
        said = re.findall(rb"\0(?:depends|softdep)=(?:pre: )?([^\0]*)", content)
        for needed in re.split(r"[, ]+", b" ".join(said).decode()):
            yield from load(needed.replace("-", "_"))
        yield one, content

    return load(name)

"""The files that a guest boots from, made when they are missing.

Each file's name is a key of everything that it was made from: packages' versions, the code that
builds it, Potash's modules in it. So a change of any of these makes a new file.
"""

import contextlib
import lzma
import platform
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress, silent
from potash.vm import packages, qemu, rootfs
from potash.vm.cache import Cache, files_key, folder, key
from potash.vm.qemu import Qemu

# How many of each kind are kept; the last one used is always among them.
KEPT = {"trees": 4, "kernels": 2, "bases": 2, "images": 3}

# Fields of a bzImage's header, which has the place of its compressed payload: Linux x86 boot
# protocol (Documentation/arch/x86/boot.rst).
SETUP_SECTS = 0x1F1
HEADER = 0x202
PAYLOAD = 0x248
SECTOR = 512
DEFAULT_SETUP_SECTS = 4
ELF_MAGIC = b"\x7fELF"

Decompress = Callable[[bytes], bytes]


class Emulator(NamedTuple):
    """QEMU without a guest, and the cache folder of what was measured with it on this machine."""

    qemu: Qemu
    cache: Cache


@dataclass(frozen=True)
class GuestImages:
    """The files that a guest is started from: an uncompressed kernel with a PVH entry, and its file
    system; `cache` has its snapshots."""

    qemu: Qemu
    kernel: Path
    initrd: Path
    cache: Cache

    @property
    def key(self) -> str:
        """The key of all of them: a state that was frozen with other images cannot be resumed with
        these."""
        return key(self.qemu.version, str(self.kernel), str(self.initrd))


def prepare(
    progress: Progress = silent, *, mirror: str | None = None, refresh: bool = False
) -> GuestImages:
    """Download and build whatever is missing, from the Debian archive at `mirror` instead of the
    one that apt is configured with; `refresh` has packages downloaded again. Raises
    PackagesUnavailable where something cannot be downloaded, and PotashError where this machine
    cannot run the guest, or it cannot be built."""
    with _archive(progress, mirror, refresh=refresh) as (cache, archive):
        found = _qemu(archive)
        tree = archive.tree(packages.GUEST)
        images = GuestImages(found, _kernel(cache, tree), _initrd(cache, tree, progress), cache)
        for kind, keep in KEPT.items():
            cache.prune(kind, keep)
    return images


def prepare_qemu(
    progress: Progress = silent, *, mirror: str | None = None, refresh: bool = False
) -> Emulator:
    """Download QEMU alone, for a custom system; takes and raises what `prepare` does."""
    with _archive(progress, mirror, refresh=refresh) as (cache, archive):
        return Emulator(_qemu(archive), cache)


@contextlib.contextmanager
def _archive(
    progress: Progress, mirror: str | None, *, refresh: bool
) -> Iterator[tuple[Cache, packages.Archive]]:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise PotashError("a guest needs a Linux host with an x86-64 processor")
    cache = Cache(folder())
    with cache.locked(progress), packages.Archive(cache, mirror, progress) as archive:
        if refresh:
            cache.prune("trees", 0)
        yield cache, archive


def _qemu(archive: packages.Archive) -> Qemu:
    return qemu.installed() or qemu.unpacked(archive.tree(packages.QEMU))


def _kernel(cache: Cache, tree: Path) -> Path:
    def build(place: Path) -> None:
        images = sorted((tree / "boot").glob("vmlinuz-*"))
        if not images:
            raise PotashError("the kernel package holds no kernel")
        place.write_bytes(vmlinux(images[-1].read_bytes(), lambda data: zstd(tree, data)))

    name = key(packages.versions(tree), _recipe(__file__))
    return cache.entry("kernels", f"{name}.vmlinux", build)


def _initrd(cache: Cache, tree: Path, progress: Progress) -> Path:
    recipe = _recipe(rootfs.__file__)
    base_key = key(packages.versions(tree), recipe)

    def build_base(place: Path) -> None:
        progress("building the guest's file system", None)
        with cache.scratch() as scratch, place.open("wb") as stream:
            rootfs.base(tree, scratch).write(stream)

    def build(place: Path) -> None:
        base = cache.entry("bases", f"{base_key}.cpio", build_base)
        progress("adding Potash's modules to the guest", None)
        shutil.copyfile(base, place)
        with cache.scratch() as scratch, place.open("ab") as stream:
            rootfs.overlay(tree, scratch).write(stream)

    own = [name for path, name in rootfs.own_sources()]
    contents = [path.read_bytes() for path, name in rootfs.own_sources()]
    image_key = key(base_key, own, contents, rootfs.init_script())
    return cache.entry("images", f"{image_key}.cpio", build)


def _recipe(*modules: str | None) -> str:
    """The key of the code that makes a file: after a change of it, the file is made again."""
    paths: Iterable[Path] = [Path(module) for module in modules if module is not None]
    return files_key(Path(__file__).parent, paths)


def zstd(tree: Path, data: bytes) -> bytes:
    """Decompress a Zstandard frame with the program in a guest's tree. Raises PotashError."""
    command = [*packages.program_command(tree, "usr/bin/zstd"), "-d", "-c"]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    # Other data follows the frame in the image, so only an empty output is an error.
    if not done.stdout:
        raise PotashError("the guest's kernel cannot be decompressed")
    return done.stdout


def payload(image: bytes) -> bytes:
    """The compressed kernel inside a bzImage. Raises PotashError where the file is no bzImage, or
    its payload lies outside it."""
    if len(image) < PAYLOAD + 8 or image[HEADER : HEADER + 4] != b"HdrS":
        raise PotashError("the kernel package's vmlinuz is not a Linux x86 boot image")
    sectors = image[SETUP_SECTS] or DEFAULT_SETUP_SECTS
    offset, length = struct.unpack_from("<II", image, PAYLOAD)
    start = (sectors + 1) * SECTOR + offset
    if not length or start + length > len(image):
        raise PotashError("the kernel package's vmlinuz is cut short")
    return image[start : start + length]


def vmlinux(image: bytes, zstd: Decompress) -> bytes:
    """The uncompressed ELF kernel of a bzImage, decompressed by `zstd`, as the standard library
    cannot. QEMU enters it through its PVH note, which spares an emulated processor the
    decompression. Raises PotashError where the image, or its compression, is not understood."""
    packed = payload(image)
    codecs: dict[bytes, Decompress] = {
        b"\x28\xb5\x2f\xfd": zstd,
        b"\xfd7zXZ\x00": lambda data: lzma.LZMADecompressor().decompress(data),
        b"\x1f\x8b": lambda data: zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data),
    }
    for magic, decompress in codecs.items():
        if packed.startswith(magic):
            kernel = decompress(packed)
            if not kernel.startswith(ELF_MAGIC):
                raise PotashError("the kernel package's vmlinuz does not hold an ELF kernel")
            return kernel
    raise PotashError(f"the kernel is compressed in an unknown way (magic {packed[:6].hex()})")

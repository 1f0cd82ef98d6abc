"""What the guest boots: made once, made anew when something in it changes, and what is in it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm import images as room
from potash.vm import packages, rootfs
from potash.vm.images import GuestImages
from potash.vm.rootfs import Archive


def entries(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, mode and bytes of every file of newc archives that follow one another."""
    at = 0
    while at < len(data):
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        start = (at + 110 + name_size + 3) // 4 * 4
        at = (start + size + 3) // 4 * 4
        yield name, mode, data[start : start + size]


@pytest.fixture(scope="module")
def files(images: GuestImages) -> dict[str, tuple[int, bytes]]:
    return {name: (mode, data) for name, mode, data in entries(images.initrd.read_bytes())}


def test_nothing_is_made_twice(images: GuestImages) -> None:
    before = images.initrd.stat().st_ino, images.kernel.stat().st_ino
    again = room.prepare()
    assert (again.initrd.stat().st_ino, again.kernel.stat().st_ino) == before
    assert again.key == images.key


def test_a_changed_module_makes_another_image_of_the_same_base(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = tmp_path / "extra.py"
    module.write_text("ANSWER = 42\n")
    own = [*rootfs.own_sources(), (module, "potash/extra.py")]
    monkeypatch.setattr(rootfs, "own_sources", lambda: iter(own))
    bases = sorted(path.name for path in (images.cache.root / "bases").iterdir())
    changed = room.prepare()
    assert changed.initrd != images.initrd and changed.kernel == images.kernel
    assert changed.key != images.key
    assert sorted(path.name for path in (images.cache.root / "bases").iterdir()) == bases
    found = {name: data for name, _, data in entries(changed.initrd.read_bytes())}
    assert found[f"{rootfs.DIST}/potash/extra.py"] == b"ANSWER = 42\n"
    changed.initrd.unlink()


def test_the_kernel_is_an_elf_file_with_a_pvh_note(images: GuestImages) -> None:
    kernel = images.kernel.read_bytes()
    assert kernel[:5] == b"\x7fELF\x02"
    offset, count = struct.unpack_from("<Q", kernel, 32)[0], struct.unpack_from("<H", kernel, 56)[0]
    headers = [struct.unpack_from("<IIQQQQ", kernel, offset + 56 * n) for n in range(count)]
    notes = b"".join(kernel[h[2] : h[2] + h[5]] for h in headers if h[0] == 4)
    # XEN_ELFNOTE_PHYS32_ENTRY is 18.
    assert struct.pack("<I4s", 18, b"Xen\0") in notes


def test_ours_is_what_is_light(files: dict[str, tuple[int, bytes]]) -> None:
    for name in ("potash/sdk/__init__", "potash/cli/drive/run", "potash/vm/agent", "click/core"):
        assert f"{rootfs.DIST}/{name}.py" in files
        folder, _, stem = name.rpartition("/")
        assert f"{rootfs.DIST}/{folder}/__pycache__/{stem}.cpython-313.pyc" in files
    for name in (
        "potash_device",
        "potash_firmware",
        "numpy",
        "potash/cli/device",
        "potash/vm/qemu",
    ):
        assert not any(path.startswith(f"{rootfs.DIST}/{name}") for path in files)


def test_bytecode_names_the_guest_s_own_paths(files: dict[str, tuple[int, bytes]]) -> None:
    _, bytecode = files[f"{rootfs.DIST}/potash/vm/__pycache__/agent.cpython-313.pyc"]
    assert f"/{rootfs.DIST}/potash/vm/agent.py".encode() in bytecode
    assert b"unfinished-" not in bytecode


def test_nothing_runs_with_another_s_rights_or_can_be_written_by_others(
    files: dict[str, tuple[int, bytes]],
) -> None:
    regular = {name: mode for name, (mode, _) in files.items() if mode >> 12 == 0o10}
    assert [name for name, mode in regular.items() if mode & 0o7022] == []
    assert regular["init"] & 0o111 and regular["usr/bin/potash"] & 0o111


def test_programs_and_their_libraries_are_found_at_any_path(
    images: GuestImages, tmp_path: Path
) -> None:
    tree = images.cache.root / "trees" / packages.GUEST.key
    odd = tmp_path / "a \"b': c,d;e"
    odd.symlink_to(tree)
    names = ("usr/bin/fio", f"{rootfs.STDLIB}/lib-dynload/_lzma.cpython-313-x86_64-linux-gnu.so")
    found = rootfs.libraries(odd, [odd / name for name in names])
    assert {"libc.so.6", "liblzma.so.5", "libceph-common.so.2"} <= {name for name, _ in found}
    assert found == {
        (name, odd / path.relative_to(tree))
        for name, path in rootfs.libraries(tree, [tree / name for name in names])
    }
    python = [*packages.program_command(odd, f"usr/bin/{rootfs.PYTHON}"), "-S", "-s"]
    script = "import lzma; print(lzma.__file__)"
    done = subprocess.run([*python, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"{odd}/{rootfs.STDLIB}/lzma.py"


@pytest.mark.slow
def test_the_first_guest_of_a_home_with_any_path(images: GuestImages, tmp_path: Path) -> None:
    """From the download on; the second start resumes the snapshot."""
    home = tmp_path / "a \"b': c,d;e"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home)}
    environment.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-m", "potash.cli.main", "guest", "--size", "64M", "--", "nvme"]
    for _ in range(2):
        done = subprocess.run(
            [*command, "list"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert (done.returncode, "POTASH0001" in done.stdout) == (0, True), done.stderr
    assert "booting" not in done.stderr


def test_busybox_stands_for_no_program_that_is_there(tmp_path: Path) -> None:
    busybox = tmp_path / "usr/bin/busybox"
    busybox.parent.mkdir(parents=True)
    busybox.write_text("#!/bin/sh\necho busybox ls mke2fs mkfs.ext2\n")
    busybox.chmod(0o755)
    archive = Archive()
    for name in ("usr/bin/busybox", "usr/sbin/mke2fs", "usr/sbin/mkfs.ext2"):
        archive.file(name, b"", 0o755)
    rootfs._applets(archive, tmp_path)
    found = {name for name in archive.entries if name.startswith(("usr/bin/", "usr/sbin/"))}
    assert found == {"usr/bin/busybox", "usr/bin/ls", "usr/sbin/mke2fs", "usr/sbin/mkfs.ext2"}

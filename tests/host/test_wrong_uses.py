"""Wrong uses of every command: each is one sentence on standard error that says what to do, with
exit code 1, or 2 for a wrong command line, and leaves nothing behind.

`test_first_steps.py` has what needs a running drive, a full disk or an interrupt.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from potash.cli.app import run_app
from potash.vm.qemu import installed
from support import prepared
from support.models import ISOLATED, in_this_process
from support.processes import children

ADD = Path(__file__).parents[2] / "examples" / "add"
PROGRAM = str(ADD / "program.o")
ELF32 = b"\x7fELF\x01\x01\x01" + bytes(57)

FILES = {
    "binary": b"\xff\xfe\x00\x01" * 64,
    "text": b"hello\n",
    "elf32": ELF32,
    "flash.toml": b'[[fault]]\non = "flash program"\n',
}
"""What is in the current folder, with an empty folder `folder`."""

Change = Callable[[pytest.MonkeyPatch], None]


def nothing(_: pytest.MonkeyPatch) -> None:
    """An ordinary machine."""


def refused(number: int) -> Change:
    """A machine whose devices cannot be opened, for that reason."""

    def change(patch: pytest.MonkeyPatch) -> None:
        def refuses(path: object, *_: object) -> int:
            raise OSError(number, os.strerror(number), path)

        patch.setattr("potash.sdk.ioctl.os.open", refuses)

    return change


def cache_in_a_file(patch: pytest.MonkeyPatch) -> None:
    """A machine whose cache folder cannot be made."""
    patch.setenv("XDG_CACHE_HOME", os.path.abspath("text"))


def no_compiler(patch: pytest.MonkeyPatch) -> None:
    """A machine with neither clang nor the extra that brings a compiler."""
    patch.setattr("potash.programs.compiler._clangs", list)
    patch.setattr("potash.programs.compiler.importlib.util.find_spec", lambda name: None)


def no_room_in_memory(patch: pytest.MonkeyPatch) -> None:
    """A machine whose shared memory is used up."""

    def refuses(name: str, flags: int = 0) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr("os.memfd_create", refuses)


def home_in_a_file(patch: pytest.MonkeyPatch) -> None:
    """A user whose home folder cannot be written."""
    patch.delenv("XDG_CACHE_HOME", raising=False)
    patch.setenv("HOME", os.path.abspath("text"))


class Wrong(NamedTuple):
    """A command line, its exit code, a piece of what is said, and how the machine is changed."""

    words: str
    code: int
    said: str
    change: Change = nothing


NO_DRIVE = "no device listens at none; start one with: potash serve --socket none"
NO_FOLDER = "there is no folder none; make it, or choose another place"
IO = f"{PROGRAM} text"

WRONG = [
    # Unknown names.
    Wrong("srve", 2, "No such command 'srve'; did you mean serve"),
    Wrong("serve --sokcet s", 2, "No such option '--sokcet'; did you mean --socket?"),
    Wrong("bpf nonsense", 2, "No such command 'nonsense' (see potash bpf --help)"),
    Wrong("cp nonsense", 2, "No such command 'nonsense' (see potash cp --help)"),
    Wrong("drive nonsense", 2, "(see potash drive --help)"),
    Wrong("demo nonsense", 2, "'nonsense' is not one of 'add'"),
    Wrong("serve --socket s --profile none", 2, "'none' is not one of 'alkali', 'potash'"),
    Wrong("serve --socket s --fault nonsense", 2, "'nonsense' is not a fault: it begins with"),
    Wrong("serve --socket s --faults flash.toml", 1, "'flash program' is for --time modelled"),
    Wrong("serve --socket s --log none=debug", 2, "there is no component 'none'; there are"),
    Wrong("model make none -o x", 1, "there is no network none; potash model list names them"),
    Wrong("sweep none.toml", 1, "'none.toml' is not a network; there are"),
    Wrong("drive info none", 1, "none is neither a file (No such file or directory) nor one of"),
    # What is missing, or makes no sense together.
    Wrong("serve", 2, "give --socket PATH to listen at (see potash serve --help)"),
    Wrong("run", 2, "Missing argument 'DEVICE' (see potash run --help)"),
    Wrong("model make", 2, "Missing argument 'NAME'"),
    Wrong("query vfio-user:none", 2, "Missing argument 'EXPRESSION'"),
    Wrong("serve --socket s --drive tlc", 2, "--drive is for --time modelled"),
    Wrong("serve --socket s --monitor none", 2, "--monitor is for --time modelled"),
    Wrong(
        "serve --socket s --socket t --socket u --time modelled --monitor m --monitor n",
        2,
        "give one --monitor for each --socket",
    ),
    Wrong("serve --socket s --read-only", 2, "--read-only needs --media"),
    # Negative numbers and wrong units.
    Wrong("serve --socket s --size 16Q", 2, "'16Q' is not a size; write 512M or 1G"),
    Wrong("serve --socket s --size -1", 2, "'-1' is not a size; write 512M or 1G"),
    Wrong("serve --socket s --size 1", 2, "'1' is too small; the least is 4K"),
    Wrong("serve --socket s --metrics 99999", 2, "99999 is not in the range 0<=x<=65535"),
    Wrong("serve --socket s --namespace 16M:777", 2, "blocks have 512 or 4096 bytes"),
    Wrong("serve --socket s --zrwa 64K", 2, "--zrwa is for --zoned-namespace"),
    Wrong("serve --socket s --zoned-namespace 16M --zrwa 64K:3K", 2, "multiple of 4096 bytes"),
    Wrong("serve --socket s --zoned-namespace 16M:1M --zrwa 4M", 2, "the capacity of a zone"),
    Wrong("serve --socket s --zoned-namespace 16M,open=1", 2, "is not KEY=VALUE with a key of"),
    Wrong("serve --socket s --zoned-namespace 16M,max_open=33", 2, "at most max_active"),
    Wrong("serve --socket s --zoned-namespace 16M,max_open=no", 2, "max_open=no: it must be a"),
    Wrong("serve --socket s --accelerator 64G", 2, "a buffer has at most 1 GiB"),
    Wrong("serve --socket s --log rpu", 2, "'rpu' is not COMPONENT=LEVEL"),
    Wrong(
        f"run vfio-user:none {IO} out --timeout -1", 2, "'-1' is not a number of seconds above 0"
    ),
    Wrong("acc input vfio-user:none x", 2, "'x' is not PAGE:COUNT, two numbers"),
    Wrong("acc input vfio-user:none -n 0 0:1", 2, "0 is not in the range 1<=x<=4294967294"),
    Wrong("guest --memory 1M", 2, "'1M' must be 320 MiB to"),
    Wrong("guest --memory -1", 2, "'-1' must be a size"),
    Wrong("guest --cpus 0", 2, "0 is not in the range 1<=x<=64"),
    Wrong("guest --collect x", 2, "'x' is not GUEST:HOST with an absolute path in the guest"),
    # No such device, or not for this user.
    Wrong(f"run /dev/nvme77n1 {IO} out", 1, "give one such as /dev/nvme0n1, or vfio-user:SOCKET"),
    Wrong(f"run /dev/null {IO} out", 1, "this is not an NVMe device; give one such as"),
    Wrong(f"run vfio-user:none {IO} out", 1, NO_DRIVE),
    Wrong(
        "acc identify /dev/nvme0", 1, "Permission denied; run this as root", refused(errno.EACCES)
    ),
    Wrong("slm list vfio-user:none", 1, NO_DRIVE),
    Wrong("top none", 1, NO_DRIVE),
    Wrong("guest --socket none", 1, NO_DRIVE),
    # Places where nothing can be.
    Wrong("serve --socket none/s", 1, "/none; make it, or choose another place"),
    Wrong("serve --socket folder", 1, "the path is not a socket"),
    Wrong("serve --socket s --media none/new", 1, NO_FOLDER),
    Wrong("serve --socket s --media /dev/null", 1, "it is not a regular file"),
    Wrong("serve --socket s --trace none/t.json", 1, NO_FOLDER),
    Wrong("serve --socket s --trace none/t.jsonl", 1, NO_FOLDER),
    Wrong(f"run vfio-user:none {IO} none/out", 1, NO_FOLDER),
    Wrong(f"bpf exec {PROGRAM} -o none/out", 1, NO_FOLDER),
    Wrong(f"bpf exec {PROGRAM} -o folder", 2, "File 'folder' is a directory"),
    # Files that are missing, folders, or of another kind.
    Wrong("run vfio-user:none none.o text out", 2, "File 'none.o' does not exist"),
    Wrong("run vfio-user:none folder text out", 2, "File 'folder' is a directory"),
    Wrong("bpf disasm elf32", 1, "elf32: this is not a 64-bit little endian ELF file"),
    Wrong("bpf disasm text", 1, "text: this is not a 64-bit little endian ELF file"),
    Wrong("serve --socket s --config binary", 1, "binary is not TOML: it is not UTF-8"),
    Wrong("serve --socket s --config text", 1, "text: it is not TOML: Expected '='"),
    Wrong("serve --socket s --config folder", 2, "File 'folder' is a directory"),
    Wrong("serve --socket s --faults binary", 1, "binary is not TOML: it is not UTF-8"),
    Wrong("drive info binary", 1, "binary is not TOML: it is not UTF-8"),
    Wrong("model info text", 1, "text: this is not a TensorFlow Lite model"),
    Wrong("build folder", 2, "File 'folder' is a directory"),
    Wrong("guest -- true", 1, "set XDG_CACHE_HOME to a folder of your own", cache_in_a_file),
    Wrong("guest -- id", 1, "set XDG_CACHE_HOME to a folder of your own", home_in_a_file),
    Wrong("build text", 1, "install clang, or the Python package ziglang", no_compiler),
    Wrong("demo add --embedded", 1, "shared memory of", no_room_in_memory),
    Wrong(
        f"model quantize {ADD.parent / 'digits' / 'model.tflite'} -o out --calibration text",
        1,
        "it may be quantised already",
    ),
    Wrong("guest --share none", 2, "Path 'none' does not exist"),
]


@pytest.mark.parametrize(
    "case", WRONG, ids=[case.words.replace(str(ADD.parent), "examples") for case in WRONG]
)
def test_a_wrong_use_is_one_sentence_and_leaves_nothing(
    case: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, temporary = tmp_path / "here", tmp_path / "t"  # short, as sockets are in it
    for folder in (here, here / "folder", temporary):
        folder.mkdir()
    for name, content in FILES.items():
        (here / name).write_bytes(content)
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(ISOLATED, in_this_process)
    prepared.server()  # which stays
    processes = children(os.getpid())
    with monkeypatch.context() as patch:
        case.change(patch)
        code = run_app(case.words.split())
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("potash: ")
    assert case.said in line
    assert code == case.code
    assert {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()} == FILES
    assert sorted(os.listdir()) == sorted([*FILES, "folder"])
    assert not [*(here / "folder").iterdir(), *temporary.iterdir()]
    assert set(children(os.getpid())) <= set(processes)


def test_an_old_qemu_without_a_network_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens at port 9 of this machine. What goes on is reported in lines before."""
    old = tmp_path / "qemu-system-x86_64"
    old.write_text("#!/bin/sh\necho QEMU emulator version 7.2.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert installed() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert run_app(["guest", "--debian-mirror", "http://127.0.0.1:9/debian", "--", "true"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("potash: ") and "Failed to fetch" in said
    assert "check the network, or name another archive with --debian-mirror" in said


def test_there_are_at_least_sixty() -> None:
    assert len({case.words for case in WRONG}) == len(WRONG) >= 60

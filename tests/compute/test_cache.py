"""Compiled programs on disk: who may have put them there, and what is believed."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import llvmlite
import pytest

from potash_device import cache, object_code
from potash_device.cache import Store
from potash_device.vta.fast import compiling
from potash_firmware.bpf.engine import Engine, usable
from potash_firmware.bpf.native import compiler, runtime
from potash_firmware.bpf.native import engine as native
from potash_firmware.tflite import partition_cache
from potash_firmware.vta_runtime.schedules import search
from support.bpf import arena, exit_, mov, run_on
from support.bpf_native import own_cache

__all__ = ["own_cache"]

STORE = Store("bpf", [])
NAME = STORE.name(b"a program")
CODE = mov(0, 7) + exit_


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The programs that were compiled, in order."""
    seen: list[bytes] = []
    compile_program = compiler.compile_program

    def spy(code: bytes, entry: int, by_kind: bool) -> bytes:
        seen.append(code)
        return compile_program(code, entry, by_kind)

    monkeypatch.setattr(compiler, "compile_program", spy)
    return seen


def run() -> int:
    """As in a new process."""
    native.load.cache_clear()
    return run_on(Engine.NATIVE, CODE, 0, arena(), {}, (), 10).value


def test_what_was_stored_is_loaded(own_cache: Path) -> None:
    STORE.keep(NAME, b"contents")
    assert STORE.load(NAME) == b"contents"
    assert STORE.load(STORE.name(b"another")) is None


def test_folder_and_files_are_this_users_alone(own_cache: Path) -> None:
    STORE.keep(NAME, b"contents")
    modes = {path.stat().st_mode & 0o777 for path in (own_cache, *own_cache.iterdir())}
    assert modes == {0o700, 0o600}


def test_a_program_is_compiled_once(own_cache: Path, compiled: list[bytes]) -> None:
    assert [run(), run()] == [7, 7]
    assert len(compiled) == 1
    assert len(list(own_cache.iterdir())) == 1


def damage(file: Path) -> None:
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def others_may_write(file: Path) -> None:
    file.chmod(0o660)


def a_link(file: Path) -> None:
    file.rename(file.parent / "elsewhere")
    file.symlink_to(file.parent / "elsewhere")


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_public_folder(file: Path) -> None:
    file.parent.chmod(0o755)


def from_another_program(file: Path) -> None:
    STORE.keep(NAME, b"not even an object file")
    (file.parent / f"{NAME}.o").rename(file)


@pytest.mark.parametrize(
    "harm",
    [damage, cut, empty, others_may_write, a_link, a_folder, a_public_folder, from_another_program],
)
def test_what_cannot_be_believed_is_compiled_again(
    harm: object, own_cache: Path, compiled: list[bytes]
) -> None:
    assert callable(harm)
    run()
    [file] = own_cache.iterdir()
    harm(file)
    assert run() == 7
    assert len(compiled) == 2


def test_a_file_of_another_user_is_not_believed(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    STORE.keep(NAME, b"contents")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert STORE.load(NAME) is None


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(cache, "folder", lambda of: tmp_path / "file" / "cache")
    assert run() == 7


def test_only_the_ones_used_last_are_kept(own_cache: Path) -> None:
    store = Store("bpf", [], limit=3)
    names = [store.name(bytes([number])) for number in range(5)]
    for number, name in enumerate(names):
        store.keep(name, b"contents")
        os.utime(own_cache / f"{name}.o", (number, number))
    assert {path.stem for path in own_cache.iterdir()} == set(names[2:])


def test_limits_are_exceeded_by_a_sixteenth_at_most(own_cache: Path) -> None:
    store = Store("bpf", [], limit=32, room=32 * 4128)
    for size in (0, 4096):
        for number in range(40):
            store.keep(store.name(bytes([number, size % 255])), bytes(size))
        assert len(list(own_cache.iterdir())) <= 32 + 2


def test_no_more_bytes_are_kept_than_there_is_room_for(own_cache: Path) -> None:
    digest = 32
    store = Store("bpf", [], limit=9, room=3 * (digest + 100))
    names = [store.name(bytes([number])) for number in range(6)]
    for number, name in enumerate(names):
        store.keep(name, bytes(200 if number == 4 else 100))
        os.utime(own_cache / f"{name}.o", (number, number))
    assert {path.stem for path in own_cache.iterdir()} == {names[4], names[5]}


def test_another_llvmlite_is_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides about LLVM's passes, whatever LLVM's own version is."""
    before = compiler.versions()
    monkeypatch.setattr(llvmlite, "__version__", "another")
    assert compiler.versions() != before


@pytest.mark.parametrize(
    "part", ["llvm_version_info", "get_host_cpu_name", "get_host_cpu_features"]
)
def test_another_processor_or_llvm_is_another_name(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiler.versions()
    different = {
        "llvm_version_info": (1, 2, 3),
        "get_host_cpu_name": lambda: "another",
        "get_host_cpu_features": lambda: type("Features", (), {"flatten": lambda self: "+x"})(),
    }
    monkeypatch.setattr(compiler.llvm(), part, different[part])
    assert Store("bpf", [], compiler.versions).name(CODE) != Store("bpf", [], lambda: before).name(
        CODE
    )


def test_other_sources_are_another_name(tmp_path: Path) -> None:
    """Also where only a file's name or folder differs."""
    names = set()
    for number, (path, text) in enumerate(
        [("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("c/b.py", "2")]
    ):
        file = tmp_path / str(number) / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        names.add(Store("bpf", [tmp_path / str(number)]).name(CODE))
    assert len(names) == 4
    assert len({STORE.name(b"a", b"bc"), STORE.name(b"ab", b"c"), STORE.name(b"abc")}) == 3


@pytest.mark.parametrize(
    ("store", "imported"),
    [
        (compiler.OBJECTS, "potash_firmware.bpf.native.engine"),
        (search.TILINGS, "potash_firmware.vta_runtime.schedules.search"),
        (partition_cache.MODELS, "potash_firmware.tflite.partition"),
        (compiling.STORE, "potash_device.vta.timing.clock"),
    ],
)
def test_all_that_is_imported_to_make_a_thing_is_in_its_name(store: Store, imported: str) -> None:
    """But for what cannot change it: definitions of formats, tracing, the store itself, and the list
    of what extensions add: the sources of operators are in the name themselves."""
    code = f"""if True:
        import sys, {imported}
        ours = ("potash_device.", "potash_firmware.")
        others = ("potash_device.trace", "potash_device.cache", "potash_firmware.extension")
        for name, module in sys.modules.items():
            if name.startswith(ours) and not name.startswith(others):
                print(module.__file__)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    files = [Path(file) for file in done.stdout.split()]
    assert len(files) > 10
    assert [file for file in files if not {file, *file.parents} & set(store.sources)] == []


def test_another_entry_is_another_program(own_cache: Path, compiled: list[bytes]) -> None:
    code = mov(0, 1) + exit_ + mov(0, 2) + exit_
    values = [run_on(Engine.NATIVE, code, entry, arena(), {}, (), 10).value for entry in (0, 2)]
    assert values == [1, 2]
    assert len(compiled) == 2


def test_the_folder_follows_the_standard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder("bpf") == tmp_path / "potash" / "bpf"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.folder("bpf") == Path.home() / ".cache" / "potash" / "bpf"


def test_without_llvm_programs_run_in_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setattr(runtime, "load", runtime.load.__wrapped__)
    object_code.llvm.cache_clear()
    with caplog.at_level(logging.WARNING):
        chosen = usable(Engine.NATIVE)
    object_code.llvm.cache_clear()
    assert chosen is Engine.INTERPRETER
    assert "llvmlite cannot be used" in caplog.text

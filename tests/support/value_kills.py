"""Stores of values whose process is killed before each of its system calls.

The tests call these functions in a new process (`support.new_process`).
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

from potash_device.media.drive import Drive
from potash_device.media.values import ValueStore
from support.key_value import KV, SHAPES, store
from support.memory import powered
from support.nvme_host import Host
from support.system_call_kills import killed_before

SIZE = 1 << 20
SECRET = b"a value that nobody is to find again"
PROGRAMS = "flash"
"""A large file of the drive, which has no values."""

CHANGES: tuple[tuple[bytes, bytes | None], ...] = (
    (b"new", b"n" * 40),
    (b"2", b"longer than before" * 1000),
    (b"1", None),
    (b"3", b""),
    (b"2", b"short"),
    (b"1", b"again" * 2000),
    (b"new", None),
)
"""Keys and the values that they get; None deletes one."""


def change(folder: str, stride: int) -> None:
    """Each acknowledged change is there, and the one under way is or is not."""
    origin, copy = Path(folder, "origin"), Path(folder, "copy")
    origin.mkdir()
    before = ValueStore(origin / "values", SIZE)
    before.erase()
    state = {b"%d" % number: bytes([number]) * 1500 * number for number in range(5)}
    for key, value in state.items():
        before.store(key, value, must_exist=False, must_not_exist=False)
    states = [state]
    for key, new in CHANGES:
        state = {other: value for other, value in state.items() if other != key}
        states.append(state if new is None else {**state, key: new})
        state = states[-1]
    acknowledged = mmap.mmap(-1, mmap.PAGESIZE)

    def body(begin: Callable[[], None]) -> None:
        begin()
        changed = ValueStore(copy / "values", SIZE)
        changed.open()  # after the end of the process that has left a log
        assert changed._connection is not None
        changed._connection.execute("PRAGMA wal_autocheckpoint = 4")
        for done, (key, value) in enumerate(CHANGES, 1):
            if value is None:
                changed.delete(key)
            else:
                changed.store(key, value, must_exist=False, must_not_exist=False)
            acknowledged[0] = done
            if done % 3 == 0:
                changed.flush()
        changed.close()
        acknowledged[1] = 1

    found = set()
    for number in count(1, stride):
        shutil.copytree(origin, copy)
        acknowledged[:2] = bytes(2)
        killed = killed_before(number, body)
        after = ValueStore(copy / "values", SIZE)
        after.open()
        pairs, done = dict(after.pairs()), acknowledged[0]
        assert pairs in states[done : done + 2], (number, done)
        assert after.used == sum(len(key) + len(value) for key, value in pairs.items())
        assert after._connection is not None
        checked = after._connection.execute("PRAGMA integrity_check").fetchall()
        assert checked == [("ok",)], number
        after.close()
        shutil.rmtree(copy)
        found.add(states.index(pairs, done))
        if not killed:
            break
    before.close()
    assert acknowledged[1] and done == len(CHANGES)


def format(folder: str, stride: int) -> None:
    def command(host: Host) -> None:
        assert host.command(host.admin, 0x80, nsid=KV).status == 0

    _erase(folder, command, stride, left={KV})


def delete(folder: str, stride: int) -> None:
    def command(host: Host) -> None:
        assert host.command(host.admin, 0x0D, nsid=KV, cdws=(1,)).status == 0

    _erase(folder, command, stride, left=set())


def sanitize(folder: str, stride: int) -> None:
    def command(host: Host) -> None:
        assert host.command(host.admin, 0x84, cdws=(2,)).status == 0
        while host.goes_on():
            host.executor.run_all()
            host.service()

    _erase(folder, command, stride, left={KV})


def finish(folder: str, stride: int) -> None:
    """Open a drive that was being formatted when its power went."""
    _erase(folder, None, stride, left={KV})


def _erase(
    folder: str, command: Callable[[Host], None] | None, stride: int, *, left: set[int]
) -> None:
    """All values are there, or no byte of any is once the drive has been opened again. Without a
    command, the namespace is being formatted."""
    origin, filled, copy = (Path(folder, name) for name in ("origin", "filled", "copy"))
    values = {b"%d" % key: SECRET * 1000 * key for key in range(4)}
    origin.mkdir()
    with powered(origin, *SHAPES) as host:
        for key, value in values.items():
            assert store(host, key, value) == 0
        if command is None:
            drive = host.board.storage.drive
            drive.reshape(KV, drive.shapes[KV]._replace(erase=True))
        shutil.copytree(origin, filled, ignore=shutil.ignore_patterns(PROGRAMS))  # with the log
    ended = mmap.mmap(-1, mmap.PAGESIZE)

    def body(begin: Callable[[], None]) -> None:
        if command is None:
            begin()
        with powered(copy) as host:
            if command is not None:
                begin()
                command(host)
            ended[0] = 1

    found = set()
    for number in count(1, stride):
        shutil.copytree(filled, copy)
        ended[0] = 0
        killed = killed_before(number, body)
        if ended[0]:
            assert not _residue(copy)
        with Drive.open(copy) as drive:
            pairs = dict(drive.values[KV].pairs()) if KV in drive.values else {}
            if not pairs:
                assert not _residue(copy), number
                assert set(drive.values) == left
            else:
                assert pairs == values and not ended[0]
        found.add(bool(pairs))
        shutil.rmtree(copy)
        if not killed:
            break
    assert found == ({False} if command is None else {True, False})


def _residue(folder: Path) -> list[str]:
    """The files that contain the secret."""
    every = (path for path in folder.iterdir() if path.name != PROGRAMS)
    return [path.name for path in every if SECRET in path.read_bytes()]

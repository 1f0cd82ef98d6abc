"""The store of a key value namespace: what is left after a loss of power, and failing storage."""

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from potash_device.media.errors import MediaError
from potash_device.media.values import Stored, ValueStore

LOG = "values-wal"


def opened(path: Path | None, size: int = 1 << 20) -> ValueStore:
    """A new store."""
    store = ValueStore(path, size)
    store.erase()
    return store


def put(store: ValueStore, key: bytes, value: bytes) -> Stored:
    return store.store(key, value, must_exist=False, must_not_exist=False)


def test_a_log_that_ends_anywhere_has_all_that_was_flushed(tmp_path: Path) -> None:
    """As after a loss of power, which keeps some of what was written behind a flush."""
    path, copy = tmp_path / "values", tmp_path / "copy"
    store = opened(path)
    states: list[dict[bytes, bytes]] = [{}]
    flushed, least = 0, 0
    for number in range(24):
        key, value = b"%d" % (number % 5), bytes([number]) * (900 * (number % 4))
        state = dict(states[-1])
        if number % 7 == 6:
            assert store.delete(key) == (state.pop(key, None) is not None)
        else:
            assert put(store, key, value) is Stored.DONE
            state[key] = value
        states.append(state)
        if number == 15:
            store.flush()
            flushed, least = len(states) - 1, (tmp_path / LOG).stat().st_size
    end = (tmp_path / LOG).stat().st_size
    assert 0 < least < end
    found = set()
    for cut in [*range(least, end, 997), end]:
        copy.mkdir()
        for name in ("values", LOG):
            shutil.copy(tmp_path / name, copy / name)
        os.truncate(copy / LOG, cut)
        again = ValueStore(copy / "values", 1 << 20)
        again.open()
        state = dict(again.pairs())
        assert state in states[flushed:]
        assert again.used == sum(len(key) + len(value) for key, value in state.items())
        found.add(states.index(state, flushed))
        again.close()
        shutil.rmtree(copy)
    assert found == set(range(flushed, len(states)))
    store.close()


def test_a_full_disk_refuses_a_value_and_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "values")
    assert put(store, b"k", b"value") is Stored.DONE
    assert store._connection is not None
    store._connection.execute("PRAGMA max_page_count = 5")
    with pytest.raises(MediaError) as caught:
        put(store, b"k", bytes(100_000))
    assert caught.value.errno == errno.ENOSPC
    assert (store.retrieve(b"k", 9), store.used) == ((b"value", 5), 6)
    store._connection.execute("PRAGMA max_page_count = 1000")
    assert put(store, b"k", bytes(100_000)) is Stored.DONE
    store.close()


def test_a_damaged_file_is_an_error_and_no_value(tmp_path: Path) -> None:
    path = tmp_path / "values"
    store = opened(path)
    for number in range(100):
        put(store, b"%d" % number, bytes([number]) * 2000)
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 * 4 :] = b"\xa5" * (len(content) - 4096 * 4)
    path.write_bytes(content)
    store = ValueStore(path, 1 << 20)
    store.open()
    with pytest.raises(MediaError) as caught:
        for number in range(100):
            assert store.retrieve(b"%d" % number, 2000) == (bytes([number]) * 2000, 2000)
    assert caught.value.errno == errno.EIO
    store.close()


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TRIGGER t AFTER INSERT ON pairs BEGIN DELETE FROM pairs; END",
        "CREATE VIEW v AS SELECT * FROM pairs",
        "DROP TABLE pairs; CREATE TABLE pairs (key TEXT PRIMARY KEY, value BLOB)",
        "UPDATE used SET bytes = -1",
        "UPDATE used SET bytes = 2000000",
        "UPDATE used SET bytes = 'many'",
        "INSERT INTO used VALUES (0)",
        "DELETE FROM used",
    ],
)
def test_a_database_of_another_origin_is_refused(tmp_path: Path, script: str) -> None:
    path = tmp_path / "values"
    opened(path).close()
    with closing(sqlite3.connect(path)) as changed:
        changed.executescript(script)
    with pytest.raises(MediaError, match="cannot use the values in"):
        ValueStore(path, 1 << 20).open()


def test_values_that_are_being_erased_are_all_there_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever step the process ends."""
    path = tmp_path / "values"
    for step in ("unlink", "touch", "rename", "open"):
        store = opened(path)
        put(store, b"k", b"value")
        assert (tmp_path / LOG).exists()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            where = ValueStore if step == "open" else Path
            patched.setattr(where, step, Mock(side_effect=KeyboardInterrupt))
            store.erase()
        again = ValueStore(path, 1 << 20)
        again.open()
        assert again.pairs() == ([] if step == "open" else [(b"k", b"value")])
        again.close()


def test_nothing_is_written_after_a_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "values")
    put(store, b"k", b"value")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patched, pytest.raises(MediaError, match="flushing"):
        patched.setattr(os, "fsync", fails)
        store.flush()
    assert not store.writable
    with pytest.raises(MediaError, match="flushing"):
        put(store, b"k", b"other")
    with pytest.raises(MediaError, match="flushing"):
        store.flush()
    assert store.retrieve(b"k", 9) == (b"value", 5)
    store.close()


def test_a_store_that_another_process_has_is_closed(tmp_path: Path) -> None:
    store, memory = opened(tmp_path / "values"), opened(None)
    for each in (store, memory):
        put(each, b"k", b"value")
        each.unlock()
    assert memory.exists(b"k")
    with pytest.raises(MediaError, match="not open"):
        store.exists(b"k")
    assert not (tmp_path / LOG).exists()
    for each in (store, memory):
        each.lock()
        assert each.retrieve(b"k", 2) == (b"va", 5)
        each.close()

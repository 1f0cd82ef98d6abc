"""Keys and values of a key value namespace, in SQLite: one file with a write-ahead log, or memory.

A value is stored or deleted in one transaction, which is in the log when it returns, and durable
once the log is flushed. Deleted values may remain in free pages of the file and in the log until
`erase` replaces both.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from potash_device.media.durable import keep_folder
from potash_device.media.errors import MediaError

if TYPE_CHECKING:  # only a drive with such a namespace needs it
    from sqlite3 import Connection

_MEMORY = ":memory:"
_LOG = "-wal"
_ASIDE = (_LOG, "-shm", "-journal")
"""Files beside a database, by what follows its path."""
_NEW = ".new"
"""Follows the path of a database that is to take its place."""

_CHECKPOINT = 4096
"""Pages of the log after which its contents are copied to the file."""

_TABLES = {
    "pairs": "CREATE TABLE pairs (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "used": "CREATE TABLE used (bytes INTEGER NOT NULL)",
}
_SET_UP = f"""
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = {_CHECKPOINT};
PRAGMA journal_size_limit = 0;
"""
_CREATE = f"""
BEGIN;
{"; ".join(_TABLES.values())};
INSERT INTO used VALUES (0);
COMMIT;
"""


class Stored(Enum):
    """The result of a Store."""

    DONE = "the value is stored"
    ABSENT = "the key does not exist, and had to"
    EXISTS = "the key exists, and must not"
    FULL = "there is no room for the value"


class ValueStore:
    """Values by key, of at most `size` bytes together with their keys; in memory without a `path`.

    Its methods may wait for storage, and raise MediaError. Those of the data may be called by any
    thread while the store is open.
    """

    def __init__(self, path: Path | None, size: int, *, read_only: bool = False) -> None:
        self.path = path
        self.size = size
        self.read_only = read_only
        self.protected = False
        """The host has asked for no writes."""
        self.lost: MediaError | None = None
        """The error of a failed flush: values may be lost from then on."""
        self.used = 0
        """Bytes of all keys and values."""
        self._lock = Lock()
        self._connection: Connection | None = None

    @property
    def writable(self) -> bool:
        """Writes have a chance."""
        return not (self.read_only or self.protected) and self.lost is None

    def open(self) -> None:
        """Open the store, which exists; one in memory is made."""
        try:
            from sqlite3 import Error, connect
        except ImportError:
            raise MediaError(None, "key value namespaces need Python's sqlite3") from None
        try:
            opened = connect(self._name, uri=True, isolation_level=None, check_same_thread=False)
            try:
                if self.path is None:
                    opened.executescript(_CREATE)
                if not self.read_only:
                    opened.executescript(_SET_UP)
                # A file of another origin could have views and triggers.
                found = opened.execute("SELECT name, sql FROM sqlite_master").fetchall()
                ((self.used,),) = opened.execute("SELECT bytes FROM used")
                if dict(found) != _TABLES or not 0 <= self.used <= self.size:
                    raise OSError(errno.EINVAL, "it has other contents")
                if self.path is not None and not self.read_only:
                    keep_folder(self.path.parent)  # with the name of the log
            except BaseException:
                opened.close()
                raise
        except (Error, OSError, ValueError, TypeError) as error:
            raise MediaError(
                getattr(error, "errno", None), f"cannot use the values in {self.path}: {error}"
            ) from None
        self._connection = opened

    @property
    def _name(self) -> str:
        """The database, as SQLite opens it."""
        if self.path is None:
            return _MEMORY
        how = "mode=rw"
        if self.read_only:  # a log that a killed device has left needs a file for its index
            log = self.path.with_name(self.path.name + _LOG)
            how = "mode=ro" if log.exists() else "immutable=1"
        return f"{self.path.absolute().as_uri()}?{how}"

    def lock(self) -> None:
        """Use the file again, which another process had after `unlock`."""
        if self._connection is None:
            self.open()

    def unlock(self) -> None:
        """Let another process have the file; what is in memory stays."""
        if self.path is not None:
            self.close()

    def close(self) -> None:
        """Close the store; its log becomes part of the file."""
        with self._lock:
            if self._connection is not None:
                from sqlite3 import Error

                opened, self._connection = self._connection, None
                with suppress(Error):  # what is in the log stays there
                    opened.close()

    def store(
        self, key: bytes, value: bytes | memoryview, *, must_exist: bool, must_not_exist: bool
    ) -> Stored:
        """Store a value, in place of any that the key has."""
        with self._change() as connection:
            before = self._length(key)
            if before is None and must_exist:
                return Stored.ABSENT
            if before is not None and must_not_exist:
                return Stored.EXISTS
            freed = 0 if before is None else len(key) + before
            used = self.used - freed + len(key) + len(value)
            if used > self.size:
                return Stored.FULL
            connection.execute("REPLACE INTO pairs VALUES (?, ?)", (key, value))
            self._commit(used)
            return Stored.DONE

    def delete(self, key: bytes) -> bool:
        """Delete a key with its value; False if it does not exist."""
        with self._change() as connection:
            length = self._length(key)
            if length is None:
                return False
            connection.execute("DELETE FROM pairs WHERE key = ?", (key,))
            self._commit(self.used - len(key) - length)
            return True

    def retrieve(self, key: bytes, length: int) -> tuple[bytes, int] | None:
        """The first `length` bytes of a value and the number of all its bytes; None if the key does
        not exist."""
        query = "SELECT substr(value, 1, ?), length(value) FROM pairs WHERE key = ?"
        with self._used() as connection:
            found = connection.execute(query, (length, key)).fetchone()
        # A part of no bytes is NULL.
        return None if found is None else (found[0] or b"", found[1])

    def exists(self, key: bytes) -> bool:
        """True if there is a value for `key`."""
        with self._used():
            return self._length(key) is not None

    def keys(self, first: bytes, most: int) -> list[bytes]:
        """At most so many keys in ascending order, from the first that is not before `first`."""
        query = "SELECT key FROM pairs WHERE key >= ? ORDER BY key LIMIT ?"
        with self._used() as connection:
            return [key for (key,) in connection.execute(query, (first, most))]

    def pairs_from(self, first: bytes, most: int, room: int) -> list[tuple[bytes, bytes]]:
        """At most so many keys with their values, in ascending order from the first that is not
        before `first`, until they have `room` bytes or more."""
        found: list[tuple[bytes, bytes]] = []
        query = "SELECT key, value FROM pairs WHERE key >= ? ORDER BY key LIMIT ?"
        with self._used() as connection:
            for key, value in connection.execute(query, (first, most)):
                found.append((key, value))
                room -= len(value)
                if room <= 0:
                    break
        return found

    def sizes(self) -> list[tuple[bytes, int]]:
        """All keys and the sizes of their values, in ascending order of the keys."""
        with self._used() as connection:
            return connection.execute(
                "SELECT key, length(value) FROM pairs ORDER BY key"
            ).fetchall()

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """All keys and values, in ascending order of the keys."""
        with self._used() as connection:
            return connection.execute("SELECT key, value FROM pairs ORDER BY key").fetchall()

    def replace(self, pairs: Iterable[tuple[bytes, memoryview]]) -> None:
        """Have these keys and values, which have room, and no others."""
        self.erase()
        with self._change() as connection:
            connection.executemany("INSERT INTO pairs VALUES (?, ?)", pairs)
            query = "SELECT coalesce(sum(length(key) + length(value)), 0) FROM pairs"
            (used,) = connection.execute(query).fetchone()
            self._commit(used)

    def flush(self) -> None:
        """Have everything that was stored and deleted before on stable storage."""
        if self.path is None or self.read_only:
            return
        if self.lost is not None:
            raise self.lost
        try:
            log = os.open(f"{self.path}{_LOG}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(log)
            finally:
                os.close(log)
        except OSError as error:
            self.lost = MediaError.of(error, "flushing")
            raise self.lost from None

    def erase(self) -> None:
        """Begin again without any value, in new files, which take the place of those of before."""
        self.close()
        if self.path is not None:
            self._make(self.path)
        self.open()

    def _make(self, path: Path) -> None:
        from sqlite3 import Error, connect

        new = path.with_name(path.name + _NEW)
        try:
            for name in (*(path.name + suffix for suffix in _ASIDE), new.name):
                path.with_name(name).unlink(missing_ok=True)
            new.touch(0o600)  # SQLite gives its other files the same mode
            made = connect(new)
            try:
                made.executescript(_CREATE)
            finally:
                made.close()
            new.rename(path)
            keep_folder(path.parent)
        except (Error, OSError) as error:
            raise MediaError(
                getattr(error, "errno", None), f"cannot make the values in {path}: {error}"
            ) from None

    @contextmanager
    def _used(self) -> Iterator["Connection"]:
        """The open store, for this thread alone; SQLite's errors become MediaErrors."""
        from sqlite3 import Error

        with self._lock:
            if self._connection is None:
                raise MediaError(errno.EBADF, "the values are not open")
            try:
                yield self._connection
            except Error as error:
                full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"
                code = errno.ENOSPC if full else errno.EIO
                raise MediaError(code, f"the values cannot be used: {error}") from None

    @contextmanager
    def _change(self) -> Iterator["Connection"]:
        """A transaction, which is undone unless `_commit` ends it."""
        if self.read_only or self.protected:
            raise MediaError(errno.EROFS, "the values are read-only")
        if self.lost is not None:
            raise self.lost
        with self._used() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _commit(self, used: int) -> None:
        assert self._connection is not None
        self._connection.execute("UPDATE used SET bytes = ?", (used,))
        self._connection.execute("COMMIT")
        self.used = used

    def _length(self, key: bytes) -> int | None:
        assert self._connection is not None
        query = "SELECT length(value) FROM pairs WHERE key = ?"
        found = self._connection.execute(query, (key,)).fetchone()
        return None if found is None else found[0]


def remove_values(path: Path) -> None:
    """Remove a store, if there is one. Raises MediaError."""
    try:
        for suffix in ("", _NEW, *_ASIDE):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        keep_folder(path.parent)
    except OSError as error:
        raise MediaError(error.errno, f"cannot remove {path}: {error.strerror}") from None

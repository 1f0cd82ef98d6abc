"""A key value namespace: values of bytes by keys of 1 to 16 bytes.

NVM Express Key Value Command Set Specification 1.0d.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Annotated, NamedTuple

from csd_spec.reporting import Count, Key
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.key_value import (
    LONGEST_KEY,
    KeyValueCommand,
    KeyValueNamespaceStructure,
    KeyValueOpcode,
    decode_keys,
)
from nvme_spec.status import Status
from potash.sdk.commands import AnyNamespace
from potash.sdk.errors import CommandFailed, DeviceMisbehaved, InvalidRequest, restated
from potash.sdk.transport import Buffer, PendingCommand

FIRST_READ = 4096
"""Bytes of a value that are requested before its size is known."""

LIST_SIZE = 64 << 10
"""Bytes of keys that one List returns at most."""


class Retrieved(NamedTuple):
    """The first bytes of a value, and the number of all its bytes."""

    data: bytes
    size: int


class KeyValueNamespace(AnyNamespace, MutableMapping[bytes, bytes]):
    """One key value namespace of a device, as a mapping. Its commands raise what `Device`'s do.

    A key that does not exist is a KeyError. A key or a value that no such namespace can have is an
    InvalidRequest where it is stored. Keys are iterated over in the drive's order, for which
    Potash's is that of their bytes; `len` lists all keys.
    """

    csi = CommandSet.KEY_VALUE
    nsid: Annotated[Count, "The namespace's identifier."]

    @property
    def size(self) -> Annotated[Count, Key()]:
        """Bytes that all keys and values together may have."""
        return self._limits.nsze

    @property
    def used(self) -> Annotated[Count, Key()]:
        """Bytes that keys and values have."""
        return self._limits.nuse

    @property
    def max_value(self) -> Annotated[Count, Key()]:
        """Bytes of the longest value."""
        return self._limits.kvf[0].value_max

    def store(
        self,
        key: bytes,
        value: Buffer,
        *,
        must_exist: bool = False,
        must_not_exist: bool = False,
        uncompressed: bool = False,
    ) -> None:
        """Store a value, in place of any that the key has. Raises KeyError for a key that does not
        exist and `must_exist`, and CommandFailed (Key Exists) for one that `must_not_exist`."""
        view = memoryview(value).cast("B")
        command = _command(
            key,
            len(view),
            must_exist=must_exist,
            must_not_exist=must_not_exist,
            uncompressed=uncompressed,
        )
        with _absent_is_key_error(key):
            self._submit(KeyValueOpcode.STORE, command, data_out=view).result()

    def store_all(self, pairs: Iterable[tuple[bytes, Buffer]]) -> int:
        """Store values by key, several at the same time; the number of pairs."""
        count = 0

        def submitted() -> Iterator[PendingCommand]:
            for key, value in pairs:
                view = memoryview(value).cast("B")
                yield self._submit(KeyValueOpcode.STORE, _command(key, len(view)), data_out=view)

        for _ in self.device.completions(submitted()):
            count += 1
        return count

    def retrieve(self, key: bytes, length: int) -> Retrieved:
        """At most the first `length` bytes of a value, and its size. Raises KeyError."""
        pending = self._submit(
            KeyValueOpcode.RETRIEVE, _command(key, length), data_in_length=length
        )
        with _absent_is_key_error(key):
            completion = pending.result()
        size = completion.result & 0xFFFF_FFFF
        return Retrieved(completion.data[:size], size)

    def list_keys(self, first: bytes = b"", size: int = LIST_SIZE) -> list[bytes]:
        """Keys that fit into a list of `size` bytes, from `first` on, or else the next one."""
        size = min(size, self.device.max_transfer)
        command = _command(first, size)
        data = self._submit(KeyValueOpcode.LIST, command, data_in_length=size).result().data
        with restated(ValueError, "the device's list of keys is wrong", DeviceMisbehaved):
            return decode_keys(data)

    def flush(self) -> None:
        """Wait until everything that was stored is on stable storage."""
        self._submit(KeyValueOpcode.FLUSH, KeyValueCommand()).result()

    def __getitem__(self, key: bytes) -> bytes:
        found = self.retrieve(_possible(key), FIRST_READ)
        while found.size > len(found.data):  # or it has grown meanwhile
            found = self.retrieve(key, found.size)
        return found.data

    def __setitem__(self, key: bytes, value: Buffer) -> None:
        self.store(key, value)

    def __delitem__(self, key: bytes) -> None:
        if key not in self:  # which Delete does not report, unless a feature says so
            raise KeyError(key)
        with _absent_is_key_error(key):
            self._submit(KeyValueOpcode.DELETE, _command(key)).result()

    def __contains__(self, key: object) -> bool:
        try:
            command = _command(_possible(key))
            with _absent_is_key_error(key):
                self._submit(KeyValueOpcode.EXIST, command).result()
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[bytes]:
        return self.keys_from(b"")

    def keys_from(self, first: bytes) -> Iterator[bytes]:
        """All keys in the drive's order, from `first` on, or else the next one."""
        keys = self.list_keys(first)
        while keys:
            yield from keys
            last = keys[-1]
            keys = self.list_keys(last)
            if keys[:1] == [last]:
                del keys[0]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self.list_keys(size=FIRST_READ))

    @property
    def _limits(self) -> KeyValueNamespaceStructure:
        return KeyValueNamespaceStructure(self._structure())


def _command(key: bytes, size: int = 0, **options: bool) -> KeyValueCommand:
    """Raises InvalidRequest for a key that is too long."""
    try:
        return KeyValueCommand.of(key, size, **options)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _possible(key: object) -> bytes:
    """The key. Raises KeyError for one that no namespace can have."""
    if not isinstance(key, bytes) or not 1 <= len(key) <= LONGEST_KEY:
        raise KeyError(key)
    return key


@contextmanager
def _absent_is_key_error(key: object) -> Iterator[None]:
    try:
        yield
    except CommandFailed as error:
        if error.status != Status.KV_KEY_DOES_NOT_EXIST:
            raise
        raise KeyError(key) from None

"""The state of extensions, which outlives power cycles in a file beside the media, and moves with
the drive.

The file is JSON: by the name of a state its version, the file that declared it, and its value. A
drive whose file has a state that no extension declares is not used: what that extension means by
it would be lost.
"""

from __future__ import annotations

import errno
import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from potash_device.media.drive import Drive
from potash_device.media.durable import replace_file
from potash_device.media.errors import MediaError
from potash_device.saved import read_json
from potash_firmware import extension_limits
from potash_firmware.extension_limits import (
    MOST_STATE_BYTES,
    ExtensionError,
    TookTooLong,
    limited,
    why,
)
from potash_firmware.rpu.part import Part
from potash_wire.structures import Buffer

if TYPE_CHECKING:
    from potash_firmware.extension_registry import DriveState

log = logging.getLogger(__name__)

MOST_BYTES = 2 * MOST_STATE_BYTES
"""Bytes of a file, which may be written with other spaces than those that are counted."""


class States(Part):
    """The states of one drive, which are kept in a file of `drive`, if it has files."""

    changes = 0
    """Grows with each step of an extension, which may change a value."""

    def __init__(self, declared: Mapping[str, DriveState[Any]], drive: Drive) -> None:
        self.declared = declared
        self.values = {name: _default(state) for name, state in declared.items()}
        self._drive = drive
        self._encoded: dict[str, list[Any]] = {}
        """Version, source and value, by name."""
        self._written: dict[str, list[Any]] | None = None
        self._saving = threading.Lock()

    def restore(self, *, clean: bool | None = None) -> None:
        """Have the values of the file. Raises ExtensionError if these extensions do not declare
        them, and MediaError."""
        path = self._drive.extension_states
        if path is None:
            return
        try:
            data = path.read_bytes() if path.exists() else b"{}"
        except OSError as error:
            raise MediaError(error.errno, f"cannot read {path}: {error.strerror}") from None
        try:
            self.load(data)
        except ExtensionError as error:
            raise ExtensionError(f"{error}, or delete {path} to begin without it") from None
        except ValueError as error:
            raise MediaError(errno.EIO, f"{path} is no state of extensions: {error}") from None
        self._written = self._encoded

    def load(self, data: Buffer, *, only_check: bool = False) -> None:
        """Have the values that `encode` gave, unless they are `only_check`ed. Raises
        ExtensionError and ValueError."""
        found = read_json(data, MOST_BYTES)
        if not isinstance(found, dict) or not all(
            isinstance(saved, list) and len(saved) == len(("version", "source", "value"))
            for saved in found.values()
        ):
            raise ValueError("states are lists of version, source and value, by name")
        values = {}
        for name, saved in found.items():
            version, source, values[name] = saved
            has = f"the drive has version {version} of the state {name!r} of {source}"
            declared = self.declared.get(name)
            if declared is None:
                raise ExtensionError(f"{has}, an extension: start it with --extend and that file")
            if declared.version != version:
                raise ExtensionError(
                    f"{has}, which has version {declared.version} now: use the former"
                )
        if only_check:
            return
        new = {name: _default(state) for name, state in self.declared.items() if name not in values}
        self.values, self._encoded = {**new, **values}, json.loads(json.dumps(found))

    def record(self) -> None:
        """Note the values, if they can be stored."""
        self.note()

    def note(self) -> bool:
        """Note the values as they are, for `save`. One that cannot be stored stays as it was; False
        then."""
        whole = True
        for name, value in self.values.items():
            state = self.declared[name]
            try:
                limited(extension_limits.STEP_LIMIT, self._note, state, value)
            except BaseException as error:  # noqa: BLE001 - it is a user's value
                reason = "it takes too long" if isinstance(error, TookTooLong) else error
                log.error("the state %r of %s is not saved: %s", name, state.source, reason)
                whole = False
        return whole

    def _note(self, state: DriveState[Any], value: Any) -> None:
        name = state.name
        if name in self._encoded or value != state.default():  # else there is nothing to lose
            self._encoded = _copied({**self._encoded, name: [state.version, state.source, value]})

    def encode(self) -> bytes:
        """The values that were noted last; nothing where there are none."""
        return json.dumps(self._encoded).encode() if self._encoded else b""

    def save(self) -> None:
        """Write what was noted to the file, which waits. Raises MediaError."""
        with self._saving:
            path, encoded = self._drive.extension_states, self._encoded
            if path is None or self._drive.read_only or encoded == (self._written or {}):
                return
            replace_file(path, json.dumps(encoded) + "\n")
            self._written = encoded


def _default(state: DriveState[Any]) -> Any:
    """The value of a state that a drive does not have yet. Raises ExtensionError."""
    try:
        return limited(extension_limits.STEP_LIMIT, state.default)
    except BaseException as error:  # noqa: BLE001 - it is a user's code
        raise ExtensionError(f"the default of the state {state.name!r}: {why(error, '')}") from None


def _copied(states: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """States as they are read again. Raises ValueError, and TypeError, for what JSON lacks."""
    text = json.dumps(states, allow_nan=False).encode()
    copied: dict[str, list[Any]] = read_json(text, MOST_STATE_BYTES)
    if copied != states:
        raise ValueError(
            "JSON has numbers, texts, booleans, null, lists, and objects whose keys are texts"
        )
    return copied

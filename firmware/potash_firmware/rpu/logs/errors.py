"""The Error Information log.

Source: NVM Express Base Specification 2.0, section 5.16.1.2.
"""

from collections import deque
from collections.abc import Iterable

from nvme_spec import logs
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.logs.health import Health
from potash_firmware.rpu.part import Part

ERROR_LOG_ENTRIES = 64
"""Entries stored; ELPE in Identify Controller is one less, being 0's based."""

_LOCATIONS: dict[int, int] = {
    Status.INVALID_OPCODE: logs.CommandByte.OPCODE,
    Status.COMMAND_ID_CONFLICT: logs.CommandByte.CID,
    Status.INVALID_NAMESPACE: logs.CommandByte.NSID,
    Status.INVALID_PRP_OFFSET: logs.CommandByte.PRP1,
    Status.INVALID_QUEUE_IDENTIFIER: logs.CommandByte.CDW10,
    Status.INVALID_QUEUE_SIZE: logs.CommandByte.CDW10 + 2,
    Status.COMPLETION_QUEUE_INVALID: logs.CommandByte.CDW11 + 2,
    Status.INVALID_INTERRUPT_VECTOR: logs.CommandByte.CDW11 + 2,
    Status.INVALID_QUEUE_DELETION: logs.CommandByte.CDW10,
    Status.INVALID_FIRMWARE_SLOT: logs.CommandByte.CDW10,
    Status.INVALID_FORMAT: logs.CommandByte.CDW10,
    Status.INVALID_LOG_PAGE: logs.CommandByte.CDW10,
    Status.FEATURE_NOT_SAVEABLE: logs.parameter_error_location(logs.CommandByte.CDW10 + 3, 7),
    Status.FEATURE_NOT_CHANGEABLE: logs.CommandByte.CDW10,
    Status.FEATURE_NOT_NAMESPACE_SPECIFIC: logs.CommandByte.NSID,
}
"""The parameter that a status blames, where every command has it in the same place."""

_HOST_WANTED_IT = frozenset({Status.ABORT_REQUESTED, Status.SQ_DELETION_ABORTED})
"""Ways to end a command that are no error."""


class ErrorLog(Part):
    """The newest errors of one controller; `health` counts those of the drive's life."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._entries: deque[logs.ErrorLogEntry] = deque(maxlen=ERROR_LOG_ENTRIES)

    def reset(self, *, next_host: bool = False) -> None:
        """A controller reset removes the entries of commands, which nobody remembers any more.

        What was no command's stays: it may be why there was a reset.
        """
        lasting = [entry for entry in self._entries if entry.sqid == logs.NO_COMMAND]
        self._entries.clear()
        self._entries.extend(lasting)

    def save(self) -> tuple[bytes, ...]:
        """The entries, the newest first."""
        return tuple(map(bytes, self._entries))

    def load(self, entries: Iterable[bytes]) -> None:
        """Have the entries that were saved. Raises ValueError for what is none."""
        found = [logs.ErrorLogEntry(raw) for raw in entries if len(raw) == logs.ErrorLogEntry.SIZE]
        self._entries = deque(found, maxlen=ERROR_LOG_ENTRIES)

    def add(self, command: Command, error: NvmeError) -> None:
        if error.status in _HOST_WANTED_IT:
            return
        location = error.location
        if location is None:
            location = _LOCATIONS.get(error.status, logs.NO_PARAMETER_ERROR_LOCATION)
        self._add(
            sqid=command.queue.qid,
            cid=command.entry.cid,
            status=error.status,
            dnr=int(error.dnr),
            parameter_error_location=location,
            lba=error.lba,
            nsid=command.entry.nsid,
        )

    def add_event(self, status: int) -> None:
        """Something failed that is no command's; `status` is the most applicable one."""
        self._add(
            sqid=logs.NO_COMMAND,
            cid=logs.NO_COMMAND,
            status=status,
            parameter_error_location=logs.NO_PARAMETER_ERROR_LOCATION,
        )

    def _add(self, **fields: int) -> None:
        self._health.errors += 1
        self._entries.appendleft(logs.ErrorLogEntry(error_count=self._health.errors, **fields))

    def encode(self) -> bytes:
        """The log page: the newest entry first, unused ones zero."""
        entries = b"".join(map(bytes, self._entries))
        return entries.ljust(ERROR_LOG_ENTRIES * logs.ErrorLogEntry.SIZE, b"\0")

"""The SDK's errors: the text of each is one sentence that says what to do.

The status codes behind them are those of NVM Express Base Specification 2.0, section 3.3.3.2.1,
and of the accelerator command set.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum

import csd_spec.status
from csd_spec.descriptors import AcceleratorStatus, LogEntry, LogEntryType, LogPage
from nvme_spec import status as nvme_status
from nvme_spec.identify.capabilities import CommandSet


def of_last_job(entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """The entries since the last job's start; all entries if the log no longer contains that."""
    starts = [at for at, entry in enumerate(entries) if entry.type == LogEntryType.JOB_STARTED]
    return entries[starts[-1] :] if starts else entries


def is_fault(entries: Sequence[LogEntry]) -> bool:
    """True if these entries of one job show that it failed, whatever its status is.

    With the original platform's status, an accelerator is done after a failed job, too. A missing
    entry for the job's start proves nothing, as the platform's own log has none.
    """
    types = [entry.type for entry in entries]
    if LogEntryType.JOB_STARTED not in types:
        return False
    if LogEntryType.JOB_FINISHED not in types:
        return True
    ended = types.index(LogEntryType.JOB_FINISHED)
    return LogEntryType.INVALID_OUTPUT_BUFFER in types[ended:]


def printed(entries: Iterable[LogEntry]) -> list[str]:
    """The lines that programs printed."""
    return [entry.text for entry in entries if entry.type == LogEntryType.PROGRAM_OUTPUT]


class PotashError(Exception):
    """Any failure of a device, its transport or a job."""


@contextmanager
def restated(
    kinds: type[Exception] | tuple[type[Exception], ...],
    about: object = "",
    to: Callable[[str], Exception] = PotashError,
) -> Iterator[None]:
    """Make another error of errors of these kinds. Its text is theirs, or the reason alone of an
    OSError, and begins with what it is about."""
    try:
        yield
    except kinds as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise to(f"{about}: {reason}" if about else reason) from None


class InvalidRequest(PotashError, ValueError):
    """The request is invalid, and no command was sent: a number, a length or a direction."""


class DeviceNotFound(PotashError):
    """There is no such device, or it may not be opened."""


class DeviceGone(PotashError):
    """The device has ended or was closed; open it again."""


class DeviceMisbehaved(PotashError):
    """The device violated its specification."""


class CommandTimeout(PotashError):
    """A command did not complete in time."""


class CommandFailed(PotashError):
    """A command completed with an error.

    `status` is `SCT << 8 | SC`, `dnr` its Do Not Retry bit; `opcode`, `admin` and, of an I/O
    command, the command set `csi` say which command.
    `log` is the reason in the accelerator's log, if there is one, and `result` is dwords 0 and 1 of
    the completion.
    """

    def __init__(
        self,
        admin: bool,
        opcode: int,
        status: int,
        *,
        dnr: bool = False,
        csi: int = CommandSet.NVM,
        result: int = 0,
    ) -> None:
        super().__init__(admin, opcode, status)
        self.result = result
        self.csi = csi
        self.admin = admin
        self.opcode = opcode
        self.status = status
        self.dnr = dnr
        self.log = ""

    def __str__(self) -> str:
        sct, sc = nvme_status.split(self.status)
        meaning = self.log or csd_spec.status.describe(self.status)
        if meaning is None:
            described = nvme_status.describe(self.status)
        else:
            described = f"{meaning} (SCT {sct:X}h, SC {sc:02X}h)"
        return f"{command_name(self.admin, self.opcode, self.csi)} failed: {described}"


class JobFailed(PotashError):
    """A job ended without its result; `status` says how, `log` is the accelerator's log."""

    def __init__(self, reason: str, status: AcceleratorStatus, log: LogPage) -> None:
        super().__init__(reason)
        self.status = status
        self.log = log

    @property
    def printed(self) -> list[str]:
        """The lines that the job's program had printed."""
        return printed(of_last_job(self.log.entries))


class JobTimeout(PotashError):
    """A job is still running after its timeout."""


def command_name(admin: bool, opcode: int, csi: int = CommandSet.NVM) -> str:
    """A command's name in words, or its opcode when it has none."""
    # Needed by what has failed alone, and not to be waited for by the rest.
    import csd_spec.opcodes
    import nvme_spec.opcodes
    from nvme_spec.computational import ComputeOpcode
    from nvme_spec.key_value import KeyValueOpcode
    from nvme_spec.memory_commands import MemoryOpcode

    by_command_set: Mapping[int, tuple[type[IntEnum], ...]] = {
        CommandSet.NVM: (nvme_spec.opcodes.IoOpcode, csd_spec.opcodes.IoOpcode),
        CommandSet.KEY_VALUE: (KeyValueOpcode,),
        CommandSet.MEMORY: (MemoryOpcode, csd_spec.opcodes.ValueOpcode),
        CommandSet.COMPUTE: (ComputeOpcode, csd_spec.opcodes.ChainOpcode),
    }
    of_admin = (nvme_spec.opcodes.AdminOpcode, csd_spec.opcodes.AdminOpcode)
    for opcodes in of_admin if admin else by_command_set.get(csi, ()):
        if opcode in opcodes.__members__.values():
            return opcodes(opcode).name.replace("_", " ").capitalize()
    return f"{'Admin' if admin else 'I/O'} command {opcode:02X}h"

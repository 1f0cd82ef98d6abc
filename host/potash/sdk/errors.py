"""The SDK's errors: the text of each is one sentence that says what to do.

The status codes behind them are those of NVM Express Base Specification 2.0, section 3.3.3.2.1,
and of the accelerator command set.
"""

from __future__ import annotations

import csd_spec.opcodes
import csd_spec.status
import nvme_spec.opcodes
from csd_spec.descriptors import AcceleratorStatus, LogPage
from nvme_spec import status as nvme_status
from potash.sdk.log import of_last_job, printed


class PotashError(Exception):
    """Any failure of a device, its transport or a job."""


class InvalidRequest(PotashError, ValueError):
    """What was asked for cannot be sent: a number, a length or a direction that no command has."""


class DeviceNotFound(PotashError):
    """There is no such device, or it may not be opened."""


class DeviceGone(PotashError):
    """The device was there and is not any more; open it again."""


class DeviceMisbehaved(PotashError):
    """The device answered with something that its specification does not allow."""


class CommandTimeout(PotashError):
    """A command did not complete in time."""


class CommandFailed(PotashError):
    """A command completed with an error.

    `status` is `SCT << 8 | SC`, `dnr` its Do Not Retry bit, `opcode` and `admin` say which command.
    `log` is what the accelerator's log says of the reason, where it says something.
    """

    def __init__(self, admin: bool, opcode: int, status: int, *, dnr: bool = False) -> None:
        super().__init__(admin, opcode, status)
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
        return f"{command_name(self.admin, self.opcode)} failed: {described}"


class JobFailed(PotashError):
    """A job ended without its result; `status` says how, `log` is the accelerator's log."""

    def __init__(self, reason: str, status: AcceleratorStatus, log: LogPage) -> None:
        super().__init__(reason)
        self.status = status
        self.log = log

    @property
    def printed(self) -> list[str]:
        """What the job's program had printed by then."""
        return printed(of_last_job(self.log.entries))


class JobTimeout(PotashError):
    """A job still runs after the time that it was given."""


_NAMES = {
    True: (nvme_spec.opcodes.AdminOpcode, csd_spec.opcodes.AdminOpcode),
    False: (nvme_spec.opcodes.IoOpcode, csd_spec.opcodes.IoOpcode),
}


def command_name(admin: bool, opcode: int) -> str:
    """A command's name in words, or its opcode when it has none."""
    for opcodes in _NAMES[admin]:
        if opcode in opcodes.__members__.values():
            return opcodes(opcode).name.replace("_", " ").capitalize()
    return f"{'Admin' if admin else 'I/O'} command {opcode:02X}h"

"""Asynchronous Event Request and Abort: commands about commands that wait.

Source: NVM Express Base Specification 2.0, section 5.1 (Abort) and 5.2.
"""

from nvme_spec.commands import NOT_ABORTED, Abort
from potash_firmware.rpu.command import Command, Pending, Result
from potash_firmware.rpu.controller import Controller


def asynchronous_event_request(controller: Controller, command: Command) -> Result:
    """Wait for an event; dword 0 says which."""
    return Pending(controller.events.request(), lambda event: event)


def abort(controller: Controller, command: Command) -> Result:
    """End an event request that waits; dword 0 says whether that was done.

    Work that the media or the APU has begun is not recalled: it ends by itself soon.
    """
    fields = Abort.decode(command.entry.cdws)
    aborted = controller.abort_event_request((fields.sqid, fields.cid))
    return 0 if aborted else NOT_ABORTED

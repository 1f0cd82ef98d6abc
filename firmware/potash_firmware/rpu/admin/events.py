"""Asynchronous Event Request, Abort and Keep Alive.

Source: NVM Express Base Specification 2.0, section 5.1 (Abort), 5.2 and 5.18 (Keep Alive).
"""

from concurrent.futures import Future

from nvme_spec.commands import NOT_ABORTED, Abort
from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.command import Command, Result, Steps
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.scheduler import Wait, never


def asynchronous_event_request(controller: Controller, command: Command) -> Steps:
    """Wait for an event; dword 0 says which."""
    controller.alerts.health()
    request = controller.events.request()
    try:
        event: int = yield Wait(request)
        return event
    finally:
        controller.events.withdraw(request)


def abort(controller: Controller, command: Command) -> Steps:
    """End a command that waits; dword 0 says whether that was done.

    A command's handler says whether it can be cancelled: event requests, what waits for other work,
    writes that the media have not begun, and what only reads. A program that runs is stopped, which
    is waited for. What else the media or the APU have begun ends by itself soon.
    """
    fields = Abort.decode(command.entry.cdws)
    aborted = controller.outstanding.abort((fields.sqid, fields.cid))
    if isinstance(aborted, Future):  # an execution
        yield Wait({aborted}, never)
        aborted = aborted.result().outcome is Outcome.CANCELLED
    return 0 if aborted else NOT_ABORTED


def keep_alive(controller: Controller, command: Command) -> Result:
    """The host lives, and its timer begins anew."""
    controller.keep_alive.restart()
    return None

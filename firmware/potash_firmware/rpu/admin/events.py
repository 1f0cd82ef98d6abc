"""Asynchronous Event Request, Abort and Keep Alive.

Source: NVM Express Base Specification 2.0, section 5.1 (Abort), 5.2 and 5.18 (Keep Alive).
"""

from concurrent.futures import Future

from nvme_spec.commands import NOT_ABORTED, Abort
from potash_firmware.mailbox.execution import Outcome
from potash_firmware.rpu.command import Command, Pending, Result, Steps
from potash_firmware.rpu.compute.engine import Execution
from potash_firmware.rpu.controller import Controller


def asynchronous_event_request(controller: Controller, command: Command) -> Result:
    """Wait for an event; dword 0 says which."""
    controller.alerts.health()
    token = controller.events.request()
    return Pending(token, lambda event: event, lambda: controller.events.withdraw(token))


def abort(controller: Controller, command: Command) -> Result:
    """End a command that waits; dword 0 says whether that was done.

    A command's handler says whether it can be recalled: event requests, what waits for other work,
    writes that the media have not begun, and what only reads. A program that runs is stopped, which
    is waited for. What else the media or the APU have begun ends by itself soon.
    """
    fields = Abort.decode(command.entry.cdws)
    aborted = controller.outstanding.abort((fields.sqid, fields.cid))
    if isinstance(aborted, Future):
        return controller.tasks.command(_stopped(aborted), exclusive=False)
    return 0 if aborted else NOT_ABORTED


def _stopped(execution: Future[Execution]) -> Steps:
    yield {execution}
    return 0 if execution.result().outcome is Outcome.CANCELLED else NOT_ABORTED


def keep_alive(controller: Controller, command: Command) -> Result:
    """The host lives, and its timer begins anew."""
    controller.keep_alive.restart()
    return None

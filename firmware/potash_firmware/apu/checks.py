"""The check of programs that a host sends: each is linked and verified in a separate process.

The service links nothing itself: an untrusted file would keep it from all other work, and a fault
of the linker would happen where all configuration is stored.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from csd_spec.run_times import MOST_PRIORITY
from potash_firmware.apu.channel import CHECKER, ChannelError, FromWorker, Line, Ready
from potash_firmware.apu.config import Limits
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.mailbox.messages import FIRST_HANDLE, Execute, Executed, Outcome
from potash_firmware.mailbox.shared import seal

Ended = Callable[[Outcome, str, int], None]
"""Called with the outcome of a check (RETURNED, REFUSED or LOST), the reason for a refusal, and the
program's priority."""

Owner = tuple[str, int]
"""The reset of what drops a check: ("controller", number) or ("namespace", identifier)."""


@dataclass
class _Check:
    ended: Ended
    owner: Owner
    reason: str = ""
    """The reason why the program is refused, which the worker has logged."""


class Checks:
    """Programs that are being checked, each by its own worker of `supervisor`."""

    messages_at_once = 1

    def __init__(self, supervisor: Supervisor, limits: Limits) -> None:
        self._supervisor = supervisor
        self._limits = limits
        self._checks: dict[Worker, _Check] = {}

    def begin(self, image: bytes, ended: Ended, owner: Owner) -> None:
        """Check a program, and call `ended` later. After a reset, the outcome is LOST."""
        worker = self._supervisor.spawn(CHECKER, self)
        self._checks[worker] = _Check(ended, owner)
        program = seal("potash-program", image)
        try:
            message = Execute(0, 0, FIRST_HANDLE)
            shared, seconds = {FIRST_HANDLE: program}, self._limits.compile_seconds
            self._supervisor.execute(worker, message, shared, [], seconds)
        finally:
            os.close(program)

    def received(self, worker: Worker, message: FromWorker) -> None:
        check = self._checks[worker]
        match message:
            case Ready():
                pass
            case Line(_, text):
                check.reason = text
            case Executed(_, Outcome.RETURNED, priority) if priority <= MOST_PRIORITY:
                self._kill(worker, Outcome.RETURNED, priority=priority)
            case Executed(_, Outcome.REFUSED) if check.reason:
                self._kill(worker, Outcome.REFUSED, check.reason)
            case _:
                raise ChannelError(f"a check is answered by {message}")

    def expired(self, worker: Worker) -> None:
        seconds = self._limits.compile_seconds
        self._kill(worker, Outcome.REFUSED, f"it takes more than {seconds:g} s to check")

    def exited(self, worker: Worker, why: str) -> None:
        self._kill(worker, Outcome.REFUSED, "the process that checks it was lost")

    def drop(self, owners: Collection[Owner] | None) -> None:
        """Drop all checks, or those of some owners: their controller is reset."""
        for worker, check in list(self._checks.items()):
            if owners is None or check.owner in owners:
                self._kill(worker, Outcome.LOST)

    def _kill(self, worker: Worker, outcome: Outcome, reason: str = "", priority: int = 0) -> None:
        check = self._checks.pop(worker, None)
        self._supervisor.kill(worker)
        if check is not None:
            check.ended(outcome, reason, priority)

"""The check of programs that a host sends: each is linked and verified in a separate process.

The service links nothing itself. That would take the service from everybody else for as long as an
untrusted file takes, and a fault of the linker would happen where all configuration is kept.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

from potash_firmware.apu.channel import CHECKER, ChannelError, FromWorker, Line, Ready
from potash_firmware.apu.config import Limits
from potash_firmware.apu.supervisor import Supervisor, Worker
from potash_firmware.mailbox.messages import FIRST_SERIAL, Execute, Executed, Outcome
from potash_firmware.mailbox.shared import sealed

Decided = Callable[[str | None], None]
"""Called with the reason why a program is refused; None where it is sound."""


@dataclass
class _Check:
    decided: Decided
    dropped: Callable[[], None]
    reason: str | None = None
    """The reason why the program is refused, which the worker has logged."""


class Checks:
    """Programs that are being checked, each by its own worker of `supervisor`."""

    messages_at_once = 1

    def __init__(self, supervisor: Supervisor, limits: Limits) -> None:
        self._supervisor = supervisor
        self._limits = limits
        self._checks: dict[Worker, _Check] = {}

    def begin(self, image: bytes, decided: Decided, dropped: Callable[[], None]) -> None:
        """Check a program. One of the two is called, later: `dropped` where a reset came before."""
        worker = self._supervisor.spawn(CHECKER, self)
        self._checks[worker] = _Check(decided, dropped)
        program = sealed("potash-program", image)
        try:
            message = Execute(0, 0, FIRST_SERIAL)
            shared, seconds = {FIRST_SERIAL: program}, self._limits.compile_seconds
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
            case Executed(_, Outcome.RETURNED):
                self._decide(worker, None)
            case Executed(_, Outcome.REFUSED) if check.reason is not None:
                self._decide(worker, check.reason)
            case _:
                raise ChannelError(f"a check is answered by {message}")

    def expired(self, worker: Worker) -> None:
        seconds = self._limits.compile_seconds
        self._decide(worker, f"it takes more than {seconds:g} s to check")

    def exited(self, worker: Worker, why: str) -> None:
        self._decide(worker, "the process that checks it was lost")

    def drop(self) -> None:
        """Drop all checks: the controller is reset."""
        checks, self._checks = self._checks, {}
        for worker, check in checks.items():
            self._supervisor.kill(worker)
            check.dropped()

    def _decide(self, worker: Worker, reason: str | None) -> None:
        check = self._checks.pop(worker, None)
        self._supervisor.kill(worker)
        if check is not None:
            check.decided(reason)

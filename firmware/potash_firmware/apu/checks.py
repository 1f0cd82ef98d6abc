"""The check of programs that a host sends: each is linked and verified in a separate process.

The service links nothing itself. That would take the service from everybody else for as long as an
untrusted file takes, and a fault of the linker would happen where all configuration is kept.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from potash_firmware.apu.channel import (
    CHECKER,
    ChannelError,
    Check,
    FromWorker,
    Refused,
    Sound,
)
from potash_firmware.apu.config import Limits
from potash_firmware.apu.supervisor import Supervisor, Worker, contents_of

Decided = Callable[[str | None], None]
"""Called with the reason why a program is refused; None where it is sound."""


class _Check(NamedTuple):
    decided: Decided
    dropped: Callable[[], None]


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
        contents = contents_of(image)
        try:
            seconds = self._limits.compile_seconds
            self._supervisor.execute(worker, Check(len(image)), [contents], seconds)
        finally:
            os.close(contents)

    def received(self, worker: Worker, message: FromWorker) -> None:
        match message:
            case Sound():
                self._decide(worker, None)
            case Refused(text):
                self._decide(worker, text)
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

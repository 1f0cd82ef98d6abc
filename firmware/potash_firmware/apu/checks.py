"""The check of programs that a host sends: each is linked and verified in a separate process.

The service links nothing itself. That would take it from everybody else for as long as a stranger's
file likes, and whatever the linker gets wrong would happen where the configuration of all is kept.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from potash_firmware.apu import channel
from potash_firmware.apu.channel import ChannelError, Refused, Sound
from potash_firmware.apu.config import Limits
from potash_firmware.apu.orders import CHECKER
from potash_firmware.apu.pool import Pool, Worker, contents_of

log = logging.getLogger(__name__)

Decided = Callable[[str | None], None]
"""Called with why a program is refused; None where it is sound."""


class _Check(NamedTuple):
    worker: Worker
    deadline: float
    decided: Decided
    dropped: Callable[[], None]


class Checks:
    """Programs that are being checked, by processes of `pool`."""

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self._checks: list[_Check] = []

    @property
    def workers(self) -> list[Worker]:
        return [check.worker for check in self._checks]

    def deadline(self) -> float | None:
        """Seconds until `expire` has something to do; None when nothing has a limit."""
        ends = [check.deadline for check in self._checks]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def begin(self, image: bytes, decided: Decided, dropped: Callable[[], None]) -> None:
        """Check a program. One of the two is called, later: `dropped` where a reset came before."""
        worker = self._pool.spawn(CHECKER)
        deadline = time.monotonic() + self._limits.compile_seconds
        self._checks.append(_Check(worker, deadline, decided, dropped))
        contents = contents_of(image)
        try:
            worker.run(channel.Check(len(image)), [contents])
        finally:
            os.close(contents)

    def listen(self, worker: Worker) -> None:
        """Take in what a process says of its program, or that it is gone."""
        reason: str | None = "the process that checks it was lost"
        try:
            for message in worker.messages(1):
                match message:
                    case Sound():
                        reason = None
                    case Refused(text):
                        reason = text
                    case _:
                        raise ChannelError(f"a check is answered by {message}")
                break
            else:
                if not worker.silent:
                    return
        except ChannelError as error:
            log.warning("%s", error)
        self._end(worker, reason)

    def expire(self) -> None:
        now = time.monotonic()
        for check in [one for one in self._checks if one.deadline <= now]:
            self._end(
                check.worker, f"it takes more than {self._limits.compile_seconds:g} s to check"
            )

    def drop(self) -> None:
        """Forget all programs: the controller is reset."""
        checks, self._checks = self._checks, []
        for check in checks:
            self._dismiss(check.worker)
            check.dropped()

    def close(self) -> None:
        """Release the channels; the pool ends the processes."""
        for check in self._checks:
            check.worker.close()
        self._checks.clear()

    def _end(self, worker: Worker, reason: str | None) -> None:
        (check,) = (one for one in self._checks if one.worker is worker)
        self._checks.remove(check)
        self._dismiss(worker)
        check.decided(reason)

    def _dismiss(self, worker: Worker) -> None:
        self._pool.kill(worker)
        worker.close()


def serve(end: socket.socket, frame_size: int) -> None:
    """In a confined process: say whether the program that comes through `end` is sound."""
    from potash_firmware import bpf

    data, fds, _, _ = socket.recv_fds(end, channel.MAX_MESSAGE, 1)
    if not data:
        return
    check = channel.decode_check(data)
    with os.fdopen(fds[0], "rb") as contents:
        image = contents.read(check.image_length)
    answer: Sound | Refused = Sound()
    try:
        bpf.load_program(image, frame_size=frame_size)
    except bpf.ProgramError as error:
        answer = Refused(str(error)[: channel.TEXT_LIMIT])
    except MemoryError:
        answer = Refused("it takes too much memory to check")
    end.send(channel.encode(answer), socket.MSG_NOSIGNAL)

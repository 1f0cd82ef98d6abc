"""The worker processes of one kind, from the request to fork one until its exit is certain.

What workers say goes to their owner in order. A worker that breaks the rules of its channel, or
hangs up, is killed; when it is gone for certain, its owner is told once, after its last words.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from potash_firmware.apu.channel import ChannelError, FromWorker, Ready
from potash_firmware.apu.pool import Pool, Worker

log = logging.getLogger(__name__)

LAST_WORDS = 4096
"""Messages of a worker that are looked for when it is gone: more than its channel holds.

A process that it has made may hold its channel open, and may even speak."""


@dataclass(eq=False)
class Crew:
    """Workers of `pool`, of which `listen` takes in `at_once` messages of one.

    `heard` gets a message, and may raise ChannelError; `buried` gets a worker that is gone, with
    the reason.
    """

    pool: Pool
    heard: Callable[[Worker, FromWorker], None]
    buried: Callable[[Worker, str], None]
    at_once: int
    _members: dict[int, Worker] = field(default_factory=dict, init=False)
    changed: bool = field(default=False, init=False)
    """There are other workers, or one has to be seen to, since this was last cleared."""

    @property
    def workers(self) -> list[Worker]:
        return [worker for worker in self._members.values() if not worker.silent]

    def spawn(self, accelerator: int) -> Worker:
        worker = self.pool.spawn(accelerator)
        self._members[worker.serial] = worker
        self.changed = True
        return worker

    def listen(self, worker: Worker) -> bool:
        """Take in what a worker says; whether there was anything, and nothing else to be seen
        to."""
        return self._listen(worker, self.at_once)

    def gone(self, serial: int, why: str) -> None:
        """The nursery says that a process is gone, whoever's it is."""
        worker = self._members.get(serial)
        if worker is not None:
            self._listen(worker, LAST_WORDS)
            self._bury(worker, why)

    def nursery_lost(self) -> None:
        for worker in list(self._members.values()):
            worker.orphaned = True
            self._bury_orphan(worker)

    def close(self) -> None:
        """Release the channels; the pool ends the processes."""
        for worker in self._members.values():
            worker.close()
        self._members.clear()

    def _listen(self, worker: Worker, limit: int) -> bool:
        heard = False
        try:
            for message in worker.messages(limit):
                heard = True
                if isinstance(message, Ready):
                    worker.ready = True
                    self.pool.ready(worker)
                self.heard(worker, message)
        except ChannelError as error:
            log.warning("%s", error)
            self.pool.kill(worker)
        if worker.silent and not worker.orphaned:
            self.pool.kill(worker)  # it may have hung up and stayed
        self.changed |= worker.silent
        self._bury_orphan(worker)
        return heard and not worker.doomed

    def _bury_orphan(self, worker: Worker) -> None:
        """Without its nursery, the end of its channel is what tells of a worker's death."""
        if worker.orphaned and worker.silent:
            self._bury(worker, "the process that workers are made by is gone")

    def _bury(self, worker: Worker, why: str) -> None:
        if self._members.pop(worker.serial, None) is not None:
            self.changed = True
            worker.close()
            self.buried(worker, why)

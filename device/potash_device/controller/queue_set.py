"""All queues of a controller, and the doorbells by which a host moves them: registers, or the
shadow page.

Source: NVM Express Base Specification 2.0, section 3.1.3.24 and 3.1.3.25 (doorbells), annex B.5."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from nvme_spec.queues import COMPLETION_ENTRY_SIZE, SUBMISSION_ENTRY_SIZE
from nvme_spec.registers import DOORBELL_BASE, DOORBELL_WIDTH
from potash_device.controller.dma import DmaEngine
from potash_device.controller.doorbell_page import DoorbellPage
from potash_device.controller.queues import CompletionQueue, InvalidDoorbell, SubmissionQueue
from potash_device.controller.shadow import ShadowDoorbells
from pyvfio_user.memory import AccessFault

_Queue = TypeVar("_Queue", SubmissionQueue, CompletionQueue)


class UnknownDoorbell(ValueError):
    """A host rang a doorbell whose queue does not exist."""


class QueueSet:
    """Submission and completion queues by identifier; queue 0 of each is the admin queue."""

    def __init__(self, dma: DmaEngine) -> None:
        self.submissions: dict[int, SubmissionQueue] = {}
        self.completions: dict[int, CompletionQueue] = {}
        self.shadow: ShadowDoorbells | None = None
        self.page: DoorbellPage | None = None
        """The doorbells, where a host may have mapped them."""
        self._dma = dma
        self.filled: dict[int, SubmissionQueue] = {}
        """The queues that may have something to fetch, so that idle ones cost nothing."""
        self._last_served = 0

    def clear(self) -> None:
        """Every queue is gone, as after a controller reset, and holds no memory if anybody has
        it."""
        self.unbind()
        self.submissions.clear()
        self.completions.clear()
        self.filled.clear()
        self.shadow = None

    @property
    def areas(self) -> list[tuple[int, int]]:
        """Address and length of each queue."""
        filled, emptied = self.submissions.values(), self.completions.values()
        return [
            *((queue.base, queue.size * SUBMISSION_ENTRY_SIZE) for queue in filled),
            *((queue.base, queue.size * COMPLETION_ENTRY_SIZE) for queue in emptied),
        ]

    @property
    def last_served(self) -> int:
        """The queue that was served last, for the round robin."""
        return self._last_served

    def restore(
        self,
        completions: Iterable[CompletionQueue],
        submissions: Iterable[SubmissionQueue],
        shadow: ShadowDoorbells | None,
        last_served: int,
    ) -> None:
        """Have these queues and no others; their memory is resolved when it is first used."""
        self.clear()
        self.completions.update((queue.qid, queue) for queue in completions)
        self.submissions.update((queue.qid, queue) for queue in submissions)
        self.filled.update(self.submissions)
        self._last_served = last_served
        self.shadow = shadow
        if shadow is not None:
            shadow.follow((*self._io_ids(self.completions), *self._io_ids(self.submissions)))
        if self.page is not None:
            for completion in self.completions.values():
                self.page.adopt(completion.qid, completion.head, completion=True)
            for submission in self.submissions.values():
                self.page.adopt(submission.qid, submission.tail, completion=False)

    def unbind(self) -> None:
        """Let go of all guest memory; it is resolved again when it is next used."""
        for submission in self.submissions.values():
            submission.unbind()
        for completion in self.completions.values():
            completion.unbind()
        if self.shadow is not None:
            self.shadow.unbind()

    def add_completion(self, queue: CompletionQueue) -> None:
        queue.bind()
        if self.shadow is not None and queue.qid:
            self.shadow.adopt_completion(queue)
        if self.page is not None:
            self.page.adopt(queue.qid, queue.head, completion=True)
        self.completions[queue.qid] = queue

    def add_submission(self, queue: SubmissionQueue) -> None:
        queue.bind()
        if self.shadow is not None and queue.qid:
            self.shadow.adopt_submission(queue)
        if self.page is not None:
            self.page.adopt(queue.qid, queue.tail, completion=False)
        self.submissions[queue.qid] = queue
        queue.completions.submission_queues += 1

    def remove_submission(self, qid: int) -> SubmissionQueue:
        """Take a queue out, with its completions that still wait for room."""
        queue = self.submissions.pop(qid)
        self.filled.pop(qid, None)
        queue.completions.forget(queue)
        queue.completions.submission_queues -= 1
        return queue

    def use_shadow(self, shadow: ShadowDoorbells) -> None:
        """Follow `shadow` from now on, for the I/O queues that exist too. Raises AccessFault.

        The admin queue is rung: hosts are known to leave it out of the shadow page.
        """
        shadow.bind()
        for completion in self._io(self.completions):
            shadow.adopt_completion(completion)
        for submission in self._io(self.submissions):
            shadow.adopt_submission(submission)
        self.shadow = shadow

    def ring(self, offset: int, value: int) -> CompletionQueue | None:
        """Apply a write of a doorbell at register `offset`.

        Gives the completion queue that had completions waiting and could store some. Raises
        UnknownDoorbell, InvalidDoorbell, AccessFault.
        """
        index, rest = divmod(offset - DOORBELL_BASE, DOORBELL_WIDTH)
        qid, is_head = divmod(index, 2)
        queues: dict[int, CompletionQueue] | dict[int, SubmissionQueue]
        queues = self.completions if is_head else self.submissions
        queue = queues.get(qid)
        if rest or queue is None:
            raise UnknownDoorbell(f"no queue has the doorbell at {offset:#x}")
        if self.shadow is not None and qid:
            # The page may hold a newer value than a ring that has waited in its socket: a tail that
            # went back would have a lap of old entries executed again.
            self.shadow.poll_again()
            return None
        if isinstance(queue, CompletionQueue):
            return queue if queue.move_head(value) else None
        queue.move_tail(value)
        self.filled[qid] = queue
        return None

    @property
    def polled(self) -> bool:
        """The host may store doorbells in memory."""
        return self.shadow is not None or self.page is not None

    def has_changed(self) -> bool:
        """True if the host has stored any doorbell since the last `poll`. Raises AccessFault."""
        return (self.shadow is not None and self.shadow.has_changed()) or (
            self.page is not None and self.page.has_changed()
        )

    def poll(self) -> tuple[list[CompletionQueue], list[InvalidDoorbell | UnknownDoorbell]]:
        """Read the doorbells in memory; give the completion queues that could store what had
        waited.

        What a queue cannot have is given once as an error, and keeps no other queue from its own.
        Raises AccessFault.
        """
        freed: list[CompletionQueue] = []
        errors: list[InvalidDoorbell | UnknownDoorbell] = []
        if self.page is not None:
            for offset, value in self.page.changes():
                try:
                    if (queue := self.ring(offset, value)) is not None:
                        freed.append(queue)
                except (InvalidDoorbell, UnknownDoorbell) as error:
                    errors.append(error)
        values = None if self.shadow is None else self.shadow.changed()
        if values is None:
            return freed, errors
        for qid, submission in self.submissions.items():
            tail = values[2 * qid]
            if tail == submission.tail or tail == submission.refused or not qid:
                continue
            try:
                submission.move_tail(tail)
                self.filled[qid] = submission
            except InvalidDoorbell as error:
                submission.refused = tail
                errors.append(error)
        for qid, completion in self.completions.items():
            if not completion.backlog or not qid:
                continue
            head = values[2 * qid + 1]
            if head == completion.head or head == completion.refused:
                continue
            try:
                if completion.move_head(head):
                    freed.append(completion)
            except InvalidDoorbell as error:
                completion.refused = head
                errors.append(error)
        return freed, errors

    def arm(self) -> bool:
        """Ask to be rung for every I/O queue; True when there is work or room already."""
        if self.shadow is None:
            return False
        found = False
        for submission in self._io(self.submissions):
            found |= self.shadow.arm(submission)
        for completion in self._io(self.completions):
            if completion.backlog:
                found |= self.shadow.arm_head(completion)
        return found

    def post(
        self, source: SubmissionQueue, cid: int, status: int = 0, dnr: bool = False, result: int = 0
    ) -> bool:
        """Post a completion; False when it has to wait for the host. Raises AccessFault."""
        queue = source.completions
        if (queue.tail + 1) % queue.size == queue.head:
            self._take_head(queue)
        return queue.post(source, cid, status, dnr, result)

    def room(self, queue: CompletionQueue, wanted: int) -> int:
        """Completions that `queue` can store now, up to `wanted`. Raises AccessFault."""
        if queue.room >= wanted:
            return wanted
        self._take_head(queue)
        return min(queue.room, wanted)

    def store(self) -> bool:
        """Have the host get the completions that are staged for messages; whether it has them all.

        It is not to be interrupted for them before. The admin queue's come last: an answer there
        may be that no more of an I/O queue's will come. Raises AccessFault, where the host does not
        take them.
        """
        waiting = [queue for queue in reversed(self.completions.values()) if queue.staged]
        if not waiting:
            return True
        if self._dma.interrupted or not self._dma.ready:
            return False
        pieces = [queue.staged_pieces() for queue in waiting]
        try:
            self._dma.write(
                [one for hidden, _ in pieces for one in hidden]
                + [one for _, shown in pieces for one in shown]
            )
        except AccessFault:
            if self._dma.interrupted:
                return False
            raise
        for queue in waiting:
            queue.stored()
        return True

    def _take_head(self, queue: CompletionQueue) -> None:
        """See what the host has emptied, which it may not have rung for."""
        if self.shadow is None or not queue.qid or queue.backlog:
            return
        try:
            queue.move_head(self.shadow.head(queue))
        except InvalidDoorbell:
            self.shadow.poll_again()  # so that the next poll reports it

    @property
    def blocked(self) -> bool:
        """Completions wait for room in some queue."""
        return any(queue.backlog for queue in self.completions.values())

    def round_robin(self) -> list[SubmissionQueue]:
        """The queues with something to fetch, round robin: behind the one served last.

        Source: NVM Express Base Specification 2.0, section 3.4.4.1 (round robin arbitration).
        """
        filled = self.filled
        ready = []
        for queue in list(filled.values()):
            if queue.head == queue.tail:
                del filled[queue.qid]
            elif queue.ready:
                ready.append(queue)
        if len(ready) > 1:
            last = self._last_served
            ready.sort(key=lambda queue: (queue.qid <= last, queue.qid))
        return ready

    def served(self, queue: SubmissionQueue) -> None:
        """A queue has had its turn."""
        self._last_served = queue.qid
        if queue.head == queue.tail:
            self.filled.pop(queue.qid, None)

    @staticmethod
    def _io_ids(queues: Iterable[int]) -> Iterator[int]:
        return (qid for qid in queues if qid)

    @staticmethod
    def _io(queues: dict[int, _Queue]) -> Iterator[_Queue]:
        return (queue for qid, queue in queues.items() if qid)

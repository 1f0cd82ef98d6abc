"""The commands that were fetched and not yet answered because they wait for something.

What a token brings after its command is gone (reset, queue deleted, aborted) is dropped here, so
that no command is answered twice."""

from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from nvme_spec.opcodes import AdminOpcode
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Pending

_EVENT_REQUEST = int(AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A command and what it waits for.

    `name` tells it from the others of its queue: its identifier, or an event request's token. A
    host that is about to disable the controller may end its event requests for itself, and give
    their identifiers to other commands (SPDK does).
    """

    command: Command
    pending: Pending
    name: object


def _is_event_request(command: Command) -> bool:
    return not command.queue.qid and command.entry.opcode == _EVENT_REQUEST


class Outstanding:
    """Waiting commands by token, and by queue and command identifier."""

    def __init__(self) -> None:
        self._by_token: dict[object, Waiting] = {}
        self._by_queue: defaultdict[int, dict[object, Waiting]] = defaultdict(dict)
        self.aborted: list[tuple[Command, NvmeError]] = []
        """Commands that another command has ended, which are answered before that one."""
        self.fused: dict[int, object] = {}
        """First halves of fused operations that wait for the second: token by queue."""

    def __len__(self) -> int:
        return len(self._by_token)

    def conflicts(self, command: Command) -> bool:
        """Another command has the identifier of this one; the identifier of an event request
        counts for event requests alone."""
        qid, cid = command.key
        if qid:
            return cid in self._by_queue[qid]
        found = self.find((qid, cid))
        return found is not None and (
            _is_event_request(command) or not _is_event_request(found.command)
        )

    @property
    def commands(self) -> list[Command]:
        """All of them, in the order in which they have begun to wait."""
        return [waiting.command for waiting in self._by_token.values()]

    @property
    def admin(self) -> int:
        """How many of them came from the admin queue."""
        return len(self._by_queue[0])

    @property
    def any_io(self) -> bool:
        """An I/O command is outstanding."""
        return len(self._by_token) > self.admin

    def add(self, command: Command, pending: Pending) -> None:
        """`command` waits from now on."""
        name = pending.token if _is_event_request(command) else command.entry.cid
        waiting = Waiting(command, pending, name)
        self._by_token[pending.token] = waiting
        self._by_queue[command.queue.qid][name] = waiting

    def take(self, token: object) -> Waiting | None:
        """The command that waits for `token`, which waits no longer; None when it is gone."""
        waiting = self._by_token.pop(token, None)
        if waiting is not None:
            del self._by_queue[waiting.command.queue.qid][waiting.name]
        return waiting

    def holds(self, token: object) -> bool:
        return token in self._by_token

    def find(self, key: tuple[int, int]) -> Waiting | None:
        qid, cid = key
        queue = self._by_queue[qid]
        found = queue.get(cid)
        if found is None and not qid:  # few wait there
            found = next((one for one in queue.values() if one.command.entry.cid == cid), None)
        return found

    def clear(self) -> None:
        self._by_token.clear()
        self._by_queue.clear()
        self.aborted.clear()
        self.fused.clear()

    def identifiers(self, qid: int) -> Collection[object]:
        """The identifiers of the commands that came from submission queue `qid`; each event request
        has another object."""
        return self._by_queue[qid]

    def abort(self, key: tuple[int, int]) -> bool | Future[Any]:
        """End a command that waits; False when no such one does, or it cannot be recalled.

        One that can only be stopped ends soon: with the future that is given.
        """
        waiting = self.find(key)
        if waiting is None:
            return False
        token, pending = waiting.pending.token, waiting.pending
        if pending.stop is not None and isinstance(token, Future) and not token.done():
            pending.stop(NvmeError(Status.ABORT_REQUESTED, dnr=False))
            return token
        if pending.recall is None or not pending.recall():
            return False
        self._end(waiting, Status.ABORT_REQUESTED)
        return True

    def abort_queue(self, qid: int) -> set[Future[Any]]:
        """End the commands of a submission queue that is being deleted.

        Those that the media or an engine work on cannot be recalled: their futures are given. A
        write that was called ended would undo what the host writes to the same blocks after it.
        """
        begun: set[Future[Any]] = set()
        self.fused.pop(qid, None)
        for waiting in list(self._by_queue[qid].values()):
            token = waiting.pending.token
            if isinstance(token, Future):
                if waiting.pending.stop is not None:
                    waiting.pending.stop(NvmeError(Status.SQ_DELETION_ABORTED, dnr=False))
                begun.add(token)
            else:
                if waiting.pending.recall is not None:
                    waiting.pending.recall()
                self._end(waiting, Status.SQ_DELETION_ABORTED)
        return begun

    def _end(self, waiting: Waiting, status: Status) -> None:
        self.take(waiting.pending.token)
        self.aborted.append((waiting.command, NvmeError(status, dnr=False)))

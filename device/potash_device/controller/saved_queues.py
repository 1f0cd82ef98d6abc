"""The queues of a controller as values, which another one can go on with.

Addresses are the guest's; nothing of this process is in here.
"""

from typing import Annotated, NamedTuple

from potash_device.controller.dma import PAGE_SIZE, DmaEngine
from potash_device.controller.queue_set import QueueSet
from potash_device.controller.queues import CompletionQueue, Interrupt, SubmissionQueue
from potash_device.controller.shadow import ShadowDoorbells
from potash_wire.records import U16, Range


class Waiting(NamedTuple):
    """A completion that waits for room: the arguments of `CompletionQueue.post`."""

    sqid: U16
    cid: U16
    status: Annotated[int, Range(0, (1 << 11) - 1)]
    dnr: bool
    result: int


class SavedCompletionQueue(NamedTuple):
    qid: int
    base: int
    size: int
    vector: int
    interrupts: bool
    head: int
    tail: int
    phase: int
    waiting: tuple[Waiting, ...]


class SavedSubmissionQueue(NamedTuple):
    qid: int
    base: int
    size: int
    cqid: int
    head: int
    tail: int


class SavedQueues(NamedTuple):
    completions: tuple[SavedCompletionQueue, ...]
    submissions: tuple[SavedSubmissionQueue, ...]
    shadow: tuple[int, int] | None
    """Addresses of the shadow page and of the event index page."""
    last_served: int


def save_queues(queues: QueueSet) -> SavedQueues:
    """The queues as they are, of which none is being deleted."""
    shadow = queues.shadow
    return SavedQueues(
        tuple(map(_completion_queue, queues.completions.values())),
        tuple(
            SavedSubmissionQueue(
                submission.qid,
                submission.base,
                submission.size,
                submission.completions.qid,
                submission.head,
                submission.tail,
            )
            for submission in queues.submissions.values()
        ),
        None if shadow is None else (shadow.shadow, shadow.event_index),
        queues.last_served,
    )


def load_queues(
    queues: QueueSet, dma: DmaEngine, saved: SavedQueues, *, pairs: int, entries: int
) -> None:
    """Have the queues that were saved, of at most `pairs` pairs of `entries` entries each. Raises
    ValueError where they make no sense; nothing has changed then."""
    completions: dict[int, CompletionQueue] = {}
    submissions: dict[int, SubmissionQueue] = {}
    for one in saved.completions:
        _require_queue(one, one.qid in completions, pairs, entries)
        _require(one.phase in (0, 1) and one.vector < pairs, "a completion queue")
        interrupt = Interrupt(one.vector, one.interrupts)
        completions[one.qid] = CompletionQueue(
            dma, one.qid, one.base, one.size, interrupt, one.head, one.tail, one.phase
        )
    for each in saved.submissions:
        _require_queue(each, each.qid in submissions, pairs, entries)
        _require((each.cqid == 0) == (each.qid == 0) and each.cqid in completions, "a queue's pair")
        of = completions[each.cqid]
        of.submission_queues += 1
        submissions[each.qid] = SubmissionQueue(
            dma, each.qid, each.base, each.size, of, each.head, each.tail
        )
    for one in saved.completions:
        queue = completions[one.qid]
        _require(queue.full or not one.waiting, "a backlog")
        for item in one.waiting:
            source = submissions.get(item.sqid)
            known = source is not None and source.completions is queue
            _require(known, "a backlog")
            assert source is not None
            queue.post(source, item.cid, item.status, item.dnr, item.result)
    _require((0 in completions) == (0 in submissions) == bool(completions), "the admin queue")
    shadow = None
    if saved.shadow is not None:
        _require(all(_is_page(one) for one in saved.shadow), "the shadow doorbells")
        shadow = ShadowDoorbells(dma, *saved.shadow)
    queues.restore(completions.values(), submissions.values(), shadow, saved.last_served)


def _completion_queue(queue: CompletionQueue) -> SavedCompletionQueue:
    waiting = tuple(Waiting(one[0].qid, *one[1:]) for one in queue.backlog)
    interrupt = queue.interrupt
    return SavedCompletionQueue(
        queue.qid,
        queue.base,
        queue.size,
        interrupt.vector,
        interrupt.enabled,
        queue.head,
        queue.tail,
        queue.phase,
        waiting,
    )


def _require_queue(
    one: SavedCompletionQueue | SavedSubmissionQueue, known: bool, pairs: int, entries: int
) -> None:
    _require(
        not known
        and one.qid < pairs
        and 2 <= one.size <= entries
        and one.head < one.size
        and one.tail < one.size
        and _is_page(one.base),
        f"queue {one.qid}",
    )


def _is_page(address: int) -> bool:
    return address % PAGE_SIZE == 0


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"{what} makes no sense")

"""Shadow doorbells: pages in which a host stores doorbell values instead of writing registers.

It writes the register only when it passes the value in the event index page, which the controller
does not update while it polls the shadow page.

Source: NVM Express Base Specification 2.0, section 5.8 (Doorbell Buffer Config) and annex B.5."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from nvme_spec.registers import DOORBELL_WIDTH
from potash_device.controller.cmb import NO_USE
from potash_device.controller.dma import PAGE_SIZE, DmaEngine
from potash_device.controller.queues import CompletionQueue, SubmissionQueue
from pyvfio_user.memory import AccessFault

_fence = threading.Lock()


@dataclass(eq=False, repr=False)
class ShadowDoorbells:
    """The two pages of one host, as 32-bit words: a queue's tail, then its head, for each queue."""

    dma: DmaEngine
    shadow: int
    event_index: int
    _bytes: memoryview | None = None
    _values: memoryview | None = None
    _events: memoryview | None = None
    _used: int = 0
    """Bytes of the page up to the last queue that was adopted."""
    _polled: memoryview | None = None
    """The page up to there."""
    _seen: bytes | memoryview = b""

    def bind(self) -> None:
        """Resolve the memory. Raises AccessFault when the host has not mapped it, or cannot."""
        self._bytes = self._page(self.shadow)
        self._polled = self._bytes[: self._used]
        self._values = self._bytes.cast("I")
        self._events = self._page(self.event_index).cast("I")

    def _page(self, address: int) -> memoryview:
        page = self.dma.mapped(address, PAGE_SIZE, write=True, use=NO_USE)
        if page is None:
            raise AccessFault(address, PAGE_SIZE, "doorbells cannot be polled by messages")
        return page

    def unbind(self) -> None:
        self._bytes = self._polled = self._values = self._events = None

    def adopt_submission(self, queue: SubmissionQueue) -> None:
        """Take a queue over that has lived by its doorbell so far: the page starts at its tail."""
        values, events = self._pages()
        values[2 * queue.qid] = queue.tail
        events[2 * queue.qid] = queue.tail
        self._adopted(queue.qid)

    def adopt_completion(self, queue: CompletionQueue) -> None:
        """Take over a completion queue, which from now on is never rung unless it is full."""
        values, events = self._pages()
        values[2 * queue.qid + 1] = queue.head
        events[2 * queue.qid + 1] = queue.head
        self._adopted(queue.qid)

    def follow(self, qids: Iterable[int]) -> None:
        """Go on with queues whose values are in the pages already."""
        for qid in qids:
            self._adopted(qid)

    def changed(self) -> memoryview | None:
        """All values, if the host has stored any doorbell since the last call; else None.

        One comparison for all queues: reading each of 64 takes 20 µs, at the page 0.1 µs.
        """
        if not self.has_changed():
            return None
        assert self._polled is not None
        self._seen = bytes(self._polled)
        return self._values

    def has_changed(self) -> bool:
        """True if `changed` will give the values; it stays so until then."""
        polled = self._polled
        if polled is None:
            self.bind()
            polled = self._polled
        return polled != self._seen

    def poll_again(self) -> None:
        """Have the next `changed` give the values."""
        self._seen = b""

    def head(self, queue: CompletionQueue) -> int:
        return int(self._pages()[0][2 * queue.qid + 1])

    def arm(self, queue: SubmissionQueue) -> bool:
        """Ask to be rung for the next entry; True when there is one already.

        The event index must be visible before the tail is read again, or a host that stored its
        tail in between would neither ring nor be seen: hence the fence.
        """
        values, events = self._pages()
        events[2 * queue.qid] = queue.tail
        with _fence:
            pass
        return values[2 * queue.qid] not in (queue.tail, queue.refused)

    def arm_head(self, queue: CompletionQueue) -> bool:
        """Ask to be rung when a full queue gets room; True when it has some already."""
        values, events = self._pages()
        events[2 * queue.qid + 1] = queue.head
        with _fence:
            pass
        return values[2 * queue.qid + 1] not in (queue.head, queue.refused)

    def _adopted(self, qid: int) -> None:
        self._used = max(self._used, 2 * DOORBELL_WIDTH * (qid + 1))
        if self._bytes is not None:
            self._polled = self._bytes[: self._used]
        self.poll_again()

    def _pages(self) -> tuple[memoryview, memoryview]:
        if self._values is None or self._events is None:
            self.bind()
        assert self._values is not None and self._events is not None
        return self._values, self._events

"""A transport that records what the SDK asks of it and answers from a script."""

from collections.abc import Callable, Iterable

from potash.sdk.transport import Completion, Ended, Request

Answer = Completion | Exception | Callable[[Request], Completion]


class RecordingTransport:
    """Answers each command with the next of `answers`; data that goes out is copied.

    `events` are the events that it reports, if it reports any at all.
    """

    def __init__(
        self,
        answers: Iterable[Answer] = (),
        *,
        nsid: int | None = 1,
        max_transfer: int = 1 << 20,
        block_device: int | None = None,
        events: Iterable[int | None] | None = None,
    ) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []
        self.timeouts: list[float] = []
        self.nsid = nsid
        self.max_transfer = max_transfer
        self.queue_depth = 1
        self.block_device = block_device
        self.reports_events = events is not None
        self.carries_cdw4 = True
        self.events = list(events or ())
        self.awaited: list[float] = []
        self.resets = 0
        self.closed = False

    def submit(self, request: Request, timeout: float) -> Ended:
        if request.data_out is not None:
            request = request._replace(data_out=bytes(request.data_out))
        self.requests.append(request)
        self.timeouts.append(timeout)
        answer = self.answers.pop(0) if self.answers else Completion(0)
        if isinstance(answer, Completion | Exception):
            return Ended(answer)
        return Ended(answer(request))

    def await_event(self, timeout: float) -> int | None:
        self.awaited.append(timeout)
        return self.events.pop(0) if self.events else None

    def reset(self) -> None:
        self.resets += 1

    def close(self) -> None:
        self.closed = True


def data(content: bytes) -> Callable[[Request], Completion]:
    """An answer that gives as much of `content` as is asked for, zeroes behind its end."""

    def answer(request: Request) -> Completion:
        length = request.data_in_length
        return Completion(0, content[:length].ljust(length, b"\0"))

    return answer

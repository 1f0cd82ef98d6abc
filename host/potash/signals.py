"""Signals that are handled in another way for a while."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Handle these signals while the block lasts; one that is ignored, as under nohup(1), stays so.

    Only the main thread may enter it (Python's `signal`).
    """
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

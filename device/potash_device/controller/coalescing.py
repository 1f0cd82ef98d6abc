"""Interrupt coalescing: which interrupts are due, at once or as the host has configured.

A host that has set a threshold and a time gets one interrupt for as many completions, or when the
oldest has waited for that time. The admin queue, failed commands and exempted vectors are excluded.

Source: NVM Express Base Specification 2.0, section 5.27.1.6 and 5.27.1.7."""

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    """Completions of one vector that the host has not been told of."""

    count: int
    until: float


class Coalescing:
    """The vectors of one controller; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: set[int] = set()
        self._held: dict[int, _Held] = {}
        self._threshold = 1
        self._time = 0.0
        self._exempt: Collection[int] = frozenset()

    def configure(self, threshold: int, seconds: float, exempt: Collection[int]) -> None:
        """Hold back until there are `threshold` completions, at most for `seconds`.

        A threshold of 1 or a time of 0 holds nothing back. What is held already goes out.
        """
        self._due.update(self._held)
        self._held.clear()
        self._threshold = threshold if seconds > 0 else 1
        self._time = seconds
        self._exempt = exempt

    def announce(self, vector: int, count: int = 1, *, urgent: bool = False) -> None:
        """`count` completions were posted of which `vector` is to tell; at once if `urgent`."""
        if self._threshold == 1 or urgent or vector in self._exempt:
            self._due.add(vector)
            return
        held = self._held.setdefault(vector, _Held(0, 0.0))
        if not held.count:
            held.until = self._clock() + self._time
        held.count += count

    def take_due(self) -> set[int]:
        """The vectors to be interrupted now."""
        if self._held:
            now = self._clock()
            for vector, held in self._held.items():
                if held.count >= self._threshold or now >= held.until:
                    self._due.add(vector)
        due = self._due
        if due:
            self._due = set()
            for vector in due:
                self._held.pop(vector, None)
        return due

    @property
    def held(self) -> set[int]:
        """The vectors that are due now or later."""
        return self._due | set(self._held)

    @property
    def timeout(self) -> float | None:
        """Seconds until the next interrupt is due; None when none is held back."""
        if not self._held:
            return None
        return max(0.0, min(held.until for held in self._held.values()) - self._clock())

    def clear(self) -> None:
        self._due.clear()
        self._held.clear()

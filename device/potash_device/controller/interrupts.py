"""The controller's interrupt lines: MSI-X vectors, which stay pending until they can be sent.

An interrupt that is raised while its vector has no eventfd, while bus mastering is off or while
INTMS masks it (MSI) is in the Pending Bit Array until it can be sent. A host that has set a
threshold and a time gets one interrupt for as many completions, or when the oldest has waited for
that time; the admin queue, failed commands and exempted vectors are excluded.

Source: PCI Local Bus Specification 3.0, section 6.8.2; NVMe Base 2.0, section 3.1.3.3 (INTMS),
5.27.1.6 and 5.27.1.7 (Interrupt Coalescing)."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from potash_device.trace import Trace

Signal = Callable[[int], bool]
"""Delivers one vector; False when nobody listens to it yet."""


def _nobody(vector: int) -> bool:
    return False


class InterruptLines:
    """`vectors` edge-triggered lines and their pending bits."""

    def __init__(self, vectors: int, trace: Trace | None = None) -> None:
        self.vectors = vectors
        self._trace = trace if trace is not None else Trace()
        self._listener: Signal = _nobody
        self._signal: Signal = _nobody
        """The function that an interrupt calls at present."""
        self._mastering = False
        self._mask = 0
        self._pending: set[int] = set()
        self._sent: set[int] = set()
        """Vectors that were signalled since bus mastering was allowed."""
        self.fired = 0
        """Interrupts since power-on."""

    def connect(self, signal: Signal) -> None:
        """A host is there: deliver through `signal` from now on."""
        self._listener = signal
        self._choose()

    def disconnect(self) -> None:
        """Drop interrupts that were not sent, as the host is gone."""
        self.clear()
        self.connect(_nobody)

    def master(self, allowed: bool) -> None:
        """The host allows the function to write to its memory, or no longer.

        An interrupt that was sent just before a pause may be dropped on its way (QEMU does), so
        what was sent goes out once more after it; one too many is nothing to a host.
        """
        if not allowed:
            self._pending |= self._sent
            self._sent.clear()
        self._mastering = allowed
        self._choose()

    def mask(self, vectors: int) -> None:
        """Hold back the vectors whose bits are set, and no other."""
        self._mask = vectors
        self._choose()

    def _choose(self) -> None:
        if not self._mastering:
            self._signal = _nobody
        else:
            self._signal = self._unmasked if self._mask else self._listener
        self.deliver_pending()

    def _unmasked(self, vector: int) -> bool:
        return not self._mask >> vector & 1 and self._listener(vector)

    def fire(self, vector: int) -> None:
        """Interrupt the host, now or as soon as it listens to `vector`."""
        self.fired += 1
        if self._trace.sink is not None:
            self._trace.sink("board.interrupt", {"vector": vector})
        (self._sent if self._signal(vector) else self._pending).add(vector)

    def deliver_pending(self) -> None:
        """The host has changed its vectors: give it what was waiting for that."""
        sent = {vector for vector in self._pending if self._signal(vector)}
        self._pending -= sent
        self._sent |= sent

    def clear(self) -> None:
        self._pending.clear()
        self._sent.clear()

    def save(self) -> tuple[int, ...]:
        """The vectors whose interrupts the host may not have received."""
        return tuple(sorted(self._pending | self._sent))

    def hold(self, vectors: Iterable[int]) -> None:
        """The host is to be interrupted by these vectors, but not now."""
        self._pending.update(vectors)

    def load(self, vectors: Iterable[int]) -> None:
        """Interrupt the host by these vectors as soon as it listens, once more perhaps."""
        self.clear()
        self._pending.update(vectors)
        self.deliver_pending()

    def pending_bits(self) -> bytes:
        """The Pending Bit Array: one bit a vector, in 64-bit words."""
        words = -(-self.vectors // 64)
        return sum(1 << vector for vector in self._pending).to_bytes(8 * words, "little")


@dataclass(slots=True)
class _Held:
    """Completions of one vector that the host has not been interrupted for."""

    count: int
    until: float


class Coalescing:
    """The vectors of one controller; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.due: set[int] = set()
        """The vectors to signal now."""
        self.holds: dict[int, _Held] = {}
        """The vectors of completions that are held back."""
        self._threshold = 1
        self._time = 0.0
        self._exempt: Collection[int] = frozenset()

    def configure(self, threshold: int, seconds: float, exempt: Collection[int]) -> None:
        """Hold back until there are `threshold` completions, at most for `seconds`.

        A threshold of 1 or a time of 0 holds nothing back. What is held already goes out.
        """
        self.due.update(self.holds)
        self.holds.clear()
        self._threshold = threshold if seconds > 0 else 1
        self._time = seconds
        self._exempt = exempt

    def announce(self, vector: int, count: int = 1, *, urgent: bool = False) -> None:
        """Interrupt for `count` posted completions of `vector`; immediately if `urgent`."""
        if self._threshold == 1 or urgent or vector in self._exempt:
            self.due.add(vector)
            return
        held = self.holds.setdefault(vector, _Held(0, 0.0))
        if not held.count:
            held.until = self._clock() + self._time
        held.count += count

    def take_due(self) -> set[int]:
        """The vectors to be interrupted now."""
        if self.holds:
            now = self._clock()
            for vector, held in self.holds.items():
                if held.count >= self._threshold or now >= held.until:
                    self.due.add(vector)
        due = self.due
        if due:
            self.due = set()
            for vector in due:
                self.holds.pop(vector, None)
        return due

    @property
    def held(self) -> set[int]:
        """The vectors that are due now or later."""
        return self.due | set(self.holds)

    @property
    def timeout(self) -> float | None:
        """Seconds until the next interrupt is due; None when none is held back."""
        if not self.holds:
            return None
        return max(0.0, min(held.until for held in self.holds.values()) - self._clock())

    def clear(self) -> None:
        self.due.clear()
        self.holds.clear()

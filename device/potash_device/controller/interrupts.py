"""The controller's interrupt lines: MSI-X vectors, latched until a host can hear them.

A host enables a vector in steps: first without a way to signal it, then with an eventfd, and it may
take the eventfd away and bring another. What is raised in between stays pending, shows in the
Pending Bit Array, and goes out when the eventfd arrives, so that no completion waits unannounced.

Source: PCI Local Bus Specification 3.0, section 6.8.2.
"""

from collections.abc import Callable, Iterable

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
        self._signal: Signal = _nobody
        self._pending: set[int] = set()
        self.fired = 0
        """Interrupts since power-on."""

    def connect(self, signal: Signal) -> None:
        """A host is there: deliver through `signal` from now on."""
        self._signal = signal
        self.deliver_pending()

    def disconnect(self) -> None:
        """The host is gone, and what it had not heard with it."""
        self._signal = _nobody
        self._pending.clear()

    def fire(self, vector: int) -> None:
        """Interrupt the host, now or as soon as it listens to `vector`."""
        self.fired += 1
        if self._trace.sink is not None:
            self._trace.sink("board.interrupt", {"vector": vector})
        if not self._signal(vector):
            self._pending.add(vector)

    def fire_all(self, vectors: Iterable[int]) -> None:
        """Interrupt the host once on each of `vectors`."""
        for vector in vectors:
            self.fire(vector)

    def deliver_pending(self) -> None:
        """The host has changed its vectors: give it what was waiting for that."""
        self._pending = {vector for vector in self._pending if not self._signal(vector)}

    def clear(self) -> None:
        """Forget what is pending, as a reset of the controller does."""
        self._pending.clear()

    def pending_bits(self) -> bytes:
        """The Pending Bit Array: one bit a vector, in 64-bit words."""
        words = -(-self.vectors // 64)
        return sum(1 << vector for vector in self._pending).to_bytes(8 * words, "little")

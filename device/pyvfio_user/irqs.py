"""Interrupt lines: how the device interrupts its client, one eventfd for each.

A client enables an interrupt first without a way to signal it, then with an eventfd. `trigger` says
whether anybody could be told, so that a device can keep what is not to be lost.

Source: QEMU's `docs/interop/vfio-user.rst`, section "VFIO_USER_DEVICE_SET_IRQS"."""

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyvfio_user.descriptors import is_eventfd
from pyvfio_user.payloads import SetIrqs
from pyvfio_user.protocol import IrqFlags, IrqSetFlags

_DISABLE = (IrqSetFlags.DATA_NONE | IrqSetFlags.ACTION_TRIGGER, 0, 0)
"""The flags, start and count that disable all interrupts of a kind."""


@dataclass(frozen=True)
class Irq:
    """A kind of interrupt: how many there are of it, and what a client may do with them.

    With NORESIZE they are set up as a set: once some are enabled, those behind the last of them can
    be enabled only after all have been disabled. As a message has room for few eventfds, setting up
    goes on with the messages that begin where the one before ended.
    """

    count: int
    flags: IrqFlags = IrqFlags.EVENTFD


class _Line:
    """One interrupt that the client has enabled, with its eventfd or without one."""

    __slots__ = ("_eventfd", "signal")

    def __init__(self, eventfd: int | None) -> None:
        self._eventfd = eventfd
        self.signal: Callable[[], None] | None = None
        """Adds one to the eventfd."""
        if eventfd is not None:
            # It needs ctypes, which clients, who import this package too, are to be spared.
            from pyvfio_user.signalling import Signal

            self.signal = Signal(eventfd)

    def close(self) -> None:
        self.signal = None
        if self._eventfd is not None:
            os.close(self._eventfd)
            self._eventfd = None


class InterruptLines:
    """The interrupts of one client, by kind (index) and number (vector)."""

    def __init__(self, irqs: Mapping[int, Irq]) -> None:
        self._irqs = irqs
        self._lines: dict[int, dict[int, _Line]] = {index: {} for index in irqs}
        self._masked: dict[int, set[int]] = {index: set() for index in irqs}
        self._set_end: dict[int, int] = {}
        """One past the last interrupt that a client has enabled, by kind."""
        self._set_next: dict[int, int] = {}
        """End of the range that the last message enabled, by kind; removed by any other message."""
        self._mask_events: dict[tuple[int, bool], dict[int, _Line]] = {}
        """Eventfds to signal when interrupts of a kind are masked, and when they are unmasked."""
        self._automasked = {i for i, irq in irqs.items() if irq.flags & IrqFlags.AUTOMASKED}

    def trigger(self, index: int, vector: int) -> bool:
        """Interrupt the client; False when it cannot hear: not enabled, no eventfd, masked. Raises
        KeyError for a kind of interrupt that the device does not have."""
        line = self._lines[index].get(vector)
        if line is None or line.signal is None or vector in self._masked[index]:
            return False
        line.signal()
        if index in self._automasked:
            self._hold(index, (vector,), masked=True)
        return True

    def enabled(self, index: int, vector: int) -> bool:
        """True if the client has enabled this interrupt, even if it has no eventfd yet."""
        return vector in self._lines[index]

    def masked(self, index: int, vector: int) -> bool:
        """True if this interrupt is masked, by the client or by itself (automasked)."""
        return vector in self._masked[index]

    def set(self, request: SetIrqs, eventfds: Sequence[int]) -> None:
        """Do what a DEVICE_SET_IRQS asks.

        `eventfds` stay the caller's: what is kept is duplicated. Raises OSError, with EINVAL for
        what the device does not have or the specification does not allow, and changes nothing then.
        """
        irq = self._irqs.get(request.index)
        if irq is None or request.end > irq.count:
            raise _invalid(
                f"the device has no interrupts {request.start} to {request.end} of kind"
                f" {request.index}"
            )
        action = (request.flags, request.start, request.count)
        if not request.count and action != _DISABLE:
            raise _invalid("a DEVICE_SET_IRQS names no interrupt")
        if request.flags & IrqSetFlags.DATA_EVENTFD:
            self._set_eventfds(request, irq, eventfds)
            return
        if eventfds:
            raise _invalid("eventfds came with a DEVICE_SET_IRQS that has no use for them")
        if request.flags & IrqSetFlags.DATA_NONE:
            chosen = list(range(request.start, request.end))
        else:
            chosen = [request.start + i for i, wanted in enumerate(request.data) if wanted]
        self._set_next.pop(request.index, None)
        if action == _DISABLE:
            self._disable(request.index)
        elif request.flags & IrqSetFlags.ACTION_TRIGGER:
            for vector in chosen:
                self.trigger(request.index, vector)
        else:
            self._mask_or_unmask(request, irq, chosen)

    def close(self) -> None:
        """Close every eventfd; nothing can be triggered from now on."""
        for index in self._lines:
            self._disable(index)

    def _set_eventfds(self, request: SetIrqs, irq: Irq, eventfds: Sequence[int]) -> None:
        """Give interrupts their eventfds, or those of masks; without any, enable them with none."""
        if not irq.flags & IrqFlags.EVENTFD:
            raise _invalid(f"interrupts of kind {request.index} cannot signal an eventfd")
        trigger = request.flags & IrqSetFlags.ACTION_TRIGGER
        if not trigger:
            _require_maskable(request, irq)
        end = self._set_end.get(request.index, 0)
        if (
            trigger
            and irq.flags & IrqFlags.NORESIZE
            and 0 < end < request.end
            and request.start != self._set_next.get(request.index)
        ):
            raise _invalid(f"only {end} interrupts of kind {request.index} have been set up")
        if len(eventfds) not in (0, request.count):
            raise _invalid(f"{len(eventfds)} eventfds came for {request.count} interrupts")
        lines = [_Line(fd) for fd in _duplicated(eventfds)] or [
            _Line(None) for _ in range(request.count)
        ]
        if trigger:
            assigned = self._lines[request.index]
            self._set_end[request.index] = max(end, request.end)
            self._set_next[request.index] = request.end
        else:
            masks = bool(request.flags & IrqSetFlags.ACTION_MASK)
            assigned = self._mask_events.setdefault((request.index, masks), {})
        for vector, line in enumerate(lines, request.start):
            before = assigned.get(vector)
            assigned[vector] = line
            if before is not None:
                before.close()

    def _mask_or_unmask(self, request: SetIrqs, irq: Irq, chosen: Sequence[int]) -> None:
        _require_maskable(request, irq)
        masked = bool(request.flags & IrqSetFlags.ACTION_MASK)
        self._hold(request.index, chosen, masked=masked)

    def _hold(self, index: int, vectors: Iterable[int], *, masked: bool) -> None:
        """Mask or unmask interrupts, and tell who wants to know of those that were not so."""
        held = self._masked[index]
        changed = {vector for vector in vectors if (vector in held) is not masked}
        held ^= changed
        for vector, line in self._mask_events.get((index, masked), {}).items():
            if vector in changed and line.signal is not None:
                line.signal()

    def _disable(self, index: int) -> None:
        masks = (self._mask_events.pop((index, masked), {}) for masked in (False, True))
        for lines in (self._lines[index], *masks):
            for line in lines.values():
                line.close()
            lines.clear()
        self._set_end.pop(index, None)
        self._set_next.pop(index, None)
        self._masked[index].clear()


def _require_maskable(request: SetIrqs, irq: Irq) -> None:
    if not irq.flags & IrqFlags.MASKABLE:
        raise _invalid(f"interrupts of kind {request.index} cannot be masked")


def _duplicated(eventfds: Sequence[int]) -> list[int]:
    """Descriptors of our own for `eventfds`, or OSError and none."""
    for fd in eventfds:
        if not is_eventfd(fd):
            raise _invalid("a descriptor that came for an interrupt is not an eventfd")
    mine: list[int] = []
    try:
        for fd in eventfds:
            mine.append(os.dup(fd))
    except OSError:
        for fd in mine:
            os.close(fd)
        raise
    return mine


def _invalid(reason: str) -> OSError:
    return OSError(errno.EINVAL, reason)

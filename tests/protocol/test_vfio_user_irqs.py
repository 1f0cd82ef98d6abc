"""Interrupt lines: what DEVICE_SET_IRQS may ask, and who hears a trigger."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
from collections.abc import Iterator, Sequence

import pytest

from pyvfio_user import signalling
from pyvfio_user.irqs import InterruptLines, Irq
from pyvfio_user.payloads import SetIrqs
from pyvfio_user.protocol import IrqFlags
from pyvfio_user.signalling import Signal
from support.vfio_user import eventfd_value, leaked, open_descriptors

# Flags of vfio-user.rst, section "VFIO_USER_DEVICE_SET_IRQS".
NONE, BOOL, EVENTFD, MASK, UNMASK, TRIGGER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20

FULL = 0xFFFF_FFFF_FFFF_FFFE
"""The largest value of an eventfd's counter (eventfd(2)); a write to it waits."""

INTX, MSIX, SILENT = 0, 2, 3
IRQS = {
    INTX: Irq(1, IrqFlags.EVENTFD | IrqFlags.MASKABLE | IrqFlags.AUTOMASKED),
    MSIX: Irq(8, IrqFlags.EVENTFD | IrqFlags.NORESIZE),
    SILENT: Irq(1, IrqFlags(0)),
}


@pytest.fixture
def lines() -> Iterator[InterruptLines]:
    lines = InterruptLines(IRQS)
    yield lines
    lines.close()


@pytest.fixture
def eventfds() -> Iterator[list[int]]:
    fds = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(8)]
    yield fds
    for fd in fds:
        os.close(fd)


def _set(
    lines: InterruptLines,
    flags: int,
    index: int,
    start: int,
    count: int,
    eventfds: Sequence[int] = (),
    data: bytes = b"",
) -> None:
    lines.set(SetIrqs(20, flags, index, start, count, data), eventfds)


def test_a_trigger_reaches_the_eventfd_of_its_vector(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    _set(lines, EVENTFD | TRIGGER, MSIX, 2, 3, eventfds[:3])
    assert lines.trigger(MSIX, 3)
    assert lines.trigger(MSIX, 3)
    assert lines.trigger(MSIX, 4)
    assert [eventfd_value(fd) for fd in eventfds[:3]] == [0, 2, 1]
    assert not lines.trigger(MSIX, 1)
    assert not lines.trigger(MSIX, 5)
    assert not lines.trigger(MSIX, 100)


def test_an_interrupt_enabled_without_an_eventfd_is_enabled_and_not_heard(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    """QEMU enables a vector so first, and brings the eventfd later."""
    assert not lines.enabled(MSIX, 0)
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1)
    assert lines.enabled(MSIX, 0)
    assert not lines.enabled(MSIX, 1)
    assert not lines.trigger(MSIX, 0)
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1, eventfds[:1])
    assert lines.trigger(MSIX, 0)
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1)
    assert not lines.trigger(MSIX, 0)
    assert eventfd_value(eventfds[0]) == 1


def test_larger_sets_arrive_in_chunks(lines: InterruptLines, eventfds: list[int]) -> None:
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 3, eventfds[:3])
    _set(lines, EVENTFD | TRIGGER, MSIX, 3, 2)
    _set(lines, EVENTFD | TRIGGER, MSIX, 5, 3, eventfds[5:8])
    heard = [lines.trigger(MSIX, vector) for vector in range(8)]
    assert heard == [True, True, True, False, False, True, True, True]
    assert [eventfd_value(fd) for fd in eventfds] == [1, 1, 1, 0, 0, 1, 1, 1]


def test_a_set_that_cannot_be_resized_is_disabled_first(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    """NORESIZE: "setup interrupts as a set, and new sub-indexes cannot be enabled without disabling
    the entire type"; a set takes several messages where they have room for few eventfds."""
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 2, eventfds[:2])
    _set(lines, EVENTFD | TRIGGER, MSIX, 2, 2, eventfds[2:4])
    for start, count in ((5, 1), (3, 2), (6, 2)):
        with pytest.raises(OSError) as caught:
            _set(lines, EVENTFD | TRIGGER, MSIX, start, count, eventfds[:count])
        assert caught.value.errno == errno.EINVAL
    _set(lines, EVENTFD | TRIGGER, MSIX, 1, 2, eventfds[5:7])
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1)
    with pytest.raises(OSError):
        _set(lines, EVENTFD | TRIGGER, MSIX, 4, 1, eventfds[:1])
    _set(lines, EVENTFD | TRIGGER, MSIX, 3, 1, eventfds[3:4])
    _set(lines, NONE | TRIGGER, MSIX, 3, 1)
    with pytest.raises(OSError):
        _set(lines, EVENTFD | TRIGGER, MSIX, 4, 1, eventfds[:1])
    assert [lines.trigger(MSIX, vector) for vector in range(5)] == [False, True, True, True, False]
    _set(lines, NONE | TRIGGER, MSIX, 0, 0)
    _set(lines, EVENTFD | TRIGGER, MSIX, 4, 1, eventfds[:1])


def test_no_data_and_no_interrupts_disable_them_all(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 8, eventfds)
    _set(lines, EVENTFD | TRIGGER, INTX, 0, 1, eventfds[:1])
    _set(lines, NONE | TRIGGER, MSIX, 0, 0)
    assert not any(lines.enabled(MSIX, vector) for vector in range(8))
    assert not any(lines.trigger(MSIX, vector) for vector in range(8))
    assert lines.trigger(INTX, 0)


def test_a_client_may_trigger_interrupts_itself(lines: InterruptLines, eventfds: list[int]) -> None:
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 8, eventfds)
    _set(lines, NONE | TRIGGER, MSIX, 1, 2)
    assert [eventfd_value(fd) for fd in eventfds] == [0, 1, 1, 0, 0, 0, 0, 0]
    _set(lines, BOOL | TRIGGER, MSIX, 2, 3, data=b"\1\0\1")
    assert [eventfd_value(fd) for fd in eventfds] == [0, 0, 1, 0, 1, 0, 0, 0]


def test_a_masked_interrupt_waits_and_an_automasked_one_masks_itself(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    _set(lines, EVENTFD | TRIGGER, INTX, 0, 1, eventfds[:1])
    assert lines.trigger(INTX, 0)
    assert lines.masked(INTX, 0)
    assert not lines.trigger(INTX, 0)
    _set(lines, NONE | UNMASK, INTX, 0, 1)
    assert lines.trigger(INTX, 0)
    _set(lines, BOOL | UNMASK, INTX, 0, 1, data=b"\0")
    assert lines.masked(INTX, 0)
    _set(lines, BOOL | UNMASK, INTX, 0, 1, data=b"\1")
    _set(lines, NONE | MASK, INTX, 0, 1)
    assert not lines.trigger(INTX, 0)
    assert eventfd_value(eventfds[0]) == 2


def test_disabling_unmasks(lines: InterruptLines, eventfds: list[int]) -> None:
    _set(lines, EVENTFD | TRIGGER, INTX, 0, 1, eventfds[:1])
    assert lines.trigger(INTX, 0)
    _set(lines, NONE | TRIGGER, INTX, 0, 0)
    _set(lines, EVENTFD | TRIGGER, INTX, 0, 1, eventfds[:1])
    assert lines.trigger(INTX, 0)


@pytest.mark.parametrize(
    ("flags", "index", "start", "count", "given"),
    [
        (EVENTFD | TRIGGER, 1, 0, 1, 1),  # a kind that the device does not have
        (EVENTFD | TRIGGER, MSIX, 8, 1, 1),
        (EVENTFD | TRIGGER, MSIX, 7, 2, 2),
        (EVENTFD | TRIGGER, MSIX, 0xFFFF_FFFF, 1, 1),
        (EVENTFD | TRIGGER, MSIX, 0, 0xFFFF_FFFF, 0),
        (EVENTFD | TRIGGER, MSIX, 0, 0, 0),
        (EVENTFD | TRIGGER, MSIX, 0, 2, 1),  # neither none nor one for each
        (EVENTFD | TRIGGER, MSIX, 0, 1, 2),
        (EVENTFD | TRIGGER, SILENT, 0, 1, 1),
        (EVENTFD | MASK, MSIX, 0, 1, 1),
        (EVENTFD | UNMASK, MSIX, 0, 1, 1),
        (EVENTFD | MASK, INTX, 0, 1, 2),
        (NONE | TRIGGER, MSIX, 0, 1, 1),  # eventfds that nobody asked for
        (NONE | TRIGGER, MSIX, 3, 0, 0),
        (NONE | MASK, INTX, 0, 0, 0),
        (NONE | UNMASK, INTX, 0, 0, 0),
        (NONE | TRIGGER, MSIX, 0, 9, 0),
        (BOOL | TRIGGER, MSIX, 0, 0, 0),
        (NONE | MASK, MSIX, 0, 1, 0),  # not maskable
        (NONE | UNMASK, MSIX, 0, 1, 0),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    lines: InterruptLines,
    eventfds: list[int],
    flags: int,
    index: int,
    start: int,
    count: int,
    given: int,
) -> None:
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1, eventfds[:1])
    held = open_descriptors()
    with pytest.raises(OSError) as caught:
        _set(lines, flags, index, start, count, eventfds[1 : 1 + given])
    assert caught.value.errno == errno.EINVAL
    assert caught.value.strerror
    assert not leaked(held)
    assert lines.trigger(MSIX, 0)
    assert [eventfd_value(fd) for fd in eventfds] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert not any(lines.enabled(MSIX, vector) for vector in range(1, 8))


def test_masks_have_eventfds_of_their_own(lines: InterruptLines, eventfds: list[int]) -> None:
    """ "The server may mask/unmask an IRQ which will write 1 to the corresponding mask/unmask
    eventfd, if there is one."""
    fired, masked, unmasked, other = eventfds[:4]

    def heard() -> list[int]:
        return [eventfd_value(fd) for fd in (fired, masked, unmasked, other)]

    before = open_descriptors()
    _set(lines, EVENTFD | TRIGGER, INTX, 0, 1, [fired])
    _set(lines, EVENTFD | MASK, INTX, 0, 1, [other])
    _set(lines, EVENTFD | MASK, INTX, 0, 1, [masked])
    _set(lines, EVENTFD | UNMASK, INTX, 0, 1, [unmasked])
    assert lines.trigger(INTX, 0)  # which masks itself
    assert heard() == [1, 1, 0, 0]
    _set(lines, NONE | MASK, INTX, 0, 1)
    assert heard() == [0, 0, 0, 0]
    _set(lines, NONE | UNMASK, INTX, 0, 1)
    _set(lines, BOOL | UNMASK, INTX, 0, 1, data=b"\1")
    assert heard() == [0, 0, 1, 0]
    _set(lines, BOOL | MASK, INTX, 0, 1, data=b"\1")
    assert heard() == [0, 1, 0, 0]
    _set(lines, EVENTFD | UNMASK, INTX, 0, 1)
    _set(lines, NONE | UNMASK, INTX, 0, 1)
    assert heard() == [0, 0, 0, 0]
    _set(lines, NONE | TRIGGER, INTX, 0, 0)
    assert not leaked(before)


def test_a_descriptor_that_is_no_eventfd_is_refused(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    reader, writer = os.pipe()
    try:
        for fds in ([writer], [eventfds[0], writer]):
            with pytest.raises(OSError) as caught:
                _set(lines, EVENTFD | TRIGGER, MSIX, 0, len(fds), fds)
            assert caught.value.errno == errno.EINVAL
            assert not lines.enabled(MSIX, 0)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_full_eventfd_that_would_block_does_not_stop_the_device(lines: InterruptLines) -> None:
    blocking = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        os.eventfd_write(blocking, FULL)
        _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1, [blocking])
        for _ in range(200):
            assert lines.trigger(MSIX, 0)
        assert os.eventfd_read(blocking) >= FULL
        for _ in range(200):
            assert lines.trigger(MSIX, 0)
        assert os.eventfd_read(blocking) == 200
    finally:
        os.close(blocking)


class FilledMeanwhile:
    """A poll of an eventfd whose other owner fills it right after the poll."""

    def register(self, fd: int, events: int) -> None:
        self.fd = fd

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.fd, FULL)
        return [(self.fd, select.POLLOUT)]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_eventfd_that_is_filled_at_the_worst_moment_has_been_signalled(
    lines: InterruptLines, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    monkeypatch.setattr(select, "poll", FilledMeanwhile)
    if not asynchronous:
        monkeypatch.setattr(signalling, "_context", lambda: None)
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1, [fd])
        assert lines.trigger(MSIX, 0)
        assert eventfd_value(fd) > 0
    finally:
        os.close(fd)


def test_signals_wait_for_nobody_who_fills_the_counter_all_the_time(lines: InterruptLines) -> None:
    if signalling._context() is None:
        pytest.skip("this kernel gives no asynchronous requests")
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 1, [fd])
    filler = os.fork()
    if filler == 0:
        while True:
            os.eventfd_write(fd, FULL)
            os.eventfd_read(fd)
    try:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        for _ in range(5000):
            assert lines.trigger(MSIX, 0)
        # A system call that waits gives the processor away.
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 20
    finally:
        os.kill(filler, signal.SIGKILL)
        os.waitpid(filler, 0)
        os.close(fd)


def test_a_process_that_was_forked_signals_by_itself() -> None:
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    Signal(fd)()
    child = os.fork()
    if child == 0:
        Signal(fd)()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.eventfd_read(fd) == 2
    os.close(fd)


def test_the_caller_s_descriptors_stay_the_caller_s_and_replaced_ones_are_closed(
    lines: InterruptLines,
) -> None:
    before = open_descriptors()
    for _ in range(3):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        _set(lines, EVENTFD | TRIGGER, MSIX, 0, 2, [fd, fd])
        assert lines.trigger(MSIX, 1)
        assert eventfd_value(fd) == 1
        os.close(fd)
    assert lines.trigger(MSIX, 0)
    assert len(leaked(before)) == 2
    lines.close()
    assert not leaked(before)
    assert not lines.trigger(MSIX, 0)


def test_descriptors_that_are_kept_are_not_inherited(
    lines: InterruptLines, eventfds: list[int]
) -> None:
    before = open_descriptors()
    _set(lines, EVENTFD | TRIGGER, MSIX, 0, 2, eventfds[:2])
    kept = leaked(before)
    assert len(kept) == 2
    assert not any(os.get_inheritable(fd) for fd in kept)

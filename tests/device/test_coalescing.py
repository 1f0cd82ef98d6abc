"""One interrupt for several completions, where the host wants that and where it may be."""

from potash_device.controller.interrupts import Coalescing

MS = 1e-3


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def coalescing(threshold: int, seconds: float, exempt: set[int] | None = None) -> Coalescing:
    one = Coalescing(clock)
    one.configure(threshold, seconds, exempt or set())
    return one


clock = Clock()


def test_without_a_setting_every_vector_is_due_once_at_the_end_of_a_pass() -> None:
    one = Coalescing(clock)
    for vector in (1, 2, 1, 1):
        one.announce(vector)
    assert one.take_due() == {1, 2}
    assert one.take_due() == set()
    assert one.timeout is None


def test_the_threshold_counts_completions_of_each_vector() -> None:
    one = coalescing(3, 10 * MS)
    for vector in (1, 2, 1):
        one.announce(vector)
    assert one.take_due() == set()
    one.announce(1)
    assert one.take_due() == {1}
    one.announce(1)
    assert one.take_due() == set()


def test_the_oldest_completion_waits_no_longer_than_the_time() -> None:
    one = coalescing(100, 2 * MS)
    one.announce(1)
    assert one.timeout is not None and abs(one.timeout - 2 * MS) < 1e-9
    clock.now += 1.5 * MS
    one.announce(1)
    assert one.take_due() == set()
    clock.now += 0.6 * MS
    assert one.timeout == 0.0
    assert one.take_due() == {1}
    assert one.timeout is None


def test_what_is_urgent_or_exempt_waits_for_nothing() -> None:
    one = coalescing(100, 1.0, {4})
    one.announce(1)
    one.announce(1, urgent=True)
    one.announce(4)
    assert one.take_due() == {1, 4}
    assert one.timeout is None


def test_a_time_of_zero_is_no_delay() -> None:
    one = coalescing(100, 0.0)
    one.announce(1)
    assert one.take_due() == {1}


def test_a_new_setting_lets_go_of_what_is_held() -> None:
    one = coalescing(100, 1.0)
    one.announce(3)
    one.configure(1, 0.0, set())
    assert one.take_due() == {3}
    one.configure(100, 1.0, set())
    one.announce(3)
    one.clear()
    assert one.take_due() == set() and one.timeout is None

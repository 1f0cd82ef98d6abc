"""What holds for all tests.

No example may fail because the machine was busy. A random test tries so many of them each time that
it is run, which adds up; those marked slow try many at once. And an interrupt is heard: a shell
starts what it puts in the background with SIGINT ignored, and every process that a test starts
would inherit that.
"""

import gc
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# How long examples take to draw, and how many are thrown away, is chance, and no reason to fail.
settings.register_profile(
    "potash",
    deadline=None,
    print_blob=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("potash")

signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guests first, as workers take one file after the other, and the last one had better be
    short."""
    items.sort(key=lambda item: item.path.parent.name != "vm")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while a million objects come that stay, nor ever look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()

"""What holds for all tests.

No example may fail because the machine was busy. A random test tries so many of them each time that
it is run, which adds up; those marked slow try many at once, and `--hypothesis-profile=thorough`
has the others do so. And signals are heard: a shell starts what it puts in the background with
SIGINT ignored, as nohup does with SIGHUP, and every process that a test starts would inherit that.
"""

import gc
import math
import os
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from potash.cli import progress
from support import prepared
from support.shared_guests import SHARED_GUESTS

# How long examples take to draw, and how many are thrown away, is chance, and no reason to fail.
settings.register_profile(
    "potash",
    deadline=None,
    print_blob=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile("thorough", settings.get_profile("potash"), max_examples=1000)
settings.load_profile("potash")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What commands write to standard error does not depend on how busy the machine is.
progress.PATIENCE = math.inf
os.environ["POTASH_PROGRESS"] = "steps"
prepared.use()

LONG = ("vm", "host")
"""Folders whose files take long; the others follow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guests first, as workers take one file after the other, and the last one had better be
    short."""
    order = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but files that share a guest are one unit."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    def unit(nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SHARED_GUESTS.get(file, file)

    scheduling: Any = LoadFileScheduling(config, log)
    scheduling._split_scope = unit
    return scheduling


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while a million objects come that stay, nor ever look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()

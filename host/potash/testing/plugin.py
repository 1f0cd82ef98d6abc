"""The pytest plugin: fixtures that boot drives and guests.

pytest finds it if Potash is installed; otherwise, use `-p potash.testing.plugin`. It imports Potash
only when a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from potash.testing.booting import BootedDevice
    from potash.vm.guest import Guest

MARKER = "potash"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**options): what potash_device or potash_guest is started with, such as "
        "size='64M', accelerators=['1M:1M'], faults=['io read lost count=1'] "
        "(potash.testing.booted_device and booted_guest have them all).",
    )


@pytest.fixture
def potash_device_factory() -> Iterator[Callable[..., BootedDevice]]:
    """Starts drives, which end with the test: `potash_device_factory(size="64M", …)`."""
    from potash.testing.booting import booted_device

    with ExitStack() as stack:

        def start(**options: Any) -> BootedDevice:
            return stack.enter_context(booted_device(**options))

        yield start


@pytest.fixture
def potash_device(
    request: pytest.FixtureRequest, potash_device_factory: Callable[..., BootedDevice]
) -> BootedDevice:
    """A drive as an SDK device; `@pytest.mark.potash(…)` sets its options."""
    return potash_device_factory(**_options(request))


@pytest.fixture
def potash_guest_factory() -> Iterator[Callable[..., Guest]]:
    """Starts guests, which end with the test: `potash_guest_factory(size="64M", cpus=2)`.

    The test is skipped if no guest can be installed.
    """
    from potash.testing.booting import booted_guest
    from potash.vm.errors import PackagesUnavailable

    with ExitStack() as stack:

        def start(**options: Any) -> Guest:
            try:
                return stack.enter_context(booted_guest(**options))
            except PackagesUnavailable as error:
                pytest.skip(f"no guest can be had here: {error}")

        yield start


@pytest.fixture
def potash_guest(
    request: pytest.FixtureRequest, potash_guest_factory: Callable[..., Guest]
) -> Guest:
    """A Linux guest with a drive at /dev/nvme0n1; `@pytest.mark.potash(…)` sets its options."""
    return potash_guest_factory(**_options(request))


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options in the test's markers; a nearer one adds to, and overrides, those of its module."""
    found: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"@pytest.mark.{MARKER} takes options by their names")
        found.update(marker.kwargs)
    return found

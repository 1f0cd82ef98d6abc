"""Drives and guests for tests of other software: drivers, host programs, firmware.

With pytest, without imports:

    def test_the_next_read_succeeds(potash_device):
        potash_device.add_fault("io read status=INTERNAL_ERROR count=1")
        ...

    @pytest.mark.potash(size="1G", faults=["media read lba=100..199"])
    def test_linux_says_so(potash_guest):
        assert potash_guest.capture(["dd", "if=/dev/nvme0n1", ...]).code == 1

`potash_device_factory` and `potash_guest_factory` start any number. Without pytest, or for fixtures
of another scope, use the context managers `booted_device` and `booted_guest`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potash.control import access_groups, change_access
    from potash.testing.booting import BootedDevice, booted_device, booted_guest

__all__ = ["BootedDevice", "access_groups", "booted_device", "booted_guest", "change_access"]


def __getattr__(name: str) -> object:
    """Import what is asked for, then: pytest imports this package in all of a user's sessions."""
    if name in __all__:
        from potash import control
        from potash.testing import booting

        return getattr(booting, name, None) or getattr(control, name)
    raise AttributeError(f"{__name__} has no {name}")

"""Builds and boots the guest that tests use: `python -m support.booted`, in `tests`.

Each worker would otherwise wait for the one that does it. Where there can be none, tests say why.
"""

from __future__ import annotations

from contextlib import suppress

from potash.sdk.progress import silent
from potash.vm import snapshot
from potash.vm.defaults import CPUS, MEMORY
from potash.vm.errors import GuestError
from potash.vm.images import GuestImages
from potash.vm.qemu import Shape
from support.vm import guest_images


def booted() -> GuestImages | str:
    """The images of a guest that has been booted, or the reason why there can be none here."""
    found = guest_images()
    if not isinstance(found, str):
        snapshot.frozen(found, Shape(MEMORY, CPUS), silent)
    return found


if __name__ == "__main__":
    with suppress(GuestError):
        booted()

"""Interface for flash translation layers (`potash serve --ftl NAME`); see docs/ftl.md."""

from potash_device.flash.plain import Flash, FlashError
from potash_device.flash.profile import PAGE, Profile, ProfileError
from potash_firmware.ftl.hooks import Block, Hint, Page
from potash_firmware.ftl.interface import Ftl, FtlError
from potash_firmware.ftl.plain import Frontier, PageMapped
from potash_firmware.ftl.requests import WORN, Counters, Op

__all__ = [
    "PAGE",
    "WORN",
    "Block",
    "Counters",
    "Flash",
    "FlashError",
    "Frontier",
    "Ftl",
    "FtlError",
    "Hint",
    "Op",
    "Page",
    "PageMapped",
    "Profile",
    "ProfileError",
]

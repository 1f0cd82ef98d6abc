"""A modelled drive without a device, for an experiment on the model alone."""

from collections.abc import Mapping
from typing import Any

from potash import timing
from potash.sdk.errors import restated
from potash_device.flash.profile import Profile, ProfileError
from potash_device.flash.profiles import from_mapping
from potash_firmware.extension_files import load
from potash_firmware.ftl.interface import Ftl
from potash_firmware.ftl.plain import PageMapped

_OPTIONS = ("drive", "ftl", "policies", "extensions")


def profile(options: Mapping[str, Any]) -> Profile:
    """The profile of a table [model]. Raises TimingError."""
    keys = {name: value for name, value in options.items() if name not in _OPTIONS}
    if "drive" in options:
        keys["base"] = options["drive"]
    with restated(ProfileError, "[model]", timing.TimingError):
        return from_mapping(keys)


def build(options: Mapping[str, Any]) -> Ftl:
    """An empty drive, of keys of a profile, and of the options of `potash serve` `drive` (the
    profile that the keys change), `ftl`, `policies` and `extensions`. Raises TimingError, FtlError
    and ExtensionError."""
    registered = load(options.get("extensions", [])).ftls
    name, made = options.get("ftl", "page"), profile(options)
    drive = timing.with_ftl(made, name, options.get("policies", []), registered)
    if name in registered and issubclass(registered[name].made, PageMapped):
        own: PageMapped = registered[name].made(made)
        return own  # no host waits for it, so a request may take longer than in a device
    return drive

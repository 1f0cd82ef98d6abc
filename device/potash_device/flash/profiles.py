"""Profiles of drives as TOML has them: a user's own, and the built-in ones of `profiles.toml`."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from potash_device.flash.error_models import MODELS
from potash_device.flash.profile import Profile, ProfileError, Rate, require_known, thousandths
from potash_device.flash.scaling import equipped

OVER_PROVISIONING = "over_provisioning"
"""A key of TOML: the spare flash as a percentage of the capacity, from which `blocks` follow."""
SIZES = {
    *("capacity", "page_bytes", "buffer_bytes", "mapping_cache", "zone_buffer_bytes", "read_cache")
}
"""Sizes in bytes, which may be texts like "96M" in TOML."""
PROFILES: dict[str, Profile] = {}
"""Built-in drives. Sources: docs/fit.md."""


def from_mapping(table: Mapping[str, Any]) -> Profile:
    """A profile from TOML's values; `base` names the built-in one that it changes. Raises
    ProfileError for a key that no profile has, and for a drive that cannot be built."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }
    base = values.pop("base", None)
    if base is not None and (not isinstance(base, str) or base not in PROFILES):
        raise ProfileError(f"base is {base!r:.40}; it must be one of {', '.join(PROFILES)}")
    for name in SIZES & values.keys():
        values[name] = _size(values[name])
    names = [field.name for field in fields(Profile)]
    require_known("there is no key", values, [*names, OVER_PROVISIONING])
    for name in ("bus", "link"):
        if isinstance(values.get(name), tuple) and len(values[name]) == 2:
            values[name] = Rate(*values[name])
    rber = values.get("rber")
    if isinstance(rber, str):
        if rber not in MODELS:
            raise ProfileError(f"rber is {rber!r:.40}; it must be numbers or {', '.join(MODELS)}")
        values["rber"] = MODELS[rber]
    for name in ("slc", "zone_slc"):
        if isinstance(values.get(name), str):
            values[name] = thousandths(values[name])
    spare = values.pop(OVER_PROVISIONING, None)
    if spare is not None:
        values |= {"blocks": 1, "sized": False}
    for field in fields(Profile):
        if base is None and field.default is MISSING and field.name not in values:
            raise ProfileError(f"{field.name} is missing; or name a base")
    found = Profile(**values) if base is None else replace(PROFILES[base], **values)
    return found if spare is None else equipped(found, spare=thousandths(str(spare)))


def _size(value: object) -> object:
    """A size in bytes, which may be a text like 96M; another value is left for `Profile`."""
    match = re.fullmatch(r"([0-9]{1,20})([KMGT]?)", value) if isinstance(value, str) else None
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ") if match else value


for _name, _table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items():
    PROFILES[_name] = from_mapping(_table)

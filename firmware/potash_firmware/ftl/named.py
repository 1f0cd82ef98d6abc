"""Drives, translation layers and policies by name: built-in ones, and those in the user's own
files."""

import difflib
import importlib.util
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from potash_device.cores import DEFAULT, CoreProfile
from potash_device.cores import from_mapping as cores_from_mapping
from potash_device.flash.profile import Profile, ProfileError
from potash_device.flash.profiles import PROFILES, from_mapping
from potash_firmware.extension_files import SourceLoader
from potash_firmware.extension_limits import IMPORT_LIMIT, TookTooLong, limited
from potash_firmware.extension_registry import RegisteredClass
from potash_firmware.ftl import policies as built_in
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import Ftl, FtlError
from potash_firmware.ftl.policies import Loaded, Policies

LARGEST_PROFILE = 1 << 20
"""Bytes of a TOML file."""

POLICIES: Mapping[str, Mapping[str, type]] = {
    "gc": {
        "greedy": built_in.Greedy,
        "fifo": built_in.Fifo,
        "choices": built_in.Choices,
        "cost-benefit": built_in.CostBenefit,
    },
    "wear": {"none": built_in.NoWear, "gap": built_in.Gap},
    "allocation": {"channel-first": built_in.ChannelFirst, "die-first": built_in.DieFirst},
}
"""The built-in policies, by kind and name."""


def profile(name: str) -> Profile:
    """A built-in profile, or the one in a TOML file. Raises ProfileError."""
    return PROFILES[name] if name in PROFILES else _read(name)[0]


def cores(name: str) -> CoreProfile:
    """The cores of a profile: those of the table `[processor]` of its file, if it has one. Raises
    ProfileError."""
    return DEFAULT if name in PROFILES else _read(name)[1]


def _read(name: str) -> tuple[Profile, CoreProfile]:
    try:
        with Path(name).open("rb") as file:
            data = file.read(LARGEST_PROFILE + 1)
        if len(data) > LARGEST_PROFILE:
            raise ProfileError("it is larger than any profile")
        table = tomllib.loads(data.decode())
        beside = cores_from_mapping(table.pop("processor", {}))
        return from_mapping(table), beside
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(_why_none(name, error)) from None


def _why_none(name: str, error: Exception) -> str:
    if isinstance(error, OSError):
        profiles = ", ".join(PROFILES)
        return f"{name} is neither a file ({error.strerror}) nor one of {profiles}"
    if isinstance(error, ProfileError):
        return f"{name}: {error}"
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
    return f"{name} is not TOML: {reason}"


def policies(named: Iterable[str]) -> Policies:
    """Policies from `KIND=NAME` or `KIND=FILE:CLASS`, whose code is the user's. Raises ProfileError
    for what is none."""
    chosen: dict[str, Any] = {}
    for text in named:
        kind, _, name = text.partition("=")
        if kind not in POLICIES:
            raise ProfileError(f"{text!r} is not KIND=POLICY, with a KIND of {', '.join(POLICIES)}")
        if name in POLICIES[kind]:
            chosen[kind] = POLICIES[kind][name]()
        elif ":" in name:
            chosen[kind] = _loaded(kind, name)
        else:
            raise ProfileError(
                f"{name!r} is neither FILE:CLASS nor one of {', '.join(POLICIES[kind])}"
            )
    return Policies(**chosen)


METHODS = {"gc": "victim", "wear": "victim", "allocation": "order"}
"""The method of each kind of policy."""


def _loaded(kind: str, name: str) -> Loaded:
    """The policy of a file, which is imported. Raises ProfileError."""
    file, _, class_name = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(file, loader=SourceLoader(file, file))
    if not file.endswith(".py") or spec is None:
        raise ProfileError(f"{file} is no file of Python")
    module = sys.modules[file] = importlib.util.module_from_spec(spec)

    def made() -> object:
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(module)
        return getattr(module, class_name)()

    try:
        with redirect_stdout(sys.stderr):  # a report may be on standard output
            found = limited(IMPORT_LIMIT, made)
    except TookTooLong:
        raise ProfileError(f"{name} took more than {IMPORT_LIMIT:g} s to load") from None
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())[:200]
        raise ProfileError(f"{name}: {type(error).__name__}: {said}") from error
    if not callable(getattr(found, METHODS[kind], None)):
        raise ProfileError(f"{name} has no method {METHODS[kind]}")
    return Loaded(found, name)


PAGE = "page"
"""The name of the compiled translation layer."""
PAGE_KEYS = (
    *("slc", "zone_slc", "rber", "refresh_s", "reclaim_reads", "cycles_spread", "trim_page_ns"),
    *("read_cache", "program_failures", "copy_back"),
)
"""Keys of profiles for what no other translation layer does."""


def ftl(
    name: str, profile: Profile, chosen: Sequence[str], registered: Mapping[str, RegisteredClass]
) -> Ftl:
    """A drive with the translation layer of a name, built-in or registered by an extension, and the
    policies that are chosen for it. Raises FtlError for a name that is unknown, and for a class
    that cannot be used, and what `Drive` does."""
    if name == PAGE:
        return Drive(profile, policies(chosen))
    if name in registered:
        for key in PAGE_KEYS:
            if getattr(profile, key):
                raise FtlError(f"{key} is for the FTL page, and {name} has none")
        if chosen:
            raise FtlError(f"policies are for the FTL page, and {name} decides itself")
        return CustomFtl(registered[name], profile)
    names = [PAGE, *registered]
    near = difflib.get_close_matches(name, names, 1)
    there = f"there is {', '.join(names)}; --extend FILE adds those of a file"
    meant = f"did you mean {near[0]}?" if near else there
    raise FtlError(f"there is no FTL {name:.60}; {meant}")

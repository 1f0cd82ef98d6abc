"""Packages that only some commands need."""

from __future__ import annotations

import importlib
from types import ModuleType

from potash.sdk.errors import PotashError


def extra(module: str, name: str) -> ModuleType:
    """A module that the distribution's extra `name` installs. Raises PotashError without it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        if error.name is None or error.name.partition(".")[0].replace("_", "-") != package:
            raise
        raise PotashError(
            f"this needs the package {package}, which is not installed: "
            f"pip install 'potash[{name}]'"
        ) from None

"""Work on models without a process for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from potash.sdk.errors import PotashError
from potash_firmware.tflite.validation import ModelError

P = ParamSpec("P")
Result = TypeVar("Result")

ISOLATED = "potash.cli.device.model_files.isolated"


def in_this_process(function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """In place of `potash.models.process.isolated`, where a second for each call is too long."""
    try:
        return function(*args, **kwargs)
    except ModelError as error:
        raise PotashError(str(error)) from error

"""What the commands of `potash model` have in common: models in files, and work on them in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from potash.files import replacing, write_whole
from potash.models.process import isolated
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress

P = ParamSpec("P")
Result = TypeVar("Result")


def write_model(path: Path, data: bytes, progress: Progress) -> None:
    """A model's bytes, or a tensor's, into a file that is whole or not there."""
    with replacing(path) as file:
        write_whole(file, bytearray(data), path, progress)


def apart_for(
    path: Path, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
) -> Result:
    """Call it in a process of its own, and say which file what it refuses is about."""
    try:
        return isolated(function, *args, **kwargs)
    except PotashError as error:
        raise PotashError(f"{path}: {error}") from None


def tensor_line(what: str, dtype: np.dtype[Any], shape: Sequence[int], more: str = "") -> str:
    """An input or an output in words."""
    return f"{what} {dtype.name} {'x'.join(map(str, shape)) or 'scalar'}{more}"

"""Files of models, as commands read them, and work on them in a separate process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from potash.cli.progress import ticking
from potash.files import read_whole
from potash.models.process import isolated
from potash.sdk.errors import PotashError, restated
from potash.sdk.progress import Progress

P = ParamSpec("P")
Result = TypeVar("Result")


def read_model(file: Path, given: Sequence[tuple[int, ...]], progress: Progress) -> bytes:
    """A model, with the shapes that are given for its inputs, if any are. Raises PotashError."""
    data = bytes(read_whole(file, progress))
    if not given:
        return data
    from potash.models.running import with_shapes  # brings TensorFlow Lite

    return isolated_on(file, with_shapes, data, given)


def isolated_on(
    path: Path, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
) -> Result:
    """Call it in a process of its own, and say which file what it refuses is about."""
    with restated(PotashError, path), ticking(f"working on {path.name}"):
        return isolated(function, *args, **kwargs)

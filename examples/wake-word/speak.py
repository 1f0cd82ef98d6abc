"""The words of the recording, spoken by eSpeak NG: writes `spoken.wav` beside this file.

pip install espeakng-loader
python examples/wake-word/speak.py
"""

import ctypes
import wave
from pathlib import Path

import espeakng_loader
import numpy as np

WORDS = ("okay nabu", "good morning")
"""What the network listens for, and what it must not take for it."""
VOICE, RATE = b"en-us+m3", 16000
SILENCE = RATE // 4
"""Samples behind each word."""
_SYNCHRONOUS, _UTF8, _SPEED, _WORDS_A_MINUTE = 2, 1, 1, 160
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


def spoken() -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """The words, each with silence behind it."""
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    heard: list[float] = []

    def hear(samples: "ctypes._Pointer[ctypes.c_short]", count: int, _: int) -> int:
        heard.extend(samples[:count] if count > 0 else ())
        return 0

    callback = _CALLBACK(hear)
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(VOICE)
    library.espeak_SetParameter(_SPEED, _WORDS_A_MINUTE, 0)
    pieces = []
    for word in WORDS:
        heard.clear()
        text = word.encode() + b"\0"
        library.espeak_Synth(text, len(text), 0, 1, 0, _UTF8, None, None)
        spectrum = np.fft.rfft(heard)
        length = len(heard) * RATE // rate
        samples = np.fft.irfft(spectrum[: length // 2 + 1], length) * length / len(heard)
        pieces += [samples / 2, np.zeros(SILENCE)]
    return np.concatenate(pieces).astype(np.int16)


if __name__ == "__main__":
    with wave.open(str(Path(__file__).parent / "spoken.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(spoken().tobytes())

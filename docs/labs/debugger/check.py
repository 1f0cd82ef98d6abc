"""The check of lab 4: the program counts all bytes of any input."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from potash.programs.compiler import compiled
from potash.programs.execution import execute
from potash_firmware.bpf import Fault, load_program

INPUTS = {
    "text": b"to be, or not to be",
    "no bytes": b"",
    "all values": bytes(range(256)),
    "255 three times": b"\xff" * 3,
}


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    program = load_program(compiled(Path(made["__file__"])))
    problems = []
    for name, data in INPUTS.items():
        arguments = [len(data).to_bytes(4, "little")]
        try:
            ran = execute(program, data, arguments=arguments, show=print)
        except Fault as fault:
            problems.append(f"{name}: {fault}")
            continue
        if len(ran.output) != 2048:
            problems.append(f"{name}: {len(ran.output)} bytes of output instead of 2048")
            continue
        expected = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        wrong = np.flatnonzero(np.frombuffer(ran.output, np.uint64) != expected)
        problems += [f"{name}: the count of {wrong[0]} is wrong"] if wrong.size else []
    return problems

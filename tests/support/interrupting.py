"""Interrupts at an instruction that a test chooses, as a signal's handler raises them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupted_at(instruction: int, packages: tuple[str, ...], call: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt before an instruction of some packages, counted from 0.

    Whether there are so many. Python looks for signals before some of these only.
    """
    ahead = instruction

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal ahead
        if frame.f_globals["__name__"].partition(".")[0] not in packages:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if not ahead:
                raise KeyboardInterrupt
            ahead -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False

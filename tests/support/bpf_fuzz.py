"""One random program after the other, held against what compiled code takes for proven of it, and
run by both engines.

`python -m support.bpf_fuzz SECONDS [SEED]`, in the folder `tests`, does so for as long.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import FaultKind
from support.bpf_claims import hold
from support.bpf_extremes import extremes
from support.bpf_programs import Case, Observed, observe, soup
from support.bpf_structured import structured

KINDS: tuple[Callable[[Random], Case], ...] = (extremes, extremes, structured, soup)


def one(seed: int, *, native: bool = True) -> Counter[str]:
    """The program of a seed; raises AssertionError when something about it is wrong.

    Without `native` nothing is compiled, which takes a tenth of the time. Counts what was tried.
    """
    case = KINDS[seed % len(KINDS)](Random(seed))
    held = hold(case)
    tried = Counter(programs=1, guards=held.guards, held=held.held)
    if native and held.observed is not None:
        tried["compared"] += 1
        tried["faults"] += held.observed.fault is not None
        equal(observe(Engine.NATIVE, case), held.observed)
    return tried


def equal(seen: Observed, expected: Observed) -> None:
    """A run at its limit may end elsewhere, but at its limit; all else is to be the same."""
    limit = FaultKind.INSTRUCTION_LIMIT
    if expected.fault is not None and expected.fault[0] is limit:
        assert seen.fault is not None and seen.fault[0] is limit
    else:
        assert seen == expected


def fuzz(seconds: float, seed: int) -> Counter[str]:
    """Programs from `seed` on; the AssertionError of one that is wrong names its seed."""
    tried: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            tried += one(seed, native=seed // len(KINDS) % 4 == 0)
        except Exception as error:
            raise AssertionError(f"support.bpf_fuzz.one({seed}): {error}") from error
        seed += 1
    return tried


if __name__ == "__main__":
    begin = int(sys.argv[2]) if len(sys.argv) > 2 else Random().getrandbits(32)
    print("seed", begin, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        print(dict(fuzz(float(sys.argv[1]), begin)))

"""Everything compiled that a core's fast engine will want, ahead of time.

Who may only read the folder of compiled code finds it there, instead of compiling it again.
"""

import hashlib
import json
from pathlib import Path

from potash_device.vta.config import DRAM_BASE, Config, MemoryId
from potash_device.vta.fast.binding import Bound
from potash_device.vta.fast.compiling import cache_folder
from potash_device.vta.fast.copying import NOTHING, copy
from potash_device.vta.fast.paths import available
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.isa import (
    Alu,
    AluOpcode,
    Finish,
    Gemm,
    Instruction,
    Load,
    Store,
    encode_stream,
)
from potash_device.vta.timing import run
from potash_device.vta.timing.parameters import PYNQ

DRAM_BYTES = 1 << 16


def is_warm(config: Config) -> bool:
    """True if `warm` has run for a core of this configuration, on a processor like this one."""
    marker = _marker(config)
    return marker is not None and marker.exists()


def warm(config: Config) -> None:
    """Run each kind of instruction, which has all compiled code made and kept. The second time,
    they are divided among threads."""
    fast = FastSimulator(config, memoryview(bytearray(DRAM_BYTES)), threads=2)
    fast.worth, fast.divided_at = -(1 << 40), 2
    stream = encode_stream(instructions(config), config)
    for _ in range(2):
        fast.execute(stream)
    run(config, PYNQ, stream)
    Bound(copy, NOTHING)
    marker = _marker(config)
    if marker is not None:
        marker.touch()


def instructions(config: Config) -> list[Instruction]:
    """A stream with an instruction of each kind."""
    found: list[Instruction] = []
    for memory in (MemoryId.UOP, MemoryId.INP, MemoryId.WGT, MemoryId.ACC):
        first = -(-DRAM_BASE // config.element_bytes(memory))
        found.append(
            Load(memory_type=memory, dram_base=first, y_size=1, x_size=1, x_stride=1, x_pad_1=1)
        )
    found += [Gemm(uop_end=1, iter_in=1, iter_out=1)]
    found += [Alu(alu_opcode=one, uop_end=1, iter_in=1, iter_out=1) for one in AluOpcode]
    first = -(-DRAM_BASE // config.element_bytes(MemoryId.OUT))
    found.append(Store(memory_type=MemoryId.OUT, dram_base=first, y_size=1, x_size=1, x_stride=1))
    return [*found, Finish()]


def _marker(config: Config) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    # Compiled code is for a processor's features, and for a path, which depends on the
    # configuration, and on permission to use AMX.
    from numba.core.registry import cpu_target

    path = available(config)[0]
    features = cpu_target.target_context.codegen().magic_tuple()
    # numba finds code for the files that it was compiled from, and for no copy of them.
    known = [config.to_mapping(), path, features, __file__]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
    return folder / f"warm-{digest[:16]}"

"""Ways to multiply on different processors, and the layout of INP and WGT for each.

A core of the default shape (1x16x16, 8 bits) uses tiles, which are made for a processor's
instructions. Any other shape uses plain loops, which the compiler optimises as far as it can. Each
path is a type of its own, so that compiled code is specialised for it.
"""

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId

BLOCK = 16
"""Rows and columns of the weights that tiles multiply."""
BIAS = 128
"""The number that is added to INP where the instruction multiplies unsigned bytes."""

REGISTER_FILE = 8 * 1024 + 64 + 8
"""Bytes of a model of AMX's tile registers: the registers, their configuration, and a number."""

FULL, FIRST, DIAGONAL = 0, 1, 2
"""Forms of a block of weights: any, zeroes except for the first `FIRST_INPUTS` inputs, zeroes
outside the diagonal. A block of zeroes has both, `FIRST | DIAGONAL`."""
FIRST_INPUTS = 4


class Vnni512(NamedTuple):
    """vpdpbusd on vectors of 16 lanes (AVX-512 VNNI).

    It multiplies unsigned by signed bytes, so INP is kept with 128 added, and the effect on the
    products is subtracted again: `correction` has -128 times the sum of each row of each block.
    Convolutions of few channels and depthwise ones have blocks that are mostly zero: `forms` has
    the form of each block, and `diagonal` the diagonals of those with nothing else.
    """

    inp: NDArray[np.uint8]
    wgt: NDArray[np.int8]
    correction: NDArray[np.int32]
    forms: NDArray[np.uint8]
    diagonal: NDArray[np.int32]


class Amx(NamedTuple):
    """tdpbssd on tiles of 16 rows of 64 bytes, and vpdpbusd where tiles do not pay.

    Tiles multiply signed bytes, so INP is kept unbiased, too.
    """

    inp: NDArray[np.uint8]
    wgt: NDArray[np.int8]
    correction: NDArray[np.int32]
    forms: NDArray[np.uint8]
    diagonal: NDArray[np.int32]
    signed: NDArray[np.int8]


class AmxModel(NamedTuple):
    """AMX with the model of the tiles' instructions that tests have, for any processor."""

    inp: NDArray[np.uint8]
    wgt: NDArray[np.int8]
    correction: NDArray[np.int32]
    forms: NDArray[np.uint8]
    diagonal: NDArray[np.int32]
    signed: NDArray[np.int8]
    registers: NDArray[np.uint8]
    """Eight tiles, their configuration, and after how many instructions they lose their contents:
    never where it is 0."""


class Vnni256(NamedTuple):
    """vpdpbusd on vectors of 8 lanes (AVX-VNNI)."""

    inp: NDArray[np.uint8]
    wgt: NDArray[np.int8]
    correction: NDArray[np.int32]


class Pairs16(NamedTuple):
    """Pairs of 16-bit products on vectors of 16 lanes, which LLVM divides into the processor's."""

    inp: NDArray[np.int16]
    wgt: NDArray[np.int16]
    forms: NDArray[np.uint8]
    diagonal: NDArray[np.int16]


class Pairs8(NamedTuple):
    """Pairs of 16-bit products on vectors of 8 lanes (vpmaddwd of AVX2)."""

    inp: NDArray[np.int16]
    wgt: NDArray[np.int16]
    forms: NDArray[np.uint8]
    diagonal: NDArray[np.int16]


class Loops(NamedTuple):
    """Any shape and width: 16-bit values where they fit, else 32-bit ones."""

    inp: NDArray[Any]
    wgt: NDArray[Any]
    batch: int
    block_in: int
    block_out: int


Biased = Vnni512 | Vnni256 | Amx | AmxModel
Path = Biased | Pairs16 | Pairs8 | Loops


class Offer(NamedTuple):
    """A path, the processor features that it needs by LLVM's names, and whether it needs a core for
    tiles."""

    kind: type[Path]
    features: frozenset[str] = frozenset()
    tiles: bool = True
    granted: Callable[[], bool] = lambda: True
    """Returns True where the user and the kernel allow the path; called where the processor has
    the features."""


SWITCH = "POTASH_AMX"
"""An environment variable: with `1`, AMX is used where there is one. The path has not run on a
processor that has it."""

ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18


def amx_granted() -> bool:
    """Request AMX from the kernel, on an x86-64 processor that has it, where the user asks for it.
    True where it is granted, then for all threads and for the processes that are forked.

    Source: Linux, Documentation/arch/x86/xstate.rst; arch/x86/include/uapi/asm/prctl.h.
    """
    return os.environ.get(SWITCH) == "1" and _ask_for_amx()


@functools.cache
def _ask_for_amx() -> bool:
    library = ctypes.CDLL(None)
    library.syscall.argtypes = [ctypes.c_long] * 3
    library.syscall.restype = ctypes.c_long
    return bool(library.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


VNNI512 = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512vnni"})
OFFERS: dict[str, Offer] = {
    "amx": Offer(Amx, VNNI512 | {"amx-tile", "amx-int8"}, granted=amx_granted),
    "vnni512": Offer(Vnni512, VNNI512),
    "vnni256": Offer(Vnni256, frozenset({"avx2", "avxvnni"})),
    "avx512": Offer(Pairs16, frozenset({"avx512f", "avx512vl", "avx512bw"})),
    "avx2": Offer(Pairs8, frozenset({"avx2"})),
    "portable": Offer(Pairs16),
    "loops": Offer(Loops, tiles=False),
}
"""The paths by name, best first."""


OF_INPUTS, OF_WEIGHTS = ("inp", "signed"), ("wgt", "correction", "forms", "diagonal")
"""Arrays in which paths keep INP and WGT, one element after the other."""


def processor_features() -> frozenset[str]:
    """The features that compiled code may use: those of this processor, or those in numba's
    settings."""
    settings: Any = numba.config
    configured = settings.CPU_FEATURES
    if configured is not None:
        return frozenset(name[1:] for name in configured.split(",") if name.startswith("+"))
    if settings.CPU_NAME not in (None, "host"):
        return frozenset()
    return _detected()


@functools.cache
def _detected() -> frozenset[str]:
    found = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name, present in found.items() if present)


def available(config: Config) -> tuple[str, ...]:
    """The names of the paths that a core of this configuration can take here, best first."""
    features = processor_features()
    tiled = (
        config.batch == 1
        and config.block_in == config.block_out == BLOCK
        and config.log_inp_width == config.log_wgt_width == 3
    )
    return tuple(
        name
        for name, offer in OFFERS.items()
        if offer.features <= features and (tiled or not offer.tiles) and offer.granted()
    )


def aligned(count: int, dtype: type[np.generic]) -> NDArray[Any]:
    """An array of zeroes at an address that is a multiple of 64, the alignment of vectors."""
    size = count * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    return memory[skip : skip + size].view(dtype)


def make(name: str, config: Config) -> Path:
    """Empty INP and WGT for the path that is called `name`."""
    inp = config.depth(MemoryId.INP) * config.batch * config.block_in
    wgt = config.depth(MemoryId.WGT) * config.block_out * config.block_in
    kind = OFFERS[name].kind
    forms = aligned(wgt // BLOCK**2, np.uint8)
    forms[:] = FIRST | DIAGONAL
    if issubclass(kind, Biased):
        biased = aligned(inp, np.uint8)
        biased[:] = BIAS
        weights, correction = aligned(wgt, np.int8), aligned(wgt // BLOCK, np.int32)
        if kind is Vnni256:
            return Vnni256(biased, weights, correction)
        vnni = Vnni512(biased, weights, correction, forms, aligned(wgt // BLOCK, np.int32))
        if kind is Amx:
            return Amx(*vnni, aligned(inp, np.int8))
        if kind is AmxModel:
            return AmxModel(*vnni, aligned(inp, np.int8), aligned(REGISTER_FILE, np.uint8))
        return vnni
    if kind is Pairs16 or kind is Pairs8:
        diagonal = aligned(wgt // BLOCK, np.int16)
        return kind(aligned(inp, np.int16), aligned(wgt, np.int16), forms, diagonal)
    narrow = max(config.log_inp_width, config.log_wgt_width) <= 4
    value = np.int16 if narrow else np.int32
    return Loops(
        aligned(inp, value), aligned(wgt, value), config.batch, config.block_in, config.block_out
    )


def copy_elements(
    target: Path, source: Path, memory: MemoryId, begin: int, end: int, config: Config
) -> None:
    """Copy elements of INP or WGT between the buffers of two cores of the same path."""
    depth = config.depth(memory)
    for name in OF_INPUTS if memory is MemoryId.INP else OF_WEIGHTS:
        values = getattr(source, name, None)
        if values is not None:
            each = values.size // depth
            getattr(target, name)[begin * each : end * each] = values[begin * each : end * each]


def inp_of(path: Path, config: Config) -> NDArray[Any]:
    """A copy of INP in the core's own layout, of shape (elements, batch, block_in)."""
    values: NDArray[Any] = path.inp
    if isinstance(path, Biased):
        values = values ^ np.uint8(BIAS)
    dtype = np.dtype(f"<i{1 << config.log_inp_width - 3}")
    wide = values.view(np.int8) if values.dtype == np.uint8 else values
    return wide.astype(dtype).reshape(-1, config.batch, config.block_in)


def wgt_of(path: Path, config: Config) -> NDArray[Any]:
    """A copy of WGT in the core's own layout, of shape (elements, block_out, block_in)."""
    dtype = np.dtype(f"<i{1 << config.log_wgt_width - 3}")
    values = path.wgt.astype(dtype)
    if isinstance(path, Loops):
        return values.reshape(-1, config.block_out, config.block_in)
    group = 4 if isinstance(path, Biased) else 2
    blocks = values.reshape(-1, BLOCK // group, BLOCK, group)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1, BLOCK, BLOCK)


def set_tensors(path: Path, inp: NDArray[Any], wgt: NDArray[Any]) -> None:
    """Fill the path's buffers with a core's INP and WGT, in the shapes that those have."""
    if isinstance(path, Loops):
        path.inp[:] = inp.reshape(-1)
        path.wgt[:] = wgt.reshape(-1)
        return
    if isinstance(path, Amx | AmxModel):
        path.signed[:] = inp.reshape(-1)
    if isinstance(path, Biased):
        path.inp[:] = inp.reshape(-1).view(np.uint8) ^ np.uint8(BIAS)
        path.correction[:] = (wgt.astype(np.int32).sum(axis=2) * -BIAS).reshape(-1)
        group = 4
    else:
        path.inp[:] = inp.reshape(-1)
        group = 2
    if not isinstance(path, Vnni256):
        first = ~wgt[:, :, FIRST_INPUTS:].any(axis=(1, 2))
        diagonal = ~(wgt * ~np.eye(BLOCK, dtype=bool)).any(axis=(1, 2))
        path.forms[:] = FIRST * first + DIAGONAL * diagonal
        path.diagonal[:] = np.diagonal(wgt, axis1=1, axis2=2).reshape(-1)
    blocks = wgt.reshape(-1, BLOCK, BLOCK // group, group)
    path.wgt[:] = blocks.transpose(0, 2, 1, 3).reshape(-1)

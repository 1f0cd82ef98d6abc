"""One run of a program in this process, as an accelerator of the drive would make it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from csd_spec.descriptors import encode_arguments
from csd_spec.program import Context
from potash_firmware import bpf
from potash_firmware.bpf import elf, reserve
from potash_firmware.bpf import engine as engines
from potash_firmware.bpf.arena import FRAME_SIZE, Arena, Layout
from potash_firmware.bpf.engine import Engine, Execute
from potash_firmware.bpf.interpreter import Helper
from potash_firmware.bpf.machine import verify

if TYPE_CHECKING:
    from potash_firmware.apu.models import Models

BUFFER_SIZE = 64 << 20
"""Bytes of an accelerator's input buffer and of its output buffer, as the drive has them."""


class Ran(NamedTuple):
    """Result of a run: the value of r0, the output, and the number of executed instructions."""

    return_value: int
    output: bytes
    instructions: int


def execute(
    program: bpf.Program,
    data: bytes,
    *,
    arguments: Sequence[bytes] = (),
    output_size: int = BUFFER_SIZE,
    instruction_limit: int = bpf.INSTRUCTION_LIMIT,
    frame_size: int = FRAME_SIZE,
    engine: Engine | Execute = Engine.INTERPRETER,
    show: Callable[[str], None],
) -> Ran:
    """Run `program` with `data` as its input; `show` gets what it prints. Raises Fault,
    ProgramError and EngineUnavailable."""
    input_size = max(BUFFER_SIZE, len(data))
    layout = bpf.buffer_layout(input_size, output_size, frame_size)
    memory = reserve.allocate(layout.size)  # what is never touched costs nothing
    memory[layout.input_offset : layout.input_offset + len(data)] = data
    models = functools.cache(_models)
    context = Context(encode_arguments(arguments))
    prepared = bpf.Prepared(
        program,
        memory,
        input_size=input_size,
        output_size=output_size,
        services=bpf.Services(
            show,
            lambda *given: models().infer_apu(*given),
            lambda *given: models().infer_vta(*given),
            load_model=lambda *given: models().load(*given),
        ),
        context=context,
        instruction_limit=instruction_limit,
        frame_size=frame_size,
        engine=engine,
    )
    outcome = prepared.run(len(data), output_size, context)
    length = output_size if outcome.output_length is None else outcome.output_length
    output = bytes(memory[layout.output_offset : layout.output_offset + length])
    return Ran(outcome.return_value, output, outcome.instructions)


def _models() -> Models:
    """The runner of a program's models. It loads TensorFlow Lite."""
    from potash_firmware.apu.models import Models

    return Models({})


# The public conformance suite calls one helper, and only wants it to be there and to return.
SUITE_HELPERS: Mapping[int, Helper] = {5: lambda first, *_: first}


def conform(given: bytes, data: bytes, *, is_elf: bool, engine: Engine) -> int:
    """Run a program of the public conformance suite; returns r0.

    `given` is the program's instructions, or an object file. It finds the address of `data` in r1,
    or 0 where there is none, and its length in r2. Raises Fault,
    ProgramError and EngineUnavailable.
    """
    if is_elf:
        program = elf.load(given)
    else:
        program = elf.Program(elf.with_callx_registers(given), 0, b"", b"")
    verify(program.code, program.entry, SUITE_HELPERS)
    layout = Layout(len(data), 0, data_size=len(program.data), rodata_size=len(program.rodata))
    memory = reserve.allocate(layout.size)
    base = engines.base_of(engine, reserve.address_of(memory))
    image = elf.link(program, layout, base)
    for offset, contents in (
        (layout.input_offset, data),
        (layout.data_offset, image.data),
        (layout.rodata_offset, image.rodata),
    ):
        memory[offset : offset + len(contents)] = contents
    arena = Arena(memory, layout, base)
    arguments = (arena.input if data else 0, len(data))
    run = engines.prepare(
        engine, image.code, program.entry, arena, SUITE_HELPERS, bpf.INSTRUCTION_LIMIT
    )
    return run(arguments).value

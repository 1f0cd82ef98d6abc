"""The accelerator's processor: a BPF machine (RFC 9669) that runs programs next to the data.

The platform runs a program's object file in a virtual machine on the APU (Alkali CSD platform
documentation, section 3.4.3). The APU's worker needs two calls:

    load_program(data: bytes, *, entry: str | None = None) -> Program
        raises ProgramError (ElfError, VerificationError)

    run_program(
        program, memory: memoryview, *, input_size, output_size, input_length, services: Services,
        output_length=None, context=Context(), instruction_limit=INSTRUCTION_LIMIT,
        engine=Engine.INTERPRETER,
    ) -> Outcome(return_value, output_length: int | None, instructions)
        raises Fault(kind, pc, address, reason)

and `buffer_layout(input_size, output_size)`, which says how large the accelerator's memory is
(`.size`) and where in it the input and the output lie (`.input_offset`, `.output_offset`).
Errors that have an instruction say which function and source line it comes from, where the object
file tells (`debug_info`, `line_info`); `disassembler` shows a whole program with them.
`Services(print, infer_apu, infer_vta, …)` is what the program's helpers reach; a model is run by
`infer(model, input, output) -> bytes written`, all three memoryviews. Helpers of other packages are
`AddedHelper`s behind entry points (`added`).
"""

from potash_firmware.bpf.added import AddedHelper
from potash_firmware.bpf.arena import Layout
from potash_firmware.bpf.elf import Program
from potash_firmware.bpf.engine import Engine
from potash_firmware.bpf.errors import (
    ElfError,
    EngineUnavailable,
    Fault,
    FaultKind,
    ProgramError,
    VerificationError,
)
from potash_firmware.bpf.helpers import Services
from potash_firmware.bpf.machine import (
    INSTRUCTION_LIMIT,
    Outcome,
    buffer_layout,
    helper_names,
    load_program,
    run_program,
)

__all__ = [
    "INSTRUCTION_LIMIT",
    "AddedHelper",
    "ElfError",
    "Engine",
    "EngineUnavailable",
    "Fault",
    "FaultKind",
    "Layout",
    "Outcome",
    "Program",
    "ProgramError",
    "Services",
    "VerificationError",
    "buffer_layout",
    "helper_names",
    "load_program",
    "run_program",
]

"""The accelerator's processor: a BPF machine (RFC 9669) that runs programs next to the data.

The platform runs a program's object file in a virtual machine on the APU (Alkali CSD platform
documentation, section 3.4.3). `load_program` links and verifies one. `Prepared` runs it in memory
that `buffer_layout` describes, and `machine.Placed` on memory ranges, with `Services` for helpers.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from potash_firmware.bpf.helpers import Services, ValueRequest
    from potash_firmware.bpf.machine import (
        INSTRUCTION_LIMIT,
        Outcome,
        Prepared,
        buffer_layout,
        helper_names,
        load_program,
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
    "Prepared",
    "Program",
    "ProgramError",
    "Services",
    "ValueRequest",
    "VerificationError",
    "buffer_layout",
    "helper_names",
    "load_program",
]

_MODULES = ("arena", "errors", "engine", "elf", "added", "helpers", "machine")


def __getattr__(name: str) -> object:
    """Import one of these names when it is used: the device needs no machine, only its arena's
    sizes."""
    if name in __all__:
        for module in _MODULES:
            found = importlib.import_module(f"{__name__}.{module}")
            if name in vars(found):
                # Here as well from now on, so that this is called once for each name.
                return globals().setdefault(name, vars(found)[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Compilation of a program to an object file for this machine's processor, by LLVM.

llvmlite is imported when the first program is compiled or loaded, and nowhere else.
"""

from collections.abc import Container
from pathlib import Path
from typing import Any

from potash_device import object_code
from potash_device.cache import Store
from potash_firmware.bpf.errors import EngineUnavailable
from potash_firmware.bpf.native import blocks, generator, writer
from potash_firmware.bpf.native.blocks import Code
from potash_firmware.bpf.object_file import SYMBOLS, Binding, SectionIndex

OPTIMISATION = 2

MOST_INSTRUCTIONS = 1 << 14
"""Maximum for all functions of a program together; shared instructions count once for each."""

MOST_OPTIMISED = 256 << 10
"""Characters of assembly that LLVM optimises, in 3 s at most. Its time can grow with the square of
that: 1000 branches in a row are 400 Ki and take 11 s. Longer programs get only the passes of
`_simplify`, whose time is linear, 5 s for the longest."""

_MEMORY_FUNCTIONS = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp"})
"""Functions that LLVM may call for a loop; every process has these. Any other call would be to
address 0."""

DIVISIONS = frozenset({"__udivti3", "__umodti3", "__divti3", "__modti3"})
"""Functions that LLVM may call to count a loop's iterations; `runtime` finds them."""

_DECLARATIONS = """
declare i64 @llvm.usub.sat.i64(i64, i64)
declare void @llvm.sideeffect()
declare i64 @llvm.umax.i64(i64, i64)
declare i128 @llvm.smax.i128(i128, i128)
declare i128 @llvm.smin.i128(i128, i128)
declare i16 @llvm.bswap.i16(i16)
declare i32 @llvm.bswap.i32(i32)
declare i64 @llvm.bswap.i64(i64)
"""


def llvm() -> Any:
    """LLVM, ready for this processor. Raises EngineUnavailable."""
    try:
        return object_code.llvm()
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineUnavailable(f"llvmlite cannot be used: {error}") from None


def versions() -> tuple[str, ...]:
    """Versions on which an object file depends, besides the program and Potash. Raises
    EngineUnavailable."""
    llvm()
    return object_code.versions()


OBJECTS = Store("bpf", [Path(__file__).parents[1], Path(object_code.__file__)], versions)
"""Compiled programs, and the runtime that they call."""


def assembly(code: bytes, entry: int, *, by_kind: bool = False) -> str:
    """The function at `entry` and all that it calls, as LLVM assembly. Raises EngineUnavailable."""
    program = Code(code)
    functions = {}
    exported = {entry}
    waiting = [entry]
    count = 0
    while waiting:
        start = waiting.pop()
        if start in functions:
            continue
        functions[start] = function = blocks.function(program, start)
        count += sum(len(block.pcs) for block in function.blocks.values())
        if count > MOST_INSTRUCTIONS:
            raise EngineUnavailable(
                f"its functions have more than {MOST_INSTRUCTIONS} instructions"
            )
        exported |= function.addresses
        waiting += function.calls | function.addresses
    definitions = (
        generator.generate(program, function, exported=start in exported, by_kind=by_kind)
        for start, function in functions.items()
    )
    return "\n".join([_DECLARATIONS, *definitions, writer.FOOTER])


def compile_program(code: bytes, entry: int, by_kind: bool = False) -> bytes:
    """An object file that exports the function at `entry`; with `by_kind`, it counts instructions
    by kind. Raises EngineUnavailable."""
    try:
        text = assembly(code, entry, by_kind=by_kind)
        return compile_assembly(text, _MEMORY_FUNCTIONS | DIVISIONS)
    except RuntimeError as error:
        raise EngineUnavailable(f"LLVM does not take a program: {error}") from None


def compile_assembly(text: str, library: Container[str]) -> bytes:
    """An object file that calls only functions in `library`. Raises EngineUnavailable."""
    binding = llvm()
    optimisation = OPTIMISATION if len(text) <= MOST_OPTIMISED else 0
    machine = object_code.target(optimisation)
    module = binding.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    tuning = binding.create_pipeline_tuning_options(optimisation)
    tuning.loop_vectorization = True
    tuning.slp_vectorization = True
    builder = binding.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager() if optimisation else _simplify()
    passes.run(module, builder)
    contents = bytes(machine.emit_object(module))
    foreign = sorted(name for name in symbols(contents)[1] if name not in library)
    if foreign:
        raise EngineUnavailable(f"a compiled program wants {', '.join(foreign)}")
    return contents


def _simplify() -> Any:
    """Passes that keep a program's registers in the processor's, each in linear time."""
    passes = llvm().create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_sccp_pass()
    passes.add_dead_code_elimination_pass()
    return passes


def symbols(contents: bytes) -> tuple[set[str], set[str]]:
    """The global symbols that an object file (ELF64) defines, and those that it leaves
    undefined."""
    binding = llvm()
    sections = {
        section.name(): section.data()
        for section in binding.ObjectFileRef.from_data(contents).sections()
    }
    names = sections[b".strtab"]
    defined, undefined = set(), set()
    for symbol in SYMBOLS.decode_all(sections[b".symtab"]):
        at = symbol.name_offset
        name = names[at : names.index(b"\0", at)].decode()
        if at and symbol.section == SectionIndex.UNDEF:
            undefined.add(name)
        elif at and symbol.binding == Binding.GLOBAL:
            defined.add(name)
    return defined, undefined

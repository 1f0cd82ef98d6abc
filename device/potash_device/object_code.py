"""Object files in this process: LLVM loads them, and nothing is compiled. llvmlite is imported with
the first call."""

import functools
from typing import Any


@functools.cache
def llvm() -> Any:
    """LLVM, ready for this processor. Raises ImportError, OSError or RuntimeError, again at each
    call."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.check_jit_execution()
    return binding


def target(optimisation: int = 2) -> Any:
    """A new machine for this processor."""
    binding = llvm()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=optimisation,
        jit=True,
    )


def versions() -> tuple[str, ...]:
    """Versions of LLVM and of this processor, on which an object file depends."""
    binding = llvm()
    import llvmlite

    return (
        llvmlite.__version__,
        ".".join(map(str, binding.llvm_version_info)),
        binding.get_default_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
    )


def load(contents: bytes) -> Any:
    """An object file's code and data, for as long as the returned object lives."""
    binding = llvm()
    owner = binding.create_mcjit_compiler(binding.parse_assembly(""), target())
    owner.add_object_file(binding.ObjectFileRef.from_data(contents))
    owner.finalize_object()
    return owner

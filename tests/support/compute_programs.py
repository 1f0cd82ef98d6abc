"""Programs for compute namespaces, written in LLVM's notation of BPF."""

from support.bpf_assembler import assemble
from support.bpf_elf import Name, elf, text


def program(source: str) -> bytes:
    """An object file."""
    return elf([text(assemble(source), name="prog")], [Name("prog", "prog")])


SUM = program(
    """
    r0 = 0
    r5 = r1
    r5 += r3
    next:
        r6 = *(u64 *)(r1 + 0)
        r0 += r6
        r1 += 8
        if r1 < r5 goto next
    if r4 == 0 goto done
    *(u64 *)(r2 + 0) = r0
    done:
        exit
    """
)
"""Adds up the 64-bit integers of the first range; their sum is in the second one, too, if
there is one."""

ENDLESS = program(
    """
    *(u64 *)(r1 + 0) = 1
    again:
        goto again
    """
)
"""Says in its range that it has begun."""

"""Native code for the eBPF machine: programs compiled by LLVM for this machine's processor.

`blocks` finds a function's control flow, `checks` the accesses that share a bounds check, and
`induction` the loop nests that can run without checks; `generator` (with `lowering`, for single
instructions) writes LLVM assembly, `compiler` turns it into an object file, and `engine` runs it.
Where a check fails, the interpreter continues and raises the fault. docs/native.md describes it.
"""

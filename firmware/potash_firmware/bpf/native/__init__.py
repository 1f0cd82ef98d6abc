"""The BPF machine's fast form: programs compiled by LLVM for the processor at hand.

`blocks` finds a function's control flow, `checks` which accesses one bounds check can stand for,
`generator` (with `lowering`, an instruction at a time) writes LLVM assembly, `compiler` makes an
object file of it, `cache` keeps that, and `engine` runs it. What compiled code finds wrong it
leaves to the interpreter to say.
"""

"""The fast engine: the same core as `simulator`, as compiled code.

Nothing here decides what an instruction does: `simulator` says that, and is what this is compared
with. numba compiles it once for each processor and user; `compiling` says where that is kept. Only
`FastSimulator` is for others, and importing it imports numba, so they do that when they need it.
"""

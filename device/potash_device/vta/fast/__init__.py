"""The fast engine: the same core as `simulator`, as compiled code.

`simulator` specifies what an instruction does, and this is compared with it. numba compiles it once
for each processor and user; `compiling` has the place where that is cached. Only `FastSimulator` is
for others, and importing it imports numba, so they do that when they need it.
"""

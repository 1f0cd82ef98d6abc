"""Declarations of binary formats: as values that never change, or as mutable structures.

A `packed.Packed` is a named tuple whose annotations (`fields`) say how it is stored; `records` do
that for any type, and `layouts` compile it. The fields of commands (`words`) are such
values as well. `structures` are views over bytes that keep what no field names, and words of bits.
`WireError` is raised for values and bytes that do not fit; `LayoutError` for a declaration that
contradicts itself.
"""

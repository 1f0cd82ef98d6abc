"""How bytes are declared: records that never change, structures with bit fields, and words.

`WireError` is raised for values and bytes that do not fit; `LayoutError` for a declaration that
contradicts itself.
"""

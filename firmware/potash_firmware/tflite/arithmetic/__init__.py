"""Quantised arithmetic in the 32 bits of the VTA's ALU: the steps that operators append to their
tiles.

`requantization` scales accumulators down, with the significands that `ramps` finds, and divides by
a count; `lines` does it for arguments that have few possible values, and `pieces` computes any
function of int8.
"""

"""Quantised arithmetic in the 32 bits that the VTA's ALU has: what operators append to their tiles.

`requantization` scales accumulators down, with the significands that `ramps` finds; `lines` does it
for arguments of which few values are known, `scaling` chooses between both; `division` divides by a
count.
"""

"""Declarations of registers and of features' dwords."""

from potash_wire.words import *  # the same names

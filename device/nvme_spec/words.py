"""How a register or a feature's dword is declared."""

from potash_wire.words import *  # the same names

"""How a structure of the standard is declared."""

from potash_wire.structures import *  # the same names

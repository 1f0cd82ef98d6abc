"""Declarations of the standard's structures."""

from potash_wire.structures import *  # the same names

"""The names of the engines, for whoever configures them. Importing this imports no engine."""

from enum import Enum


class Engine(Enum):
    """The engines, as a configuration names them."""

    INTERPRETER = "interpreter"
    NATIVE = "native"
    UBPF = "ubpf"

"""What can run a program, by the names that the command line has for them."""

from potash.sdk.errors import PotashError

ENGINES = ("interpreter", "native", "ubpf")


def require(name: str) -> None:
    if name != "interpreter":
        raise PotashError(f"there is no engine {name} here")

"""`insert` and `check` of `information`, imported at first use: NumPy delays a start."""

from potash_firmware.rpu.protection.wanted import Wanted


def insert(
    wanted: Wanted, blocks: memoryview, metadata: memoryview, count: int, first: int = 0
) -> None:
    """The same as `information.insert`."""
    from potash_firmware.rpu.protection import information

    information.insert(wanted, blocks, metadata, count, first)


def check(
    wanted: Wanted, blocks: memoryview, metadata: memoryview, slba: int, count: int, first: int = 0
) -> None:
    """The same as `information.check`. Raises NvmeError."""
    from potash_firmware.rpu.protection import information

    information.check(wanted, blocks, metadata, slba, count, first)

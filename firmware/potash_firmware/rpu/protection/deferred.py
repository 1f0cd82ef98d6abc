"""`insert` and `check` of `information`, imported at first use: NumPy delays a start."""

from potash_firmware.rpu.protection.request import ProtectionRequest


def insert(
    protection: ProtectionRequest,
    blocks: memoryview,
    metadata: memoryview,
    count: int,
    first: int = 0,
) -> None:
    """The same as `information.insert`."""
    from potash_firmware.rpu.protection import information

    information.insert(protection, blocks, metadata, count, first)


def check(
    protection: ProtectionRequest,
    blocks: memoryview,
    metadata: memoryview,
    slba: int,
    count: int,
    first: int = 0,
) -> None:
    """The same as `information.check`. Raises NvmeError."""
    from potash_firmware.rpu.protection import information

    information.check(protection, blocks, metadata, slba, count, first)

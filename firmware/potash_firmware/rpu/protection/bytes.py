"""Bytes that the drive itself writes to blocks with metadata: the output of a job."""

from dataclasses import replace

from nvme_spec.commands import PRACT
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.protection.deferred import insert
from potash_firmware.rpu.protection.wanted import Wanted


def write_bytes(namespace: Namespace, first: int, content: memoryview) -> None:
    """Write from byte `first` on; waits. Raises MediaError.

    The blocks get protection information that fits, with an application tag of 0, and other
    metadata of zeroes.
    """
    size, kept = namespace.block_size, namespace.metadata
    slba, end = first // size, -(-(first + len(content)) // size)
    blocks = memoryview(bytearray((end - slba) * size))
    metadata = memoryview(bytearray((end - slba) * kept.size))
    at = first - slba * size
    if len(content) < len(blocks):
        namespace.pairs.read(slba, blocks, metadata)
    blocks[at : at + len(content)] = content
    if kept.protection:
        wanted = Wanted(kept, PRACT)
        tags = slba & (1 << wanted.reference_bits) - 1
        insert(replace(wanted, tags=tags), blocks, metadata, end - slba)
    namespace.pairs.write(slba, blocks, metadata)

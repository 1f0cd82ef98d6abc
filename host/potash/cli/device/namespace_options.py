"""The value of `--namespace`: a namespace with blocks, as text."""

from potash.units import Parsed, Size
from potash_device.media.shapes import (
    BLOCK_SIZES,
    DEFAULT_BLOCK_SIZE,
    METADATA_SIZES,
    Metadata,
    NamespaceShape,
)


def _namespace(text: str) -> NamespaceShape:
    size, colon, described = text.partition(":")
    blocks, _, protection = described.partition(":")
    block, _, metadata = blocks.partition("+")
    if colon and block not in map(str, BLOCK_SIZES):
        raise ValueError(f"{text!r}: blocks have {' or '.join(map(str, BLOCK_SIZES))} bytes")
    if metadata and metadata not in map(str, METADATA_SIZES):
        sizes = ", ".join(map(str, METADATA_SIZES))
        raise ValueError(f"{text!r}: blocks have {sizes} bytes of metadata")
    if protection and (protection not in {"1", "2", "3"} or not metadata):
        raise ValueError(f"{text!r}: metadata may have protection information of type 1, 2 or 3")
    block_size = int(block) if colon else DEFAULT_BLOCK_SIZE
    return NamespaceShape(
        Size(block_size).parse(size),
        block_size,
        metadata=Metadata(int(metadata or 0), protection=int(protection or 0)),
    )


def namespace_option(shape: NamespaceShape) -> str:
    """What `--namespace` is given for such a namespace."""
    kept = shape.metadata
    metadata = f"+{kept.size}:{kept.protection}" if kept.protection else f"+{kept.size}"
    return f"{shape.size}:{shape.block_size}{metadata if kept.size else ''}"


NAMESPACE = Parsed("SIZE[:BLOCK[+METADATA[:TYPE]]]", _namespace)

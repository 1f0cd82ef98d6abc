"""Extraction of the kernel (vmlinux) from Debian's compressed image.

QEMU enters an uncompressed `vmlinux` through its PVH note, which spares an emulated processor the
decompression. The header of a bzImage has the place of its compressed payload: Linux x86 boot
protocol (Documentation/arch/x86/boot.rst), fields `setup_sects`, `header`, `payload_offset`,
`payload_length`.
"""

import lzma
import struct
import zlib
from collections.abc import Callable

from potash.sdk.errors import PotashError

SETUP_SECTS = 0x1F1
HEADER = 0x202
PAYLOAD = 0x248
SECTOR = 512
DEFAULT_SETUP_SECTS = 4
ELF_MAGIC = b"\x7fELF"

Decompress = Callable[[bytes], bytes]


def payload(image: bytes) -> bytes:
    """The compressed kernel inside a bzImage.

    Raises:
        PotashError: the file is no bzImage, or its payload lies outside it.
    """
    if len(image) < PAYLOAD + 8 or image[HEADER : HEADER + 4] != b"HdrS":
        raise PotashError("the kernel package's vmlinuz is not a Linux x86 boot image")
    sectors = image[SETUP_SECTS] or DEFAULT_SETUP_SECTS
    offset, length = struct.unpack_from("<II", image, PAYLOAD)
    start = (sectors + 1) * SECTOR + offset
    if not length or start + length > len(image):
        raise PotashError("the kernel package's vmlinuz is cut short")
    return image[start : start + length]


def vmlinux(image: bytes, zstd: Decompress) -> bytes:
    """The uncompressed ELF kernel of a bzImage.

    Args:
        image: the bzImage's bytes.
        zstd: decompresses a Zstandard frame, which the standard library cannot.

    Raises:
        PotashError: the image, or its compression, is not understood.
    """
    packed = payload(image)
    codecs: dict[bytes, Decompress] = {
        b"\x28\xb5\x2f\xfd": zstd,
        b"\xfd7zXZ\x00": lambda data: lzma.LZMADecompressor().decompress(data),
        b"\x1f\x8b": lambda data: zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data),
    }
    for magic, decompress in codecs.items():
        if packed.startswith(magic):
            kernel = decompress(packed)
            if not kernel.startswith(ELF_MAGIC):
                raise PotashError("the kernel package's vmlinuz does not hold an ELF kernel")
            return kernel
    raise PotashError(f"the kernel is compressed in an unknown way (magic {packed[:6].hex()})")

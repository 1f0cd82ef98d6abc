"""The lists that Identify returns: namespaces, controllers, a namespace's identifiers.

NVM Express Base Specification 2.0, section 4.5 (lists) and figure 277 (Namespace Identification
Descriptor).
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Annotated
from uuid import UUID

from nvme_spec.layout import Buffer
from potash_wire.packed import Packed
from potash_wire.records import U8, Number

IDENTIFY_SIZE = 4096
"""Bytes of every structure that Identify returns."""
NAMESPACE_LIST_ENTRIES = IDENTIFY_SIZE // 4
CONTROLLER_LIST_ENTRIES = IDENTIFY_SIZE // 2 - 1


UUID_ENTRY = 32
"""Bytes of an entry of the UUID list; the first one is reserved."""


class NamespaceIdType(IntEnum):
    """NIDT of a namespace identification descriptor (figure 277)."""

    EUI64 = 1
    NGUID = 2
    UUID = 3
    CSI = 4


NAMESPACE_ID_LENGTHS = {
    NamespaceIdType.EUI64: 8,
    NamespaceIdType.NGUID: 16,
    NamespaceIdType.UUID: 16,
    NamespaceIdType.CSI: 1,
}


class NamespaceIdentificationDescriptor(Packed, least_size=4):
    """One entry of CNS 03h (figure 277): type, length of the identifier, the identifier."""

    type: U8
    identifier: Annotated[bytes, Number("B")]

    @classmethod
    def decode_list(cls, data: Buffer) -> Iterator["NamespaceIdentificationDescriptor"]:
        """The descriptors up to the first of length 0; ValueError when one is cut off."""
        at = 0
        while at + cls.RECORD.size <= len(data):
            descriptor, at = cls.RECORD.take(data, at)
            if not descriptor.identifier:
                return
            yield descriptor


def encode_namespace_list(nsids: Iterable[int]) -> bytes:
    """CNS 02h and others: ascending identifiers, the rest zero (section 4.5.2).

    Identifiers past the list's 1024 entries are left out, as a host asks again from the last one.
    """
    listed = sorted(nsids)[:NAMESPACE_LIST_ENTRIES]
    return struct.pack(f"<{len(listed)}I", *listed).ljust(IDENTIFY_SIZE, b"\0")


def decode_namespace_list(buffer: Buffer) -> list[int]:
    """The identifiers before the first zero."""
    nsids: list[int] = []
    for (nsid,) in struct.iter_unpack("<I", buffer):
        if nsid == 0:
            break
        nsids.append(nsid)
    return nsids


def encode_uuid_list(uuids: Iterable[UUID]) -> bytes:
    """CNS 17h: entries that an index from 1 on names, each with a UUID in its upper half."""
    half = bytes(UUID_ENTRY // 2)
    return (bytes(UUID_ENTRY) + b"".join(half + uuid.bytes for uuid in uuids)).ljust(
        IDENTIFY_SIZE, b"\0"
    )


def encode_controller_list(identifiers: Iterable[int]) -> bytes:
    """CNS 12h and 13h: a count, then ascending controller identifiers (section 4.5.1)."""
    listed = sorted(identifiers)[:CONTROLLER_LIST_ENTRIES]
    return struct.pack(f"<{len(listed) + 1}H", len(listed), *listed).ljust(IDENTIFY_SIZE, b"\0")


def decode_controller_list(buffer: Buffer) -> list[int]:
    """The controller identifiers; ValueError where there is none, or they do not ascend."""
    (count,) = struct.unpack_from("<H", buffer)
    if not 1 <= count <= CONTROLLER_LIST_ENTRIES:
        raise ValueError(f"a list of {count} controllers")
    identifiers = list(struct.unpack_from(f"<{count}H", buffer, 2))
    if identifiers != sorted(set(identifiers)):
        raise ValueError("the controllers of a list do not ascend")
    return identifiers

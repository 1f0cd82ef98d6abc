"""Reachability: which namespaces a command of another namespace can read, write or copy from.

A namespace is in exactly one group, and groups reach each other, or themselves, only through an
association. NVM Express Base Specification 2.1, section 8.1.19, and the log pages 1Ah and 1Bh.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated

from potash_wire.packed import Packed
from potash_wire.records import U32, U64, At, Number, Stored

ONLY_IDENTIFIERS = 1 << 0
"""Log specific parameter: the groups without their namespaces (RGO), or the associations without
their groups (RAO)."""


class Characteristic(IntEnum):
    """RAC: what an association allows."""

    REACHABLE = 1
    FAST_COPY = 2
    NO_FAST_COPY = 3


class Group(Packed, least_size=32):
    """Reachability Group Descriptor: identifier, change count, the attached namespaces in it."""

    rgid: U32
    changes: Annotated[U64, At(8)]
    nsids: Annotated[tuple[U32, ...], Number("I", 4)]


class Association(Packed, least_size=32):
    """Reachability Association Descriptor: identifier, change count, what, between which groups."""

    rasid: U32
    changes: Annotated[U64, At(8)]
    characteristic: Annotated[Characteristic, Stored("B")]
    rgids: Annotated[tuple[U32, ...], Number("I", 4)]


class _Groups(Packed, least_size=16):
    changes: U64
    groups: Annotated[tuple[Group, ...], Number("H")]


class _Associations(Packed, least_size=16):
    changes: U64
    associations: Annotated[tuple[Association, ...], Number("H")]


def encode_groups(changes: int, groups: Iterable[Group], *, namespaces: bool = True) -> bytes:
    """Reachability Groups log (1Ah), with the `namespaces` of each group or without."""
    listed = (one._replace(nsids=(*sorted(one.nsids),) if namespaces else ()) for one in groups)
    return _Groups(changes, tuple(listed)).encode()


def encode_associations(
    changes: int, associations: Iterable[Association], *, groups: bool = True
) -> bytes:
    """Reachability Associations log (1Bh), with the `groups` of each association or without."""
    listed = (one._replace(rgids=(*sorted(one.rgids),) if groups else ()) for one in associations)
    return _Associations(changes, tuple(listed)).encode()

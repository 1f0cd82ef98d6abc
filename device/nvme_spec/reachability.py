"""Reachability: which namespaces a command of another namespace can read, write or copy from.

A namespace is in exactly one group, and groups reach each other, or themselves, only through an
association. NVM Express Base Specification 2.1, section 8.1.19, and the log pages 1Ah and 1Bh.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

ONLY_IDENTIFIERS = 1 << 0
"""Log specific parameter: the groups without their namespaces (RGO), or the associations without
their groups (RAO)."""

_HEADER = struct.Struct("<QH6x")
_GROUP = struct.Struct("<IIQ16x")
_ASSOCIATION = struct.Struct("<IIQB15x")


class Characteristic(IntEnum):
    """RAC: what an association allows."""

    REACHABLE = 1
    FAST_COPY = 2
    NO_FAST_COPY = 3


class Group(NamedTuple):
    """Reachability Group Descriptor: identifier, change count, the attached namespaces in it."""

    rgid: int
    changes: int
    nsids: tuple[int, ...]


class Association(NamedTuple):
    """Reachability Association Descriptor: identifier, change count, what, between which groups."""

    rasid: int
    changes: int
    characteristic: Characteristic
    rgids: tuple[int, ...]


def encode_groups(changes: int, groups: Iterable[Group], *, namespaces: bool = True) -> bytes:
    """Reachability Groups log (1Ah), with the `namespaces` of each group or without."""
    listed = [
        _GROUP.pack(one.rgid, len(nsids), one.changes) + struct.pack(f"<{len(nsids)}I", *nsids)
        for one in groups
        for nsids in [sorted(one.nsids) if namespaces else []]
    ]
    return _HEADER.pack(changes, len(listed)) + b"".join(listed)


def encode_associations(
    changes: int, associations: Iterable[Association], *, groups: bool = True
) -> bytes:
    """Reachability Associations log (1Bh), with the `groups` of each association or without."""
    listed = [
        _ASSOCIATION.pack(one.rasid, len(rgids), one.changes, one.characteristic)
        + struct.pack(f"<{len(rgids)}I", *rgids)
        for one in associations
        for rgids in [sorted(one.rgids) if groups else []]
    ]
    return _HEADER.pack(changes, len(listed)) + b"".join(listed)

"""Asymmetric namespace access (ANA): the state of a controller's access to a group of namespaces.

NVM Express Base Specification 2.0, section 8.1 and 5.16.1.13 (log page 0Ch).
"""

from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Annotated

from potash_wire.packed import Packed
from potash_wire.records import U32, U64, At, Number, Stored

GROUPS_ONLY = 1 << 0
"""Log specific parameter: the groups without their namespaces (RGO)."""


class AccessState(IntEnum):
    """ANA state of a group, for one controller."""

    OPTIMIZED = 0x01
    NON_OPTIMIZED = 0x02
    INACCESSIBLE = 0x03
    PERSISTENT_LOSS = 0x04
    CHANGE = 0x0F


class Anacap(IntFlag):
    """Asymmetric Namespace Access Capabilities, byte 343 of Identify Controller."""

    OPTIMIZED = 1 << 0
    NON_OPTIMIZED = 1 << 1
    INACCESSIBLE = 1 << 2
    PERSISTENT_LOSS = 1 << 3
    CHANGE = 1 << 4
    STATIC_GROUPS = 1 << 6
    """A namespace stays in its group while it is attached."""
    GROUPS_CHOSEN = 1 << 7
    """Namespace Management takes the group of a new namespace."""


class AccessGroup(Packed, least_size=32):
    """ANA Group Descriptor: identifier, change count, state, the attached namespaces in it."""

    anagrpid: U32
    changes: Annotated[U64, At(8)]
    state: Annotated[AccessState, Stored("B")]
    nsids: Annotated[tuple[U32, ...], Number("I", 4)]


class _Log(Packed, least_size=16):
    changes: U64
    groups: Annotated[tuple[AccessGroup, ...], Number("H")]


def encode_access_log(
    changes: int, groups: Iterable[AccessGroup], *, namespaces: bool = True
) -> bytes:
    """Asymmetric Namespace Access log, with the `namespaces` of each group or without."""
    listed = (group._replace(nsids=group.nsids if namespaces else ()) for group in groups)
    return _Log(changes, tuple(listed)).encode()

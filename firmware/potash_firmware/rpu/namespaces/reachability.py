"""Reachability: whether a command of one namespace can use another one.

Every namespace is in one group, and one association says that the members of that group reach each
other. A namespace that is not attached is in no group.

Source: NVM Express Base Specification 2.1, section 8.1.19.
"""

from nvme_spec.ranges import FAST_COPY_ONLY
from nvme_spec.reachability import (
    ONLY_IDENTIFIERS,
    Association,
    Characteristic,
    Group,
    encode_associations,
    encode_groups,
)
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.namespaces.inventory import Namespaces

GROUP = 1
"""RGRPID of every namespace, and the identifier of the one association."""


class Reachability:
    """The groups and associations of one drive."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self.associated = True
        """The members of the group reach each other."""
        self.changes = 0
        """Changes of the associations since power came."""

    def save(self) -> tuple[bool, int]:
        return self.associated, self.changes

    def load(self, saved: tuple[bool, int]) -> None:
        self.associated, self.changes = saved

    def associate(self, associated: bool) -> bool:
        """Have the members of the group reach each other, or no longer; whether that is new."""
        if associated == self.associated:
            return False
        self.associated = associated
        self.changes += 1
        return True

    def reaches(self, nsid: int, other: int) -> bool:
        """True where commands of an attached namespace can use another one."""
        return nsid == other or (self.associated and other in self._namespaces.attached)

    def require(self, nsid: int, other: int) -> None:
        """Raise NvmeError where namespace `other` is out of reach."""
        if not self.reaches(nsid, other):
            raise NvmeError(
                Status.NAMESPACE_NOT_REACHABLE, f"namespace {nsid} does not reach namespace {other}"
            )

    def require_copyable(self, nsid: int, snsid: int, options: int) -> None:
        """Refuse a copy between namespaces that do not reach each other, and fast copies only."""
        self.require(nsid, snsid)
        if options & FAST_COPY_ONLY:
            raise NvmeError(Status.FAST_COPY_NOT_POSSIBLE, "no copy is a fast one here")

    def groups(self, lsp: int) -> bytes:
        """Reachability Groups log (1Ah)."""
        group = Group(GROUP, 0, tuple(self._namespaces.attached))
        return encode_groups(0, [group], namespaces=not lsp & ONLY_IDENTIFIERS)

    def associations(self, lsp: int) -> bytes:
        """Reachability Associations log (1Bh)."""
        associations = [Association(GROUP, self.changes, Characteristic.REACHABLE, (GROUP,))]
        return encode_associations(
            self.changes, associations[: self.associated], groups=not lsp & ONLY_IDENTIFIERS
        )

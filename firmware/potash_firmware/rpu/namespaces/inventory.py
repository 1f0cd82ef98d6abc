"""The namespaces that there are, which of them are attached, and what room there is for more.

Source: NVM Express Base Specification 2.0, section 3.2.1 (namespaces) and 8.12 (management).
"""

from collections.abc import Iterable

from nvme_spec.status import NvmeError, Status
from potash_device.board import Board
from potash_device.media import Media
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.settings import NamespaceSettings

CONTROLLER_ID = 0
"""CNTLID of the one controller that namespaces are attached to."""


class Namespaces:
    """The namespaces of one drive."""

    def __init__(
        self, settings: Iterable[NamespaceSettings], board: Board, features: Features
    ) -> None:
        self._drive = board.drive
        self._features = features
        self.version = 0
        """Changes with the namespaces that there are, and with their block sizes."""
        self.allocated = {
            one.nsid: Namespace(
                one, board.media[one.nsid], features, formats=board.drive.shapes[one.nsid].formats
            )
            for one in settings
        }
        """Every namespace that there is, by identifier."""
        self.attached = {nsid: one for nsid, one in self.allocated.items() if one.settings.attached}
        """Those that are attached, which a host calls active."""

    def add(self, settings: NamespaceSettings, media: Media) -> Namespace:
        """There is a new namespace, which is not attached."""
        namespace = self.allocated[settings.nsid] = Namespace(settings, media, self._features)
        self.version += 1
        return namespace

    def remove(self, nsids: Iterable[int]) -> None:
        """These namespaces are gone."""
        for nsid in nsids:
            del self.allocated[nsid]
        self.version += 1

    @property
    def highest_nsid(self) -> int:
        """NN: the largest identifier that a namespace may have."""
        return max(self._drive.most, *self.allocated, 1)

    @property
    def unallocated(self) -> int:
        """Bytes that no namespace has, of which new ones can be made."""
        return self._drive.capacity - self._drive.allocated

    @property
    def total_capacity(self) -> int:
        """Bytes of all namespaces that there are and can be."""
        return sum(namespace.size for namespace in self.allocated.values()) + self.unallocated

    def active(self, nsid: int) -> Namespace:
        """The attached namespace of that identifier. Raises NvmeError where there is none."""
        namespace = self.attached.get(nsid)
        if namespace is None:
            raise self.absent(nsid)
        return namespace

    def usable(self, nsid: int) -> Namespace:
        """As `active`, where commands may touch the blocks. Raises NvmeError."""
        namespace = self.active(nsid)
        closed = namespace.in_flight.closed
        if closed is not None:
            raise NvmeError(closed, dnr=False, detail=f"the blocks of namespace {nsid} are closed")
        return namespace

    def absent(self, nsid: int) -> NvmeError:
        """The error of a command whose namespace is not there (Base 2.0, section 3.2.1).

        An identifier that a namespace may have is invalid in no way but that none has it.
        """
        if 1 <= nsid <= self.highest_nsid:
            return NvmeError(Status.INVALID_FIELD, detail=f"namespace {nsid} is not active")
        return NvmeError(
            Status.INVALID_NAMESPACE, detail=f"no namespace can have the identifier {nsid:#x}"
        )

    def blocks(self, nsid: int) -> int:
        """Logical blocks of a namespace; 0 where there is none."""
        namespace = self.allocated.get(nsid)
        return namespace.blocks if namespace is not None else 0

    def knows_deallocated(self, nsid: int) -> bool:
        """Whether a namespace knows its deallocated blocks; False where there is none."""
        namespace = self.allocated.get(nsid)
        return namespace is not None and namespace.knows_deallocated

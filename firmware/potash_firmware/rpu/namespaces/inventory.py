"""The namespaces of the drive, their attachment, and the unallocated capacity.

A namespace is of one command set. A host sees those of the command sets that it has enabled.

Source: NVM Express Base Specification 2.0, section 3.2.1 (namespaces), 8.12 (management), and
3.1.3.5 (CC.CSS).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.status import NvmeError, Status
from potash_device.board import Board
from potash_device.media.shapes import MOST_NAMESPACES, NamespaceShape
from potash_device.media.store import Media
from potash_firmware.rpu.features.table import Limits
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.memory import ComputeNamespace, MemoryNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.zoned import ZonedNamespace
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.reservations import Reservations

StoredNamespace = Namespace | KeyValueNamespace
"""A namespace whose contents are durable."""
AnyNamespace = StoredNamespace | MemoryNamespace | ComputeNamespace
Kind = TypeVar("Kind", Namespace, KeyValueNamespace, MemoryNamespace, ComputeNamespace)

NVM_ALONE = frozenset({CommandSet.NVM})
COMPUTATIONAL = frozenset({CommandSet.NVM, CommandSet.MEMORY, CommandSet.COMPUTE})


class NamespaceTable:
    """Namespaces by identifier, those of one drive; `every` may be other objects' as well."""

    def __init__(self, every: dict[int, AnyNamespace]) -> None:
        self.every = every
        """Every namespace that there is, by identifier."""

    @property
    def blocks(self) -> dict[int, Namespace]:
        """Namespaces with logical blocks, attached or not."""
        return {nsid: ns for nsid, ns in self.every.items() if isinstance(ns, Namespace)}

    @property
    def stored(self) -> dict[int, StoredNamespace]:
        """Namespaces whose contents are durable, attached or not."""
        return {nsid: ns for nsid, ns in self.every.items() if isinstance(ns, StoredNamespace)}

    @property
    def zoned(self) -> list[ZonedNamespace]:
        """Namespaces with zones, attached or not."""
        return [ns for ns in self.every.values() if isinstance(ns, ZonedNamespace)]

    @property
    def values(self) -> list[KeyValueNamespace]:
        """Namespaces with keys, attached or not."""
        return [ns for ns in self.every.values() if isinstance(ns, KeyValueNamespace)]

    def block_count(self, nsid: int) -> int:
        """Logical blocks of a namespace; 0 where there is none."""
        namespace = self.blocks.get(nsid)
        return namespace.blocks if namespace is not None else 0

    def lba_at(self, nsid: int, offset: int) -> int | None:
        """The block with a byte of a namespace; None for one without blocks."""
        namespace = self.blocks.get(nsid)
        return None if namespace is None else offset // namespace.block_size

    def knows_deallocated(self, nsid: int) -> bool:
        """True for a namespace that records its deallocated blocks; False where there is no such
        namespace."""
        namespace = self.blocks.get(nsid)
        return namespace is not None and namespace.knows_deallocated


class Inventory(NamespaceTable, Part):
    """The namespaces of one drive, whose controllers have a view each (`Namespaces`)."""

    def __init__(self, boards: Sequence[Board], handles: int, clock: Callable[[], float]) -> None:
        super().__init__({})
        board = boards[0]
        self._drive = board.storage.drive
        self.handle_count = handles
        """Reclaim unit handles of the drive; 0 without data placement."""
        self.version = 0
        """Changes with the namespaces with blocks that there are, with their block sizes, and with
        `of_accelerators`."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when namespaces have come or gone."""
        self.with_accelerators = {0}
        """The controllers that have accelerators."""
        self.views: list[Namespaces] = []
        """The view of each controller, in the order of their identifiers."""
        self.features = Features(self.limits(board), board.storage.sidecar, clock)
        """The values of features that all controllers share."""
        self.reservations = Reservations(board.storage.sidecar, self.every.__contains__)
        bars = {number: each.memory_bar for number, each in enumerate(boards)}
        for nsid, shape in self._drive.shapes.items():
            if shape.csi == CommandSet.MEMORY:
                # A host maps the first memory of its controller, if it maps any.
                bar = bars.pop(shape.owner(len(boards)), None)
                self.every[nsid] = MemoryNamespace(nsid, shape, bar)
            else:
                self.every[nsid] = self.make(nsid, shape, board.storage.media.get(nsid))
        present = {ns.csi for ns in self.every.values()}
        self.supported = NVM_ALONE
        """Command sets that namespaces can be of, until the power goes."""
        if self._drive.memory_capacity or present & (COMPUTATIONAL - NVM_ALONE):
            self.supported |= COMPUTATIONAL
        self.supported |= present & {CommandSet.ZONED, CommandSet.KEY_VALUE}
        self.combinations = [self.supported, NVM_ALONE][: len(self.supported)]
        """Command sets that work at once; the host's profile is the index of one."""

    def limits(self, board: Board, in_use: Callable[[], set[CommandSet]] = lambda: set()) -> Limits:
        """The properties of a controller with that board, and of the drive, that the checks of
        features use; `in_use` gives the command sets of attached namespaces."""
        return Limits(
            io_queue_pairs=board.settings.queue_pairs,
            vectors=board.interrupts.vectors,
            io_queues_exist=lambda: len(board.queues.completions) > 1,
            blocks=self.block_count,
            knows_deallocated=self.knows_deallocated,
            combinations=lambda: self.combinations,
            in_use=in_use,
            command_sets=lambda: {nsid: ns.csi for nsid, ns in self.every.items()},
        )

    def make(self, nsid: int, shape: NamespaceShape, media: Media | None = None) -> AnyNamespace:
        """A namespace, which is not there yet; `media` is for one with blocks. Raises OSError."""
        match shape.csi:
            case CommandSet.MEMORY:
                return MemoryNamespace(nsid, shape)
            case CommandSet.COMPUTE:
                return ComputeNamespace(nsid, shape)
            case CommandSet.KEY_VALUE:
                return KeyValueNamespace(nsid, shape, self._drive.values[nsid], self.features)
        assert media is not None
        kind = ZonedNamespace if shape.csi == CommandSet.ZONED else Namespace
        placed = bool(self.handle_count)
        return kind(nsid, shape, media, self.features, placed=placed)

    def handles(self, nsid: int) -> Sequence[int]:
        """The reclaim unit handles of a namespace with blocks, by placement identifier."""
        listed = self.blocks[nsid].shape.handles
        # A drive that was made with more handles has namespaces that list those.
        exist = listed and max(listed) < self.handle_count
        return listed if exist else range(self.handle_count)

    def add(self, namespace: AnyNamespace) -> None:
        """Add a new namespace, which is not attached."""
        self.every[namespace.nsid] = namespace
        self.version += isinstance(namespace, Namespace)
        self.on_change()

    def remove(self, nsids: Iterable[int]) -> None:
        """These namespaces are gone."""
        for nsid in nsids:
            self.version += isinstance(self.every.pop(nsid), Namespace)
        self.on_change()

    def close(self) -> None:
        """Release the memory of namespaces as the device ends."""
        self.every.clear()
        for view in self.views:
            view.attached.clear()
            view.accessible.clear()

    def restore(self, *, clean: bool | None = None) -> None:
        """Read the records of zones, and protect what the host wants to be protected."""
        for namespace in self.zoned:
            if clean is None:
                namespace.load()
            else:
                namespace.power_cycled(clean=clean)
        self.protect()

    def protect(self) -> list[int]:
        """Write-protect the namespaces that the host wants to be; the identifiers that differ."""
        changed = []
        for nsid, namespace in self.stored.items():
            protected = bool(self.features.get(FeatureId.NAMESPACE_WRITE_PROTECTION, nsid=nsid))
            if protected != namespace.media.protected:
                if protected and isinstance(namespace, ZonedNamespace):
                    namespace.write_protected()
                    namespace.store_claims_at_once()
                namespace.media.protected = protected
                changed.append(nsid)
        return changed

    def is_shared(self, namespace: AnyNamespace) -> bool:
        """The namespace may be attached to several controllers at a time (NMIC)."""
        shape = namespace.shape
        if not isinstance(namespace, StoredNamespace):
            return False
        return shape.shared or (shape.attached and not shape.controllers and len(self.views) > 1)

    def attached_to(self, namespace: AnyNamespace) -> list[int]:
        """The identifiers of the controllers that a namespace is attached to, of whatever command
        set."""
        shape = namespace.shape
        if not shape.attached:
            return []
        if not isinstance(namespace, StoredNamespace):
            return [self.owner(namespace)]
        every = range(len(self.views))
        return [number for number in shape.controllers or every if number < len(self.views)]

    @property
    def of_accelerators(self) -> dict[int, Namespace]:
        """The blocks that the APU has: of a drive with several controllers, only those of
        controllers with accelerators, so that no worker gets a descriptor of what other hosts alone
        have."""
        alone = len(self.views) == 1
        return {
            nsid: namespace
            for nsid, namespace in self.blocks.items()
            if alone or not self.with_accelerators.isdisjoint(self.attached_to(namespace))
        }

    def owner(self, namespace: AnyNamespace) -> int:
        """The only controller that a memory or compute namespace can be attached to."""
        return namespace.shape.owner(len(self.views))

    def owned_by(self, controller: int, kind: type[Kind]) -> list[int]:
        """The identifiers of the memory or compute namespaces that a controller has."""
        return [
            nsid
            for nsid, ns in self.every.items()
            if isinstance(ns, kind) and self.owner(ns) == controller
        ]

    @contextmanager
    def withdrawn(
        self, nsids: Iterable[int], controllers: Iterable[int] | None = None
    ) -> Iterator[None]:
        """Meanwhile these are not attached to these controllers, or to any, not even after a reset;
        then they are as they say."""
        leaving = set(nsids)
        every = range(len(self.views)) if controllers is None else controllers
        views = [self.views[number] for number in every]
        for view in views:
            view.withdraw(leaving)
        try:
            yield
        finally:
            for view in views:
                view.give_back(leaving)

    @property
    def highest_nsid(self) -> int:
        """NN: the largest identifier that a namespace may have."""
        most = MOST_NAMESPACES if len(self.supported) > 1 else self._drive.most
        return max(most, *self.every, 1)

    @property
    def unallocated(self) -> int:
        """Bytes that no namespace has, of which new ones can be made."""
        return self._drive.capacity - self._drive.allocated

    @property
    def total_capacity(self) -> int:
        """Bytes of non-volatile memory of all namespaces that there are and can be."""
        return sum(namespace.size for namespace in self.stored.values()) + self.unallocated


class Namespaces(NamespaceTable):
    """The namespaces of one drive as one controller has them."""

    def __init__(self, inventory: Inventory, board: Board, clock: Callable[[], float]) -> None:
        super().__init__(inventory.every)
        self.inventory = inventory
        self.number = len(inventory.views)
        """The identifier of the controller."""
        inventory.views.append(self)
        limits = inventory.limits(board, self._in_use)
        self.features = Features(limits, board.storage.sidecar, clock, inventory.features)
        """The controller's features, whose values are checked against its namespaces."""
        self.by_identifier = False
        """The host has enabled command sets by their identifiers (CC.CSS is 110b)."""
        self.enabled = NVM_ALONE
        """Command sets of the combination that the host has selected by CC.CSS and by its
        profile."""
        self.attached: dict[int, AnyNamespace] = {}
        """Attached namespaces of enabled command sets, which a host calls active."""
        self.accessible: dict[int, AnyNamespace] = {}
        """Attached namespaces that commands can access: all but those of ANA groups in
        `refused`."""
        self.refused: dict[int, Status] = {}
        """The status of commands that would access a namespace, by its ANA group."""
        self.ana_groups = 0
        """ANA groups that there can be; 0 without asymmetric namespace access."""
        self._withdrawn: set[int] = set()
        self.select(by_identifier=True)

    def _in_use(self) -> set[CommandSet]:
        return {ns.csi for ns in self.every.values() if self._is_attached(ns)}

    def _is_attached(self, namespace: AnyNamespace) -> bool:
        return self.number in self.inventory.attached_to(namespace)

    def select(self, *, by_identifier: bool, profile: int = 0) -> None:
        """The host has enabled the combination of index `profile`, or else the NVM command set."""
        combinations = self.inventory.combinations
        exists = by_identifier and profile < len(combinations)
        self.by_identifier = by_identifier
        self.enabled = combinations[profile] if exists else NVM_ALONE
        self.attach()

    def attach(self) -> None:
        """Find again which are attached."""
        self.attached = {
            nsid: ns
            for nsid, ns in self.every.items()
            if self._is_attached(ns) and ns.csi in self.enabled and nsid not in self._withdrawn
        }
        self.accessible = self.attached
        if self.refused:
            self.accessible = {
                nsid: ns
                for nsid, ns in self.attached.items()
                if ns.shape.ana_group not in self.refused
            }

    def withdraw(self, nsids: Collection[int]) -> None:
        """These are not attached until `give_back`."""
        self._withdrawn |= set(nsids)
        self.attach()

    def give_back(self, nsids: Collection[int]) -> None:
        """These are attached if they say so."""
        self._withdrawn -= set(nsids)
        self.attach()

    @property
    def allocated(self) -> dict[int, AnyNamespace]:
        """All namespaces of enabled command sets, attached or not."""
        return {nsid: ns for nsid, ns in self.every.items() if ns.csi in self.enabled}

    @property
    def attached_stored(self) -> dict[int, StoredNamespace]:
        """Attached namespaces whose contents are durable."""
        return {nsid: ns for nsid, ns in self.stored.items() if nsid in self.attached}

    @property
    def attached_blocks(self) -> dict[int, Namespace]:
        """Attached namespaces with logical blocks."""
        return {nsid: ns for nsid, ns in self.attached.items() if isinstance(ns, Namespace)}

    def active(self, nsid: int) -> AnyNamespace:
        """The attached namespace of that identifier. Raises NvmeError where there is none."""
        namespace = self.attached.get(nsid)
        if namespace is None:
            raise self.absent(nsid)
        return namespace

    def of_kind(self, kind: type[Kind], nsid: int) -> Kind:
        """The same as `active`, for a namespace of the command set. Raises NvmeError."""
        namespace = self.active(nsid)
        if not isinstance(namespace, kind):
            raise NvmeError(
                Status.INVALID_NAMESPACE,
                detail=f"namespace {nsid} is not of command set {kind.csi.name}",
            )
        return namespace

    def zoned_one(self, nsid: int) -> ZonedNamespace:
        """The attached zoned namespace of an identifier. Raises NvmeError."""
        namespace = self.active(nsid)
        if not isinstance(namespace, ZonedNamespace):
            raise NvmeError(Status.INVALID_NAMESPACE, detail=f"namespace {nsid} has no zones")
        return namespace

    def usable(self, nsid: int) -> Namespace:
        """The attached namespace with blocks, where commands may touch them. Raises NvmeError."""
        namespace = self.accessible.get(nsid)
        if not isinstance(namespace, Namespace) or namespace.in_flight.busy:
            namespace = self.of_kind(Namespace, nsid)
            self.require_accessible(nsid)
            namespace.in_flight.require_open()
        return namespace

    def require_usable(self, nsid: int) -> None:
        """Raise NvmeError where there is no attached namespace that commands may touch."""
        namespace = self.accessible.get(nsid)
        if not isinstance(namespace, Namespace) or namespace.in_flight.busy:
            namespace = self.active(nsid)
            self.require_accessible(nsid)
            if not isinstance(namespace, ComputeNamespace):
                namespace.in_flight.require_open()

    def require_accessible(self, nsid: int) -> None:
        """Raise NvmeError for an attached namespace that commands cannot access. A host may send
        the command again, to another controller, so that DNR is clear."""
        if self.refused and nsid in self.attached:
            group = self.attached[nsid].shape.ana_group
            if group in self.refused:
                detail = f"ANA group {group} of namespace {nsid} is not accessible"
                raise NvmeError(self.refused[group], detail, dnr=False)

    def absent(self, nsid: int) -> NvmeError:
        """The error of a command whose namespace is not there (Base 2.0, section 3.2.1).

        An identifier that a namespace may have is invalid in no way but that none has it.
        """
        if 1 <= nsid <= self.inventory.highest_nsid:
            return NvmeError(Status.INVALID_FIELD, detail=f"namespace {nsid} is not active")
        return NvmeError(
            Status.INVALID_NAMESPACE, detail=f"no namespace can have the identifier {nsid:#x}"
        )

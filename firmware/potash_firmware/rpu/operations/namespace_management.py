"""Namespace Management and Namespace Attachment.

Changes are recorded durably in the drive's list before they are made, and before the command
completes; a device that ends in between is, at its next start, in the state before or after the
command.

Source: NVM Express Base Specification 2.0, section 5.19 (Namespace Attachment), 5.20 (Namespace
Management) and 8.12; NVM Command Set Specification 1.0, section 4.1.6.
"""

import errno
import struct
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from nvme_spec.commands import NamespaceManagementOperation
from nvme_spec.identify.capabilities import DPS_FIRST, DPS_TYPE, NMIC_SHARED, CommandSet
from nvme_spec.identify.structures import IdentifyNamespace
from nvme_spec.logs import NO_PARAMETER_ERROR_LOCATION, SelfTestResult
from nvme_spec.memory_commands import MemoryNamespace as MemoryStructure
from nvme_spec.persistent_events import NamespaceChanged
from nvme_spec.placement import MANAGEMENT_HANDLE_LIST_AT, MANAGEMENT_HANDLES_AT, MAX_HANDLES
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.shapes import FORMATS, MEMORY_UNIT, MOST_NAMESPACES, NamespaceShape
from potash_device.storage import Storage
from potash_firmware.rpu.command import Steps
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.faults import Faults
from potash_firmware.rpu.namespaces.inventory import AnyNamespace, Namespaces, StoredNamespace
from potash_firmware.rpu.namespaces.memory import ComputeNamespace, MemoryNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace, wanted_format
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.operations.format import require_writable
from potash_firmware.rpu.operations.operations import Operations
from potash_firmware.rpu.operations.sanitize import Sanitizing
from potash_firmware.rpu.operations.self_tests import SelfTests
from potash_firmware.rpu.outstanding import Outstanding
from potash_firmware.rpu.placement import GROUP
from potash_firmware.rpu.reports import DriveReports


@dataclass(eq=False, repr=False)
class Management:
    """Creates and deletes the namespaces of a drive, for commands of one controller."""

    storage: Storage
    namespaces: Namespaces
    uncorrectable: UncorrectableRecord
    operations: Operations
    self_tests: SelfTests
    reports: DriveReports
    sanitizing: Sanitizing
    faults: Faults
    computes: Sequence[Compute]
    """The state of compute namespaces of each controller."""
    outstanding: Sequence[Outstanding]
    """The waiting commands of each controller."""

    def create(self, csi: int, given: bytes) -> Steps:
        """Make a namespace as the data of the command describe it; its identifier."""
        self.sanitizing.require_none()
        self._require_changeable()
        if csi not in self.namespaces.enabled:
            raise NvmeError(
                Status.IO_COMMAND_SET_NOT_SUPPORTED, detail=f"there is no command set {csi}"
            )
        shape = _WANTED[CommandSet(csi)](given, self.namespaces.features.extended_formats)
        drive = self.storage.drive
        most = drive.most if shape.has_blocks else MOST_NAMESPACES
        if shape.has_blocks or shape.has_values:
            free = self.namespaces.inventory.unallocated
        else:
            free = drive.memory_capacity - drive.memory_allocated
        if shape.size > free:
            raise NvmeError(
                Status.NAMESPACE_INSUFFICIENT_CAPACITY,
                detail=f"{shape.size} bytes are asked for, {free} are free",
            )
        nsid = next((n for n in range(1, most + 1) if n not in self.namespaces.every), None)
        if nsid is None:
            raise NvmeError(
                Status.NAMESPACE_IDENTIFIER_UNAVAILABLE, detail=f"there are {most} namespaces"
            )
        if csi == CommandSet.NVM:
            shape = shape._replace(**self._handles(given))
        if shape.has_blocks or shape.has_values:
            shape = shape._replace(ana_group=self._group(given))
        elif self.namespaces.number:  # whose it is
            shape = shape._replace(controllers=(self.namespaces.number,))
        shape = shape._replace(attached=False, uuid=str(uuid4()))
        # What may still be stored of another one of that identifier must not become this one's.
        yield from self._forget([nsid])
        try:
            namespace = yield from self._make(nsid, shape)
        except OSError as error:
            if error.errno in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                raise NvmeError(
                    Status.NAMESPACE_INSUFFICIENT_CAPACITY, dnr=False, detail=str(error.strerror)
                ) from None
            raise
        self.namespaces.inventory.add(namespace)
        units = shape.size
        if isinstance(namespace, Namespace):
            self.storage.media[nsid] = namespace.media
            self.faults.arrange()
            units = namespace.blocks
        self.reports.persistent_events.add(
            NamespaceChanged(
                cdw10=NamespaceManagementOperation.CREATE,
                nsid=nsid,
                nsze=units,
                ncap=units,
                flbas=FORMATS.index(shape.format),
                nmic=NMIC_SHARED if shape.shared else 0,
                anagrpid=shape.ana_group if self.namespaces.ana_groups else 0,
            )
        )
        return nsid

    def _group(self, given: bytes) -> int:
        """The ANA group of a new namespace: the host's choice, or else 1. Raises NvmeError."""
        group = IdentifyNamespace(given).anagrpid
        if group > self.namespaces.ana_groups:
            status = Status.ANA_GROUP_IDENTIFIER_INVALID
            if not self.namespaces.ana_groups:
                status = Status.INVALID_FIELD
            raise NvmeError(status, detail=f"there is no ANA group {group}")
        return group or 1

    def _handles(self, given: bytes) -> dict[str, Any]:
        """The reclaim unit handles of a new namespace: those of the host's list, or else one that
        no namespace has. Raises NvmeError."""
        inventory = self.namespaces.inventory
        if not inventory.handle_count:
            if IdentifyNamespace(given).endgid:
                raise NvmeError(Status.INVALID_FIELD, detail="there is no endurance group")
            return {}
        count = int.from_bytes(given[MANAGEMENT_HANDLES_AT:][:2], "little")
        end = MANAGEMENT_HANDLE_LIST_AT + 2 * min(count, MAX_HANDLES)
        handles = struct.iter_unpack("<H", given[MANAGEMENT_HANDLE_LIST_AT:end])
        listed = tuple(handle for (handle,) in handles)
        every = self.namespaces.blocks
        used = {handle for nsid in every for handle in inventory.handles(nsid)}
        chosen = {ns.shape.handles[0] for ns in every.values() if ns.shape.chosen}
        there = set(range(inventory.handle_count))
        if not count:
            if not there - used:
                raise NvmeError(
                    Status.INVALID_PLACEMENT_HANDLE_LIST, detail="no reclaim unit handle is unused"
                )
            return {"handles": (min(there - used),), "chosen": True}
        if count > MAX_HANDLES or len(set(listed)) < count or not set(listed) <= there - chosen:
            raise NvmeError(
                Status.INVALID_PLACEMENT_HANDLE_LIST,
                detail="a reclaim unit handle is not there, listed twice, or chosen by the drive",
                location=NO_PARAMETER_ERROR_LOCATION,
            )
        return {"handles": listed}

    def delete(self, nsid: int) -> Steps:
        """Take a namespace away, or all, with what it holds."""
        self.sanitizing.require_none()
        if nsid == BROADCAST_NSID:
            namespaces = list(self.namespaces.allocated.values())
        else:
            namespaces = [self._allocated(nsid)]
        self._require_changeable()
        require_writable(ns for ns in namespaces if isinstance(ns, StoredNamespace))
        nsids = [namespace.nsid for namespace in namespaces]
        self.self_tests.abort(SelfTestResult.ABORTED_BY_NAMESPACE_REMOVAL, nsids)
        inventory = self.namespaces.inventory
        attached = {each.nsid: inventory.attached_to(each) for each in namespaces}
        with inventory.withdrawn(nsids):
            yield from self._quiet(namespaces)
            yield partial(self.storage.drive.delete, nsids)
            inventory.remove(nsids)
        for namespace in namespaces:
            if isinstance(namespace, Namespace):
                del self.storage.media[namespace.nsid]
            elif isinstance(namespace, MemoryNamespace):
                self.computes[0].forget(namespace.memory.handle)
                if namespace.bar:
                    namespace.clear()
            elif isinstance(namespace, ComputeNamespace):
                for compute in self.computes:
                    compute.remove(namespace.nsid)
        with suppress(MediaError):  # what is stored of no namespace harms none
            yield from self._forget(nsids)
        for attached_nsid, controllers in attached.items():
            self.reports.namespace_changed(attached_nsid, controllers)
        self.reports.persistent_events.add(
            NamespaceChanged(cdw10=NamespaceManagementOperation.DELETE, nsid=nsid)
        )
        return None

    def attach(self, nsid: int, controllers: Collection[int], *, attach: bool) -> Steps:
        """Let controllers use a namespace, or no longer."""
        self.sanitizing.require_none()
        namespace, inventory = self._allocated(nsid), self.namespaces.inventory
        before = set(inventory.attached_to(namespace))
        if not before.isdisjoint(controllers) if attach else not before.issuperset(controllers):
            status = Status.NAMESPACE_ALREADY_ATTACHED if attach else Status.NAMESPACE_NOT_ATTACHED
            raise NvmeError(status, detail=f"namespace {nsid}")
        after = before.union(controllers) if attach else before.difference(controllers)
        shared, stored = inventory.is_shared(namespace), isinstance(namespace, StoredNamespace)
        if (len(after) > 1 and not shared) or not (stored or after <= {inventory.owner(namespace)}):
            raise NvmeError(Status.NAMESPACE_IS_PRIVATE, detail=f"namespace {nsid}")
        self._require_changeable()
        group, lost = namespace.shape.ana_group, Status.ASYMMETRIC_ACCESS_PERSISTENT_LOSS
        if attach and any(inventory.views[n].refused.get(group) == lost for n in controllers):
            raise NvmeError(Status.ANA_ATTACH_FAILED, detail="its ANA group is in persistent loss")
        every = len(after) == len(inventory.views)
        shape = namespace.shape._replace(attached=bool(after))
        if stored:
            shape = shape._replace(shared=shared, controllers=() if every else tuple(sorted(after)))
        with inventory.withdrawn([nsid], controllers):
            if not before.difference(controllers):
                yield from self._quiet([namespace])
            elif not attach:
                yield from self._leave(nsid, controllers)
            yield partial(self.storage.drive.reshape, nsid, shape)
            namespace.shape = shape
        if len(inventory.views) > 1 and 0 in controllers:
            inventory.version += isinstance(namespace, Namespace)  # for the APU
        self.reports.namespace_changed(nsid, controllers)
        return None

    def _leave(self, nsid: int, controllers: Iterable[int]) -> Steps:
        """End the commands of some controllers on a namespace that others go on with."""
        outstanding = [self.outstanding[number] for number in controllers]
        while going_on := set().union(*(each.abort_namespace(nsid) for each in outstanding)):
            yield going_on
        for each in outstanding:
            each.answer()
        return None

    def _make(self, nsid: int, shape: NamespaceShape) -> Generator[Any, Any, AnyNamespace]:
        """A new namespace, which the drive remembers. Raises MediaError and OSError."""
        drive = self.storage.drive
        if shape.has_blocks:
            media = yield partial(drive.create, nsid, shape)
            return self.namespaces.inventory.make(nsid, shape, media)
        if shape.has_values:
            yield partial(drive.remember, nsid, shape)
            return self.namespaces.inventory.make(nsid, shape)
        namespace = self.namespaces.inventory.make(nsid, shape)
        yield partial(drive.remember, nsid, shape)
        return namespace

    def _quiet(self, namespaces: Sequence[AnyNamespace]) -> Steps:
        """Wait for whatever was begun on these namespaces; programs are stopped."""
        self._stop_programs(namespaces)
        yield from self.operations.quiet(
            [ns for ns in namespaces if not isinstance(ns, ComputeNamespace)]
        )
        yield self._stop_programs(namespaces)
        return None

    def _stop_programs(self, namespaces: Sequence[AnyNamespace]) -> set[Future[Any]]:
        """End what uses these namespaces; the executions that have not ended."""
        left: set[Future[Any]] = set()
        for namespace in namespaces:
            detail = f"namespace {namespace.nsid} is detached"
            if isinstance(namespace, ComputeNamespace):
                error = NvmeError(Status.INVALID_NAMESPACE, detail=detail)
                for compute in self.computes:
                    left |= compute.stop(namespace.nsid, error)
            elif isinstance(namespace, MemoryNamespace):
                error = NvmeError(Status.INVALID_MEMORY_NAMESPACE, detail=detail)
                for compute in self.computes:
                    left |= compute.stop_all(error, namespace.nsid)
        return left

    def _forget(self, nsids: Iterable[int]) -> Steps:
        for nsid in nsids:
            self.namespaces.inventory.features.forget_namespace(nsid)
            self.namespaces.inventory.reservations.forget(nsid)
        self.namespaces.features.put_saved()
        yield from self.uncorrectable.saving()
        return None

    def _allocated(self, nsid: int) -> AnyNamespace:
        """A namespace that there is, attached or not. Raises NvmeError."""
        if nsid == BROADCAST_NSID:
            raise NvmeError(Status.INVALID_FIELD, detail="the command is about one namespace")
        namespace = self.namespaces.every.get(nsid)
        if namespace is None:
            raise self.namespaces.absent(nsid)
        if namespace.csi not in self.namespaces.enabled:
            raise NvmeError(
                Status.IO_COMMAND_SET_NOT_ENABLED,
                detail=f"command set {namespace.csi.name} of namespace {nsid} is not enabled",
            )
        return namespace

    def _require_changeable(self) -> None:
        if self.storage.drive.read_only:
            raise NvmeError(
                Status.OPERATION_DENIED, detail="the drive was opened for reading alone"
            )


# The shape of a namespace as a host describes it.


def _wanted_blocks(data: bytes, extended_formats: bool) -> NamespaceShape:
    given = IdentifyNamespace(data)
    # What is wrong is in the data, and not in the command.
    location = NO_PARAMETER_ERROR_LOCATION
    block_size, metadata = wanted_format(
        given.format_index_upper << 4 | given.format_index,
        extended=bool(given.metadata_extended),
        protection=given.dps & DPS_TYPE,
        first=bool(given.dps & DPS_FIRST),
        enabled=extended_formats,
        location=location,
    )
    _require_capacity(given.nsze, given.ncap)
    if given.lbstm and metadata.storage_tag and given.lbstm != (1 << metadata.storage_tag) - 1:
        raise NvmeError(Status.INVALID_FIELD, detail="no bit of a storage tag can be masked")
    _require_no_groups(given)
    return NamespaceShape(
        given.nsze * block_size,
        block_size,
        shared=bool(given.nmic & NMIC_SHARED),
        metadata=metadata,
    )


def _wanted_zones(data: bytes, extended_formats: bool) -> NamespaceShape:
    """Zones have the size that Identify says of all zoned namespaces. Raises NvmeError."""
    blocks = _wanted_blocks(data, extended_formats)
    if blocks.metadata.size:
        raise NvmeError(
            Status.INVALID_FORMAT,
            detail="zones have no metadata",
            location=NO_PARAMETER_ERROR_LOCATION,
        )
    try:
        shape = NamespaceShape.zoned(blocks.size, block_size=blocks.block_size)
    except ValueError as error:
        raise NvmeError(Status.INVALID_FIELD, detail=str(error)) from None
    return shape._replace(shared=blocks.shared)


def _wanted_values(data: bytes, extended_formats: bool) -> NamespaceShape:
    given = IdentifyNamespace(data)  # its fields are at the same offsets (KV 1.0d, figure 41)
    if not given.nsze:
        raise NvmeError(Status.INVALID_FIELD, detail="a namespace has room for at least a byte")
    _require_no_groups(given)
    shape = NamespaceShape.key_value(given.nsze)
    return shape._replace(shared=bool(given.nmic & NMIC_SHARED))


def _wanted_memory(data: bytes, extended_formats: bool) -> NamespaceShape:
    given = MemoryStructure(data)
    # NCAP may be left out: whether the standard's structure has one is not known.
    _require_capacity(given.nsze, given.ncap or given.nsze)
    if given.nsze % MEMORY_UNIT:
        raise NvmeError(Status.INVALID_FIELD, detail=f"{given.nsze} bytes are no whole pages")
    return NamespaceShape.memory(given.nsze)


def _wanted_compute(data: bytes, extended_formats: bool) -> NamespaceShape:
    return NamespaceShape.compute()


_WANTED: dict[CommandSet, Callable[[bytes, bool], NamespaceShape]] = {
    CommandSet.NVM: _wanted_blocks,
    CommandSet.ZONED: _wanted_zones,
    CommandSet.KEY_VALUE: _wanted_values,
    CommandSet.MEMORY: _wanted_memory,
    CommandSet.COMPUTE: _wanted_compute,
}


def _require_no_groups(given: IdentifyNamespace) -> None:
    if given.nmic & ~NMIC_SHARED or given.nvmsetid or given.endgid > GROUP:
        raise NvmeError(
            Status.INVALID_FIELD, detail="there are no sets and groups for a namespace to be in"
        )


def _require_capacity(size: int, capacity: int) -> None:
    """Raise NvmeError for units that could not all be used."""
    if not size or capacity > size:
        raise NvmeError(Status.INVALID_FIELD, detail=f"{capacity} units of {size} can be used")
    if capacity < size:
        raise NvmeError(
            Status.THIN_PROVISIONING_NOT_SUPPORTED, detail="every unit has its capacity"
        )

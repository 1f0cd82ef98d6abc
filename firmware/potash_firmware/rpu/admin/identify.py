"""Identify.

Source: NVM Express Base Specification 2.0, section 5.17; NVM Command Set Specification 1.0, section
4.1.5.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from nvme_spec.commands import Identify
from nvme_spec.computational import ComputeNamespace as ComputeStructure
from nvme_spec.identify import capabilities, lists, structures
from nvme_spec.key_value import LONGEST_KEY, KeyValueFormat
from nvme_spec.key_value import KeyValueNamespaceStructure as KeyValueStructure
from nvme_spec.layout import Structure
from nvme_spec.memory_commands import MemoryNamespace as MemoryStructure
from nvme_spec.ocp import OCP_UUID
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from nvme_spec.zoned import (
    EXPLICIT_FLUSH,
    RANDOM_WRITE_AREAS,
    READ_ACROSS_ZONES,
    LbaFormatExtension,
    ZonedController,
)
from nvme_spec.zoned import ZonedNamespaceStructure as ZonedStructure
from potash_device.controller.dma import PAGE_SIZE
from potash_device.media.shapes import (
    BLOCK_SIZES,
    DEFAULT_ZONE_SIZE,
    FORMATS,
    MAX_VALUE,
    BlockFormat,
)
from potash_firmware.rpu.admin.identify_controller import controller_structure
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.command_sets.nvm.limits import DEALLOCATION, namespace_fields
from potash_firmware.rpu.compute.programs import LOAD_SHIFT
from potash_firmware.rpu.compute.ranges import RANGE_SHIFT
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.inventory import AnyNamespace, StoredNamespace
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.reachability import GROUP
from potash_firmware.rpu.namespaces.zoned import ZonedNamespace
from potash_firmware.rpu.placement import GROUP as ENDURANCE_GROUP

Which = Callable[[Controller], Mapping[int, AnyNamespace]]


def _active(controller: Controller) -> Mapping[int, AnyNamespace]:
    return controller.namespaces.attached


def _allocated(controller: Controller) -> Mapping[int, AnyNamespace]:
    return controller.namespaces.allocated


def _find(controller: Controller, nsid: int, which: Which) -> AnyNamespace | None:
    """The namespace; None where there could be one. Raises NvmeError for no identifier."""
    _require_possible(controller, nsid)
    return which(controller).get(nsid)


def identify(controller: Controller, command: Command) -> Result:
    """Give the structure that CNS names."""
    fields = Identify.decode(command.entry.cdws)
    structure = STRUCTURES.get(fields.cns)
    if (
        structure is None
        or (structure.placement and controller.placement is None)
        or (structure.ocp and controller.ocp is None)
    ):
        raise NvmeError(Status.INVALID_FIELD, detail=f"CNS {fields.cns:#x} is not supported")
    if structure.of_no_namespace and command.entry.nsid:
        raise NvmeError(Status.INVALID_FIELD, detail=f"CNS {fields.cns:#x} is of no namespace")
    controller.transfer.send(command, structure.make(controller, command, fields))
    return None


def _namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    if nsid == BROADCAST_NSID and controller.support.oacs & capabilities.Oacs.NAMESPACE_MANAGEMENT:
        # What all namespaces have in common (section 5.17.2.1): the formats, and no size.
        return bytes(
            structures.IdentifyNamespace(
                rescap=_RESERVATIONS,
                fpi=capabilities.FPI_SUPPORTED,
                dlfeat=DEALLOCATION,
                **_FORMATS,
            )
        )
    return _of_blocks(controller, _find(controller, nsid, _active))


def _of_blocks(controller: Controller, namespace: AnyNamespace | None) -> bytes:
    """CNS 00h and 11h, which are of namespaces with logical blocks."""
    if namespace is None:
        return bytes(lists.IDENTIFY_SIZE)
    if not isinstance(namespace, Namespace):
        raise NvmeError(
            Status.INVALID_IO_COMMAND_SET, detail=f"namespace {namespace.nsid} has no blocks"
        )
    return _identified(controller, namespace, namespace_structure(controller, namespace))


def _identified(
    controller: Controller,
    namespace: AnyNamespace,
    structure: structures.IdentifyNamespace | KeyValueStructure,
) -> bytes:
    """A structure with the identifiers of its namespace, and its asymmetric access."""
    identifiers = _identifiers(controller, namespace)
    structure.nguid = identifiers.get(lists.NamespaceIdType.NGUID, structure.nguid)
    structure.eui64 = identifiers.get(lists.NamespaceIdType.EUI64, structure.eui64)
    if controller.ana is not None:
        structure.anagrpid = namespace.shape.ana_group
        if controller.ana.capacity_unknown(structure.anagrpid):
            structure.nuse = 0
            if isinstance(structure, structures.IdentifyNamespace):
                structure.nvmcap = 0
    return bytes(structure)


def namespace_structure(
    controller: Controller, namespace: Namespace
) -> structures.IdentifyNamespace:
    metadata = namespace.metadata
    return structures.IdentifyNamespace(
        nsze=namespace.blocks,
        ncap=namespace.capacity,
        nuse=namespace.capacity,
        format_index=FORMATS.index(namespace.format),
        metadata_extended=metadata.extended,
        dps=metadata.protection | (capabilities.DPS_FIRST if metadata.first else 0),
        nmic=_nmic(controller, namespace),
        rescap=_RESERVATIONS,
        fpi=capabilities.FPI_SUPPORTED | namespace.unformatted,
        nvmcap=namespace.size,
        nsattr=_nsattr(namespace),
        endgid=ENDURANCE_GROUP if namespace.placed else 0,
        **(_ZONE_FORMATS if namespace.shape.zone_size else _FORMATS),
        **namespace_fields(namespace),
    )


def _nmic(controller: Controller, namespace: AnyNamespace) -> int:
    shared = controller.subsystem.inventory.is_shared(namespace)
    return capabilities.NMIC_SHARED if shared else 0


def _nsattr(namespace: StoredNamespace) -> int:
    return 0 if namespace.media.writable else capabilities.NSATTR_WRITE_PROTECTED


def _format(lbaf: BlockFormat) -> structures.LbaFormat:
    return structures.LbaFormat(ms=lbaf.metadata, lbads=lbaf.block_size.bit_length() - 1)


_RESERVATIONS = capabilities.Rescap(-1)
"""RESCAP: all that there is, of namespaces whose contents are durable."""

_FORMATS: dict[str, Any] = {
    "nlbaf_z": len(FORMATS) - 1,
    "mc": capabilities.Mc.EXTENDED | capabilities.Mc.SEPARATE,
    "dpc": capabilities.Dpc.TYPE_1
    | capabilities.Dpc.TYPE_2
    | capabilities.Dpc.TYPE_3
    | capabilities.Dpc.FIRST_BYTES
    | capabilities.Dpc.LAST_BYTES,
    "lbaf": tuple(map(_format, FORMATS)),
}
"""The formats in Identify Namespace, the same for all namespaces without zones."""
_ZONE_FORMATS: dict[str, Any] = {
    "nlbaf_z": len(BLOCK_SIZES) - 1,
    "lbaf": tuple(map(_format, FORMATS[: len(BLOCK_SIZES)])),
}
"""The formats of zoned namespaces, which have no metadata."""


def _list(
    controller: Controller,
    command: Command,
    fields: Identify,
    which: Which,
    *,
    by_command_set: bool = False,
) -> bytes:
    """CNS 02h, 07h, 10h and 1Ah: identifiers above the command's."""
    first, csi = command.entry.nsid, _enabled(controller, fields) if by_command_set else None
    if first >= BROADCAST_NSID - 1:
        raise NvmeError(Status.INVALID_NAMESPACE, detail="no namespace can follow that one")
    return lists.encode_namespace_list(
        nsid for nsid, ns in which(controller).items() if nsid > first and csi in (None, ns.csi)
    )


def _allocated_namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _of_blocks(controller, _find(controller, command.entry.nsid, _allocated))


def _attached_controllers(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    _require_possible(controller, nsid)
    if nsid not in controller.namespaces.allocated:
        raise controller.namespaces.absent(nsid)
    return _controllers_from(
        fields,
        (
            each.identifier
            for each in controller.subsystem.controllers
            if nsid in each.namespaces.attached
        ),
    )


def _controllers_from(fields: Identify, identifiers: Iterable[int]) -> bytes:
    return lists.encode_controller_list(cntid for cntid in identifiers if cntid >= fields.cntid)


def _descriptors(controller: Controller, command: Command, fields: Identify) -> bytes:
    identifiers = _identifiers(controller, controller.namespaces.active(command.entry.nsid))
    descriptors = map(lists.NamespaceIdentificationDescriptor, identifiers, identifiers.values())
    return b"".join(item.encode() for item in descriptors).ljust(lists.IDENTIFY_SIZE, b"\0")


def _identifiers(
    controller: Controller, namespace: AnyNamespace
) -> dict[lists.NamespaceIdType, bytes]:
    """The identifiers of a namespace; all follow from its UUID."""
    kinds, settings, nsid = lists.NamespaceIdType, controller.settings, namespace.nsid
    uuid = UUID(namespace.shape.uuid or str(settings.identity.uuid(f"namespace {nsid}"))).bytes
    found = {kinds.UUID: uuid, kinds.CSI: bytes([namespace.csi])}
    if settings.nguid:
        # The first byte says that no organisation has assigned it, and that it names one thing.
        eui64 = bytes([uuid[0] & ~3 | 2]) + uuid[1:8]
        found |= {kinds.EUI64: eui64, kinds.NGUID: uuid[8:] + eui64}
    return found


def _of_command_set(
    controller: Controller, command: Command, fields: Identify, which: Which
) -> bytes:
    """CNS 05h and 1Bh: what a command set says of one namespace, or of all that it may have."""
    nsid, csi = command.entry.nsid, _enabled(controller, fields)
    if nsid == BROADCAST_NSID and controller.support.oacs & capabilities.Oacs.NAMESPACE_MANAGEMENT:
        return bytes(_IN_COMMON[csi](controller))
    namespace = _find(controller, nsid, which)
    if namespace is None:
        return bytes(lists.IDENTIFY_SIZE)
    if isinstance(namespace, ZonedNamespace):
        if csi is capabilities.CommandSet.ZONED:
            return bytes(_zones_of(namespace))
    elif namespace.csi != csi:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"namespace {nsid} is not of command set {csi.name}"
        )
    if isinstance(namespace, KeyValueNamespace):
        return _identified(controller, namespace, _values_of(controller, namespace))
    if isinstance(namespace, MemoryNamespace):
        return bytes(MemoryStructure(nsze=namespace.size, ncap=namespace.size))
    if isinstance(namespace, Namespace):
        return bytes(_extended_formats(namespace.metadata.storage_tag))
    return bytes(_IN_COMMON[csi](controller))


def _zones_of(namespace: ZonedNamespace) -> Structure:
    zones, areas = namespace.zones, namespace.zones.areas
    return ZonedStructure(
        ozcs=READ_ACROSS_ZONES * zones.cross_zone_reads | RANDOM_WRITE_AREAS * bool(areas.size),
        mar_z=zones.active_limit - 1,
        mor_z=zones.open_limit - 1,
        numzrwa_z=zones.area_limit - 1 if areas.size else 0,
        zrwafg=areas.granularity,
        zrwasz=areas.size,
        zrwacap=EXPLICIT_FLUSH if areas.size else 0,
        lbafe=_extensions(namespace.shape.zone_size),
    )


def _values_of(controller: Controller, namespace: KeyValueNamespace) -> KeyValueStructure:
    return KeyValueStructure(
        nsze=namespace.size,
        nuse=namespace.media.used,
        nmic=_nmic(controller, namespace),
        rescap=_RESERVATIONS,
        fpi=capabilities.FPI_SUPPORTED | namespace.unformatted,
        nsattr=_nsattr(namespace),
        kvf=_value_format(namespace.shape.max_value),
    )


def _value_format(max_value: int) -> tuple[KeyValueFormat, ...]:
    """The one KV format of a namespace."""
    return (KeyValueFormat(key_max=LONGEST_KEY, value_max=max_value),)


def _extensions(zone_size: int) -> tuple[LbaFormatExtension, ...]:
    return tuple(LbaFormatExtension(zsze=zone_size // size, zdes=1) for size in BLOCK_SIZES)


def _compute_limits(controller: Controller) -> Structure:
    limits = controller.settings.compute
    return ComputeStructure(
        maxact=limits.activated,
        maxmemrs=limits.range_sets,
        mrsg=RANGE_SHIFT,
        maxmemr=limits.ranges,
        maxpb=limits.program_memory,
        lpg=LOAD_SHIFT,
    )


def _extended_formats(storage_tag: int) -> structures.NvmCommandSetNamespace:
    """The NVM command set's part of Identify Namespace; no bit of a storage tag is masked."""
    return structures.NvmCommandSetNamespace(
        lbstm=(1 << storage_tag) - 1,
        pic=capabilities.Pic.STORAGE_TAG_16 | capabilities.Pic.STORAGE_TAG_16_UNMASKED,
        elbaf=tuple(
            structures.ExtendedLbaFormat(sts=lbaf.storage_tag, pif=lbaf.guard // 32)
            for lbaf in FORMATS
        ),
    )


_IN_COMMON: dict[capabilities.CommandSet, Callable[[Controller], Structure]] = {
    capabilities.CommandSet.NVM: lambda controller: _extended_formats(0),
    capabilities.CommandSet.ZONED: lambda controller: ZonedStructure(
        ozcs=READ_ACROSS_ZONES, lbafe=_extensions(DEFAULT_ZONE_SIZE)
    ),
    capabilities.CommandSet.KEY_VALUE: lambda controller: KeyValueStructure(
        rescap=_RESERVATIONS, fpi=capabilities.FPI_SUPPORTED, kvf=_value_format(MAX_VALUE)
    ),
    capabilities.CommandSet.MEMORY: lambda controller: MemoryStructure(),
    capabilities.CommandSet.COMPUTE: _compute_limits,
}
"""CNS 05h with the broadcast namespace identifier: what all namespaces have in common."""


def _command_set_controller(controller: Controller, command: Command, fields: Identify) -> bytes:
    if _enabled(controller, fields) is capabilities.CommandSet.ZONED:
        limit = controller.settings.append_limit
        return bytes(ZonedController(zasl=(limit // PAGE_SIZE).bit_length() - 1 if limit else 0))
    # No structure is known of any other command set, and zeroes stand for that.
    return bytes(structures.NvmCommandSetController())


def _independent(controller: Controller, command: Command, fields: Identify, which: Which) -> bytes:
    namespace = _find(controller, command.entry.nsid, which)
    if namespace is None:
        return bytes(lists.IDENTIFY_SIZE)
    stored = isinstance(namespace, StoredNamespace)
    return bytes(
        structures.IndependentNamespace(
            nsfeat=0 if stored else capabilities.NSFEAT_NO_WRITE_CACHE,
            nmic=_nmic(controller, namespace),
            anagrpid=namespace.shape.ana_group if controller.ana is not None else 0,
            rescap=_RESERVATIONS if stored else 0,
            nsattr=_nsattr(namespace) if isinstance(namespace, StoredNamespace) else 0,
            endgid=ENDURANCE_GROUP if isinstance(namespace, Namespace) and namespace.placed else 0,
            nstat=capabilities.NSTAT_READY,
            rgrpid=GROUP if capabilities.CommandSet.MEMORY in controller.namespaces.enabled else 0,
        )
    )


def _command_sets(controller: Controller, command: Command, fields: Identify) -> bytes:
    if fields.cntid not in (controller.identifier, capabilities.THIS_CONTROLLER):
        raise NvmeError(Status.INVALID_FIELD, detail=f"there is no controller {fields.cntid:#x}")
    return bytes(
        structures.CommandSetCombinations(
            combinations=[
                sum(1 << csi for csi in sets)
                for sets in controller.namespaces.inventory.combinations
            ]
        )
    )


def _enabled(controller: Controller, fields: Identify) -> capabilities.CommandSet:
    """The command set that the command is about. Raises NvmeError for one that is not enabled."""
    if fields.csi not in controller.namespaces.enabled:
        raise NvmeError(Status.INVALID_FIELD, detail=f"command set {fields.csi} is not supported")
    return capabilities.CommandSet(fields.csi)


def _require_possible(controller: Controller, nsid: int) -> None:
    if not 1 <= nsid <= controller.namespaces.inventory.highest_nsid:
        raise NvmeError(Status.INVALID_NAMESPACE, detail=f"{nsid:#x} is no namespace identifier")


@dataclass(frozen=True, slots=True)
class Answer:
    """A data structure of Identify."""

    make: Callable[[Controller, Command, Identify], bytes]
    of_no_namespace: bool = False
    """The namespace identifier has nothing to do with it, and must be 0."""
    placement: bool = False
    """Only a drive with flexible data placement has it."""
    ocp: bool = False
    """Only a drive with the log pages of the Open Compute Project has it."""


STRUCTURES: dict[int, Answer] = {
    structures.Cns.NAMESPACE: Answer(_namespace),
    structures.Cns.CONTROLLER: Answer(
        lambda controller, *_: bytes(controller_structure(controller)), of_no_namespace=True
    ),
    structures.Cns.ACTIVE_NAMESPACE_LIST: Answer(partial(_list, which=_active)),
    structures.Cns.NAMESPACE_IDENTIFICATION_DESCRIPTORS: Answer(_descriptors),
    structures.Cns.COMMAND_SET_NAMESPACE: Answer(partial(_of_command_set, which=_active)),
    structures.Cns.COMMAND_SET_CONTROLLER: Answer(_command_set_controller, of_no_namespace=True),
    structures.Cns.COMMAND_SET_ACTIVE_NAMESPACE_LIST: Answer(
        partial(_list, which=_active, by_command_set=True)
    ),
    structures.Cns.COMMAND_SET_INDEPENDENT_NAMESPACE: Answer(partial(_independent, which=_active)),
    structures.Cns.ALLOCATED_NAMESPACE_LIST: Answer(partial(_list, which=_allocated)),
    structures.Cns.ALLOCATED_NAMESPACE: Answer(_allocated_namespace),
    structures.Cns.NAMESPACE_CONTROLLER_LIST: Answer(_attached_controllers),
    structures.Cns.CONTROLLER_LIST: Answer(
        lambda controller, command, fields: _controllers_from(
            fields, range(len(controller.subsystem.controllers))
        )
    ),
    structures.Cns.ENDURANCE_GROUP_LIST: Answer(
        lambda controller, command, fields: lists.encode_controller_list(
            [ENDURANCE_GROUP] if fields.cnssid <= ENDURANCE_GROUP else []
        ),
        placement=True,
    ),
    structures.Cns.UUID_LIST: Answer(
        lambda *_: lists.encode_uuid_list([OCP_UUID]), of_no_namespace=True, ocp=True
    ),
    structures.Cns.COMMAND_SET_ALLOCATED_NAMESPACE_LIST: Answer(
        partial(_list, which=_allocated, by_command_set=True)
    ),
    structures.Cns.COMMAND_SET_ALLOCATED_NAMESPACE: Answer(
        partial(_of_command_set, which=_allocated)
    ),
    structures.Cns.COMMAND_SETS: Answer(_command_sets, of_no_namespace=True),
    structures.Cns.COMMAND_SET_INDEPENDENT_ALLOCATED_NAMESPACE: Answer(
        partial(_independent, which=_allocated)
    ),
}
"""Every data structure that can be asked for."""

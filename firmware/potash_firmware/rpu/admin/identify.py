"""Identify.

Source: NVM Express Base Specification 2.0, section 5.17; NVM Command Set Specification 1.0, section
4.1.5.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from nvme_spec.commands import Identify
from nvme_spec.computational import ComputeNamespace as ComputeStructure
from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import (
    FPI_SUPPORTED,
    FRMW_SLOTS_SHIFT,
    FWUG_NO_RESTRICTION,
    NMIC_SHARED,
    NSATTR_WRITE_PROTECTED,
    NSFEAT_NO_WRITE_CACHE,
    NSTAT_READY,
    THIS_CONTROLLER,
    CommandSet,
    ControllerType,
    Crcap,
    Ctratt,
    Dsto,
    Frmw,
    Hctma,
    Nvmsr,
    Oacs,
    Oaes,
    Oncs,
    Sanicap,
    Sgls,
    Vwc,
    entry_sizes,
)
from nvme_spec.identify.lists import (
    IDENTIFY_SIZE,
    NamespaceIdentificationDescriptor,
    NamespaceIdType,
    encode_controller_list,
    encode_namespace_list,
)
from nvme_spec.identify.structures import (
    Cns,
    CommandSetCombinations,
    IdentifyController,
    IdentifyNamespace,
    IndependentNamespace,
    LbaFormat,
    NvmCommandSetController,
    NvmCommandSetNamespace,
    PowerStateDescriptor,
)
from nvme_spec.layout import Structure
from nvme_spec.memory_commands import MemoryNamespace as MemoryStructure
from nvme_spec.queues import BROADCAST_NSID, COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT
from nvme_spec.ranges import CopyFormat
from nvme_spec.registers import VERSION_2_0
from nvme_spec.status import NvmeError, Status
from potash_device.media.flash import LAST_SLOT
from potash_device.media.shapes import BLOCK_SIZES
from potash_firmware.rpu.admin import log_pages
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.command_sets.nvm.limits import (
    CONTROLLER_FIELDS,
    DEALLOCATION,
    namespace_fields,
)
from potash_firmware.rpu.compute.programs import LOAD_SHIFT
from potash_firmware.rpu.compute.ranges import RANGE_SHIFT
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features.table import (
    CRITICAL_TEMPERATURE,
    FEATURES,
    HIGHEST_THRESHOLD,
    KEEP_ALIVE_GRANULARITY,
    LOWEST_THRESHOLD,
    WARNING_TEMPERATURE,
)
from potash_firmware.rpu.logs.alerts import OPTIONAL_EVENTS
from potash_firmware.rpu.logs.async_events import REQUEST_LIMIT
from potash_firmware.rpu.logs.errors import ERROR_LOG_ENTRIES
from potash_firmware.rpu.namespaces.inventory import CONTROLLER_ID, AnyNamespace
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.reachability import GROUP
from potash_firmware.rpu.operations.sanitize import ACTIONS
from potash_firmware.rpu.transfer import MAX_TRANSFER_SHIFT

ABORT_LIMIT = 4
"""Concurrent Abort commands; they are answered at once."""

ATOMIC_BLOCKS = 1
"""AWUN and AWUPF: a block is old or new, to other commands and after the device's process has died.

More blocks are written in one go, but nobody promises that a process that is killed then has done
all or nothing of it. What a host that loses power does to a page on its way is its disk's affair.
"""

ACTIVATION_TIME = 1
"""MTFA, in units of 100 milliseconds: an image becomes the active one at once."""

MICROSECONDS = 1_000_000


def identify(controller: Controller, command: Command) -> Result:
    """Give the structure that CNS names."""
    fields = Identify.decode(command.entry.cdws)
    structure = STRUCTURES.get(fields.cns)
    if structure is None:
        raise NvmeError(Status.INVALID_FIELD, detail=f"CNS {fields.cns:#x} is not supported")
    if structure.of_no_namespace and command.entry.nsid:
        raise NvmeError(Status.INVALID_FIELD, detail=f"CNS {fields.cns:#x} is of no namespace")
    controller.transfer.send(command, structure.make(controller, command, fields))
    return None


def _controller(controller: Controller, command: Command, fields: Identify) -> bytes:
    return bytes(controller_structure(controller))


def controller_structure(controller: Controller) -> IdentifyController:
    """What the controller says of itself."""
    identity = controller.settings.identity
    pci = controller.board.settings.identity
    says = IdentifyController(
        vid=pci.vendor_id,
        ssvid=pci.subsystem_vendor_id,
        sn=identity.serial,
        mn=identity.model,
        fr=controller.firmware.revision,
        mdts=MAX_TRANSFER_SHIFT,
        cntlid=CONTROLLER_ID,
        ver=VERSION_2_0,
        rtd3e=controller.board.settings.ready_timeout * MICROSECONDS // 2,
        oaes=OPTIONAL_EVENTS & ~Oaes.REACHABILITY,
        cntrltype=ControllerType.IO,
        ctratt=_if_there(FeatureId.HOST_IDENTIFIER, Ctratt.HOST_IDENTIFIER_128),
        nvmsr=Nvmsr.STORAGE_DEVICE,
        oacs=controller.support.oacs,
        acl_z=ABORT_LIMIT - 1,
        aerl_z=REQUEST_LIMIT - 1,
        frmw=Frmw.FIRST_SLOT_READ_ONLY
        | LAST_SLOT << FRMW_SLOTS_SHIFT
        | Frmw.ACTIVATION_WITHOUT_RESET,
        lpa=log_pages.attributes(),
        pels=log_pages.PERSISTENT_EVENT_LOG_UNITS,
        elpe_z=ERROR_LOG_ENTRIES - 1,
        avscc=1,
        wctemp=WARNING_TEMPERATURE,
        cctemp=CRITICAL_TEMPERATURE,
        mtfa=ACTIVATION_TIME,
        kas=_if_there(FeatureId.KEEP_ALIVE_TIMER, KEEP_ALIVE_GRANULARITY),
        hctma=_if_there(FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT, Hctma.SUPPORTED),
        mntmt=LOWEST_THRESHOLD,
        mxtmt=HIGHEST_THRESHOLD,
        tnvmcap=controller.namespaces.total_capacity,
        unvmcap=controller.namespaces.unallocated,
        edstt=controller.self_tests.extended_minutes,
        dsto=Dsto.ONE_IN_SUBSYSTEM,
        sanicap=sum(ACTIONS.values()) | Sanicap.MEDIA_NOT_MODIFIED,
        sqes=entry_sizes(SUBMISSION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT),
        cqes=entry_sizes(COMPLETION_ENTRY_SHIFT, COMPLETION_ENTRY_SHIFT),
        nn=controller.namespaces.highest_nsid,
        oncs=controller.support.oncs
        | Oncs.SAVE_AND_SELECT
        | _if_there(FeatureId.TIMESTAMP, Oncs.TIMESTAMP),
        sgls=Sgls.SUPPORTED | Sgls.BIT_BUCKET | Sgls.LARGER_THAN_DATA,
        vwc=Vwc.PRESENT | Vwc.FLUSH_BROADCAST_SUPPORTED,
        awun_z=ATOMIC_BLOCKS - 1,
        awupf_z=ATOMIC_BLOCKS - 1,
        fwug=FWUG_NO_RESTRICTION,
        icsvscc=1,
        subnqn=identity.nqn,
        psd=(PowerStateDescriptor(mp=2500),),
        **CONTROLLER_FIELDS,
    )
    if CommandSet.MEMORY in controller.namespaces.enabled:
        says.oaes |= Oaes.REACHABILITY
        says.crcap = Crcap.REPORTING | Crcap.GROUPS_FIXED
        says.copy_formats |= 1 << CopyFormat.MEMORY
    return says


def _if_there(fid: int, says: int) -> int:
    """What Identify Controller says of a feature; 0 without it."""
    return says if fid in FEATURES else 0


def _namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    if nsid == BROADCAST_NSID and controller.support.oacs & Oacs.NAMESPACE_MANAGEMENT:
        # What all namespaces have in common (section 5.17.2.1): the formats, and no size.
        return bytes(
            IdentifyNamespace(
                nlbaf_z=len(BLOCK_SIZES) - 1,
                fpi=FPI_SUPPORTED,
                dlfeat=DEALLOCATION,
                lbaf=tuple(map(_format, BLOCK_SIZES)),
            )
        )
    return _of_blocks(_active(controller, nsid))


def _of_blocks(namespace: AnyNamespace | None) -> bytes:
    """CNS 00h and 11h, which are of namespaces with logical blocks."""
    if namespace is None:
        return bytes(IDENTIFY_SIZE)
    if not isinstance(namespace, Namespace):
        raise NvmeError(
            Status.INVALID_IO_COMMAND_SET, detail=f"namespace {namespace.nsid} has no blocks"
        )
    return bytes(namespace_structure(namespace))


def namespace_structure(namespace: Namespace) -> IdentifyNamespace:
    """What the NVM command set says of a namespace."""
    return IdentifyNamespace(
        nsze=namespace.blocks,
        ncap=namespace.blocks,
        nuse=namespace.blocks,
        nlbaf_z=len(BLOCK_SIZES) - 1,
        format_index=BLOCK_SIZES.index(namespace.block_size),
        nmic=NMIC_SHARED if namespace.settings.shared else 0,
        fpi=FPI_SUPPORTED | namespace.unformatted,
        nvmcap=namespace.size,
        nsattr=_nsattr(namespace),
        lbaf=tuple(map(_format, BLOCK_SIZES)),
        **namespace_fields(namespace),
    )


def _nsattr(namespace: Namespace) -> int:
    return 0 if namespace.media.writable else NSATTR_WRITE_PROTECTED


def _format(block_size: int) -> LbaFormat:
    return LbaFormat(lbads=block_size.bit_length() - 1)


def _namespace_list(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _listed_after(command, controller.namespaces.attached)


def _allocated_list(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _listed_after(command, controller.namespaces.allocated)


def _listed_after(command: Command, nsids: Iterable[int]) -> bytes:
    first = command.entry.nsid
    if first >= BROADCAST_NSID - 1:
        raise NvmeError(Status.INVALID_NAMESPACE, detail="no namespace can follow that one")
    return encode_namespace_list(nsid for nsid in nsids if nsid > first)


def _allocated_namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _of_blocks(_allocated(controller, command.entry.nsid))


def _attached_controllers(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    _require_possible(controller, nsid)
    if nsid not in controller.namespaces.allocated:
        raise controller.namespaces.absent(nsid)
    return _controllers_from(
        fields, [CONTROLLER_ID] if nsid in controller.namespaces.attached else []
    )


def _all_controllers(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _controllers_from(fields, [CONTROLLER_ID])


def _controllers_from(fields: Identify, identifiers: Iterable[int]) -> bytes:
    return encode_controller_list(one for one in identifiers if one >= fields.cntid)


def _descriptors(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    namespace = controller.namespaces.active(nsid)
    settings = namespace.settings
    uuid = UUID(settings.uuid or str(controller.settings.identity.uuid(f"namespace {nsid}")))
    descriptors = (
        NamespaceIdentificationDescriptor(NamespaceIdType.UUID, uuid.bytes),
        NamespaceIdentificationDescriptor(NamespaceIdType.CSI, bytes([namespace.csi])),
    )
    return b"".join(item.encode() for item in descriptors).ljust(IDENTIFY_SIZE, b"\0")


def _command_set_namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _of_command_set(controller, command, fields, _active)


def _command_set_allocated_namespace(
    controller: Controller, command: Command, fields: Identify
) -> bytes:
    return _of_command_set(controller, command, fields, _allocated)


def _of_command_set(
    controller: Controller,
    command: Command,
    fields: Identify,
    find: Callable[[Controller, int], AnyNamespace | None],
) -> bytes:
    """CNS 05h and 1Bh: what a command set says of one namespace, or of all that it may have."""
    nsid, csi = command.entry.nsid, _enabled(controller, fields)
    if nsid == BROADCAST_NSID and controller.support.oacs & Oacs.NAMESPACE_MANAGEMENT:
        return bytes(_IN_COMMON[csi](controller))
    namespace = find(controller, nsid)
    if namespace is None:
        return bytes(IDENTIFY_SIZE)
    if namespace.csi != csi:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"namespace {nsid} is not of command set {csi.name}"
        )
    if isinstance(namespace, MemoryNamespace):
        return bytes(MemoryStructure(nsze=namespace.size, ncap=namespace.size))
    return bytes(_IN_COMMON[csi](controller))


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


_IN_COMMON: dict[CommandSet, Callable[[Controller], Structure]] = {
    CommandSet.NVM: lambda controller: NvmCommandSetNamespace(),
    CommandSet.MEMORY: lambda controller: MemoryStructure(),
    CommandSet.COMPUTE: _compute_limits,
}
"""CNS 05h with the broadcast namespace identifier: what all namespaces have in common."""


def _command_set_controller(controller: Controller, command: Command, fields: Identify) -> bytes:
    # No structure is known of any other command set, and zeroes stand for that.
    _enabled(controller, fields)
    return bytes(NvmCommandSetController())


def _command_set_namespace_list(
    controller: Controller, command: Command, fields: Identify
) -> bytes:
    return _listed_of(command, controller.namespaces.attached, _enabled(controller, fields))


def _command_set_allocated_list(
    controller: Controller, command: Command, fields: Identify
) -> bytes:
    return _listed_of(command, controller.namespaces.allocated, _enabled(controller, fields))


def _listed_of(command: Command, namespaces: Mapping[int, AnyNamespace], csi: CommandSet) -> bytes:
    return _listed_after(command, [nsid for nsid, one in namespaces.items() if one.csi == csi])


def _independent_namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _independent(controller, _active(controller, command.entry.nsid))


def _independent_allocated(controller: Controller, command: Command, fields: Identify) -> bytes:
    return _independent(controller, _allocated(controller, command.entry.nsid))


def _independent(controller: Controller, namespace: AnyNamespace | None) -> bytes:
    if namespace is None:
        return bytes(IDENTIFY_SIZE)
    blocks = isinstance(namespace, Namespace)
    return bytes(
        IndependentNamespace(
            nsfeat=0 if blocks else NSFEAT_NO_WRITE_CACHE,
            nmic=NMIC_SHARED if namespace.settings.shared else 0,
            nsattr=_nsattr(namespace) if isinstance(namespace, Namespace) else 0,
            nstat=NSTAT_READY,
            rgrpid=GROUP if CommandSet.MEMORY in controller.namespaces.enabled else 0,
        )
    )


def _command_sets(controller: Controller, command: Command, fields: Identify) -> bytes:
    if fields.cntid not in (CONTROLLER_ID, THIS_CONTROLLER):
        raise NvmeError(Status.INVALID_FIELD, detail=f"there is no controller {fields.cntid:#x}")
    return bytes(
        CommandSetCombinations(
            combinations=[
                sum(1 << csi for csi in one) for one in controller.namespaces.combinations
            ]
        )
    )


def _enabled(controller: Controller, fields: Identify) -> CommandSet:
    """The command set that the command is about. Raises NvmeError for one that is not enabled."""
    if fields.csi not in controller.namespaces.enabled:
        raise NvmeError(Status.INVALID_FIELD, detail=f"command set {fields.csi} is not supported")
    return CommandSet(fields.csi)


def _active(controller: Controller, nsid: int) -> AnyNamespace | None:
    """The namespace; None where an inactive one could be. Raises NvmeError for no identifier."""
    _require_possible(controller, nsid)
    return controller.namespaces.attached.get(nsid)


def _allocated(controller: Controller, nsid: int) -> AnyNamespace | None:
    """As `_active`, for one that need not be attached."""
    _require_possible(controller, nsid)
    return controller.namespaces.allocated.get(nsid)


def _require_possible(controller: Controller, nsid: int) -> None:
    if not 1 <= nsid <= controller.namespaces.highest_nsid:
        raise NvmeError(Status.INVALID_NAMESPACE, detail=f"{nsid:#x} is no namespace identifier")


@dataclass(frozen=True, slots=True)
class Answer:
    """One data structure; `takes` says for the documentation what the command's fields choose."""

    make: Callable[[Controller, Command, Identify], bytes]
    takes: str
    of_no_namespace: bool = False
    """The namespace identifier has nothing to do with it, and must be 0."""


_INACTIVE = "an inactive namespace is zeroes"
_UNALLOCATED = "an identifier that no namespace has is zeroes"
_ABOVE = "those above NSID"
_BLOCKS = "of the NVM command set"
_CSI = "of the command set CSI"

STRUCTURES: dict[int, Answer] = {
    Cns.NAMESPACE: Answer(
        _namespace,
        f"{_BLOCKS}; {_INACTIVE}; NSID FFFFFFFFh gives what all namespaces have in common",
    ),
    Cns.CONTROLLER: Answer(_controller, "NSID 0", of_no_namespace=True),
    Cns.ACTIVE_NAMESPACE_LIST: Answer(_namespace_list, _ABOVE),
    Cns.NAMESPACE_IDENTIFICATION_DESCRIPTORS: Answer(
        _descriptors, "an active namespace; its UUID and its command set"
    ),
    Cns.COMMAND_SET_NAMESPACE: Answer(
        _command_set_namespace,
        f"{_CSI}; {_INACTIVE}; NSID FFFFFFFFh gives what all namespaces have in common",
    ),
    Cns.COMMAND_SET_CONTROLLER: Answer(
        _command_set_controller, f"{_CSI}, NSID 0; zeroes for all but CSI 0", of_no_namespace=True
    ),
    Cns.COMMAND_SET_ACTIVE_NAMESPACE_LIST: Answer(_command_set_namespace_list, f"{_CSI}; {_ABOVE}"),
    Cns.COMMAND_SET_INDEPENDENT_NAMESPACE: Answer(_independent_namespace, _INACTIVE),
    Cns.ALLOCATED_NAMESPACE_LIST: Answer(_allocated_list, _ABOVE),
    Cns.ALLOCATED_NAMESPACE: Answer(_allocated_namespace, f"{_BLOCKS}; {_UNALLOCATED}"),
    Cns.NAMESPACE_CONTROLLER_LIST: Answer(
        _attached_controllers, "an allocated namespace; controllers from CNTID on"
    ),
    Cns.CONTROLLER_LIST: Answer(_all_controllers, "controllers from CNTID on"),
    Cns.COMMAND_SET_ALLOCATED_NAMESPACE_LIST: Answer(
        _command_set_allocated_list, f"{_CSI}; {_ABOVE}"
    ),
    Cns.COMMAND_SET_ALLOCATED_NAMESPACE: Answer(
        _command_set_allocated_namespace, f"{_CSI}; {_UNALLOCATED}"
    ),
    Cns.COMMAND_SETS: Answer(
        _command_sets,
        "CNTID 0 or FFFFh, NSID 0; the command sets that work at once",
        of_no_namespace=True,
    ),
    Cns.COMMAND_SET_INDEPENDENT_ALLOCATED_NAMESPACE: Answer(_independent_allocated, _UNALLOCATED),
}
"""Every data structure that can be asked for."""

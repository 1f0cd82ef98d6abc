"""Identify.

Source: NVM Express Base Specification 2.0, section 5.17; NVM Command Set Specification 1.0, section
4.1.5.
"""

from collections.abc import Callable

from nvme_spec.commands import Identify
from nvme_spec.identify import (
    FRMW_SLOTS_SHIFT,
    FWUG_NO_RESTRICTION,
    IDENTIFY_SIZE,
    NSATTR_WRITE_PROTECTED,
    Cns,
    CommandSet,
    ControllerType,
    Ctratt,
    Dlfeat,
    Frmw,
    IdentifyController,
    IdentifyNamespace,
    LbaFormat,
    NamespaceIdentificationDescriptor,
    NamespaceIdType,
    NvmCommandSetController,
    Oacs,
    Oncs,
    PowerStateDescriptor,
    Sgls,
    Vwc,
    encode_namespace_list,
    entry_sizes,
)
from nvme_spec.queues import BROADCAST_NSID, COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT
from nvme_spec.registers import VERSION_2_0
from nvme_spec.status import NvmeError, Status
from potash_device.media.flash import LAST_SLOT
from potash_firmware.rpu.admin import log_pages
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.controller import MAX_TRANSFER_SHIFT, Controller, Namespace
from potash_firmware.rpu.events import REQUEST_LIMIT
from potash_firmware.rpu.features import CRITICAL_TEMPERATURE, WARNING_TEMPERATURE
from potash_firmware.rpu.logs import ERROR_LOG_ENTRIES

ABORT_LIMIT = 4
"""Concurrent Abort commands; they are answered at once."""

ATOMIC_BLOCKS = 1
"""AWUN and AWUPF: a block is old or new, to other commands and after the device's process has died.

More blocks are written in one go, but nobody promises that a process that is killed then has done
all or nothing of it. What a host that loses power does to a page on its way is its disk's affair.
"""

MICROSECONDS = 1_000_000


def identify(controller: Controller, command: Command) -> Result:
    """Give the structure that CNS names."""
    fields = Identify.decode(command.entry.cdws)
    make = _STRUCTURES.get(fields.cns)
    if make is None:
        raise NvmeError(Status.INVALID_FIELD, detail=f"CNS {fields.cns:#x} is not supported")
    controller.send(command, make(controller, command, fields))
    return None


def _controller(controller: Controller, command: Command, fields: Identify) -> bytes:
    identity = controller.settings.identity
    pci = controller.board.settings.identity
    return bytes(
        IdentifyController(
            vid=pci.vendor_id,
            ssvid=pci.subsystem_vendor_id,
            sn=identity.serial,
            mn=identity.model,
            fr=controller.firmware.revision,
            mdts=MAX_TRANSFER_SHIFT,
            ver=VERSION_2_0,
            rtd3e=controller.board.settings.ready_timeout * MICROSECONDS // 2,
            cntrltype=ControllerType.IO,
            ctratt=Ctratt(0),
            oacs=controller.support.oacs,
            acl_z=ABORT_LIMIT - 1,
            aerl_z=REQUEST_LIMIT - 1,
            frmw=Frmw.FIRST_SLOT_READ_ONLY
            | LAST_SLOT << FRMW_SLOTS_SHIFT
            | Frmw.ACTIVATION_WITHOUT_RESET,
            lpa=log_pages.attributes(),
            elpe_z=ERROR_LOG_ENTRIES - 1,
            avscc=1,
            wctemp=WARNING_TEMPERATURE,
            cctemp=CRITICAL_TEMPERATURE,
            tnvmcap=sum(namespace.size for namespace in controller.namespaces.values()),
            unvmcap=0,
            sqes=entry_sizes(SUBMISSION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT),
            cqes=entry_sizes(COMPLETION_ENTRY_SHIFT, COMPLETION_ENTRY_SHIFT),
            nn=max(controller.namespaces),
            oncs=controller.support.oncs | Oncs.SAVE_AND_SELECT,
            sgls=Sgls.SUPPORTED | Sgls.BIT_BUCKET | Sgls.LARGER_THAN_DATA,
            vwc=Vwc.PRESENT | Vwc.FLUSH_BROADCAST_SUPPORTED,
            awun_z=ATOMIC_BLOCKS - 1,
            awupf_z=ATOMIC_BLOCKS - 1,
            fwug=FWUG_NO_RESTRICTION,
            icsvscc=1,
            subnqn=identity.nqn,
            psd=(PowerStateDescriptor(mp=2500),),
        )
    )


def _namespace(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    if nsid == BROADCAST_NSID and controller.support.oacs & Oacs.NAMESPACE_MANAGEMENT:
        # What all namespaces have in common (section 5.17.2.1): the formats, and no size.
        sizes = sorted({namespace.block_size for namespace in controller.namespaces.values()})
        return bytes(
            IdentifyNamespace(
                nlbaf_z=len(sizes) - 1, dlfeat=Dlfeat.READS_ZEROES, lbaf=tuple(map(_format, sizes))
            )
        )
    namespace = _active(controller, nsid)
    if namespace is None:
        return bytes(IDENTIFY_SIZE)
    return bytes(
        IdentifyNamespace(
            nsze=namespace.blocks,
            ncap=namespace.blocks,
            nuse=namespace.blocks,
            dlfeat=Dlfeat.READS_ZEROES,
            nvmcap=namespace.size,
            nsattr=NSATTR_WRITE_PROTECTED if not namespace.media.writable else 0,
            lbaf=(_format(namespace.block_size),),
        )
    )


def _format(block_size: int) -> LbaFormat:
    return LbaFormat(lbads=block_size.bit_length() - 1)


def _namespace_list(controller: Controller, command: Command, fields: Identify) -> bytes:
    first = command.entry.nsid
    if first >= BROADCAST_NSID - 1:
        raise NvmeError(Status.INVALID_NAMESPACE, detail="no namespace can follow that one")
    return encode_namespace_list(nsid for nsid in controller.namespaces if nsid > first)


def _descriptors(controller: Controller, command: Command, fields: Identify) -> bytes:
    nsid = command.entry.nsid
    if _active(controller, nsid) is None:
        raise NvmeError(Status.INVALID_NAMESPACE, detail=f"there is no namespace {nsid}")
    uuid = controller.settings.identity.uuid(f"namespace {nsid}")
    descriptors = (
        NamespaceIdentificationDescriptor(NamespaceIdType.UUID, uuid.bytes),
        NamespaceIdentificationDescriptor(NamespaceIdType.CSI, bytes([CommandSet.NVM])),
    )
    return b"".join(item.encode() for item in descriptors).ljust(IDENTIFY_SIZE, b"\0")


def _command_set_controller(controller: Controller, command: Command, fields: Identify) -> bytes:
    if fields.csi != CommandSet.NVM:
        raise NvmeError(Status.INVALID_FIELD, detail=f"command set {fields.csi} is not supported")
    return bytes(NvmCommandSetController())


def _active(controller: Controller, nsid: int) -> Namespace | None:
    """The namespace; None where an inactive one could be. Raises NvmeError for no identifier."""
    if not 1 <= nsid <= max(controller.namespaces):
        raise NvmeError(Status.INVALID_NAMESPACE, detail=f"{nsid:#x} is no namespace identifier")
    return controller.namespaces.get(nsid)


_STRUCTURES: dict[int, Callable[[Controller, Command, Identify], bytes]] = {
    Cns.NAMESPACE: _namespace,
    Cns.CONTROLLER: _controller,
    Cns.ACTIVE_NAMESPACE_LIST: _namespace_list,
    Cns.NAMESPACE_IDENTIFICATION_DESCRIPTORS: _descriptors,
    Cns.COMMAND_SET_CONTROLLER: _command_set_controller,
}

"""Identify Controller (CNS 01h).

Source: NVM Express Base Specification 2.0, figure 275.
"""

from nvme_spec.features import FeatureId
from nvme_spec.identify import capabilities
from nvme_spec.identify.structures import IdentifyController, PowerStateDescriptor
from nvme_spec.queues import COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT
from nvme_spec.ranges import CopyFormat
from nvme_spec.registers import VERSION_2_0
from potash_device.media.flash import LAST_SLOT
from potash_firmware.rpu.admin import log_pages
from potash_firmware.rpu.admin.host_memory import MOST_DESCRIPTORS
from potash_firmware.rpu.command_sets.nvm.limits import CONTROLLER_FIELDS
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.features import table
from potash_firmware.rpu.logs.alerts import OPTIONAL_EVENTS, REQUEST_LIMIT
from potash_firmware.rpu.logs.errors import ERROR_LOG_ENTRIES
from potash_firmware.rpu.operations.sanitize import ACTIONS
from potash_firmware.rpu.placement import GROUP
from potash_firmware.rpu.transfer import MAX_TRANSFER_SHIFT

ABORT_LIMIT = 4
"""Concurrent Abort commands; they are answered immediately."""

ATOMIC_BLOCKS = 1
"""AWUN and AWUPF: a block is old or new, to other commands and after the device's process has died.

More blocks are written in one go, but nobody promises that a process that is killed then has done
all or nothing of it. What a host that loses power does to a page on its way is its disk's affair.
"""

ACTIVATION_TIME = 1
"""MTFA, in units of 100 milliseconds: an image becomes the active one immediately."""

MICROSECONDS = 1_000_000


def controller_structure(controller: Controller) -> IdentifyController:
    identity = controller.settings.identity
    pci = controller.board.settings.identity
    says = IdentifyController(
        vid=pci.vendor_id,
        ssvid=pci.subsystem_vendor_id,
        sn=identity.serial,
        mn=identity.model,
        fr=controller.firmware.revision,
        mdts=MAX_TRANSFER_SHIFT,
        cntlid=controller.identifier,
        ver=VERSION_2_0,
        rtd3e=controller.board.settings.ready_timeout * MICROSECONDS // 2,
        oaes=OPTIONAL_EVENTS
        & ~(
            capabilities.Oaes.REACHABILITY
            | capabilities.Oaes.ZONE_DESCRIPTOR
            | capabilities.Oaes.ASYMMETRIC_ACCESS
        ),
        cntrltype=capabilities.ControllerType.IO,
        ctratt=_if_there(FeatureId.HOST_IDENTIFIER, capabilities.Ctratt.HOST_IDENTIFIER_128)
        | capabilities.Ctratt.EXTENDED_LBA_FORMATS,
        nvmsr=capabilities.Nvmsr.STORAGE_DEVICE,
        oacs=controller.support.oacs,
        acl_z=ABORT_LIMIT - 1,
        aerl_z=REQUEST_LIMIT - 1,
        frmw=capabilities.Frmw.FIRST_SLOT_READ_ONLY
        | LAST_SLOT << capabilities.FRMW_SLOTS_SHIFT
        | capabilities.Frmw.ACTIVATION_WITHOUT_RESET,
        lpa=log_pages.attributes(),
        pels=log_pages.PERSISTENT_EVENT_LOG_UNITS,
        elpe_z=ERROR_LOG_ENTRIES - 1,
        avscc=1,
        wctemp=table.WARNING_TEMPERATURE,
        cctemp=table.CRITICAL_TEMPERATURE,
        mtfa=ACTIVATION_TIME,
        kas=_if_there(FeatureId.KEEP_ALIVE_TIMER, table.KEEP_ALIVE_GRANULARITY),
        hctma=_if_there(FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT, capabilities.Hctma.SUPPORTED),
        mntmt=table.LOWEST_THRESHOLD,
        mxtmt=table.HIGHEST_THRESHOLD,
        tnvmcap=controller.namespaces.inventory.total_capacity,
        unvmcap=controller.namespaces.inventory.unallocated,
        edstt=controller.self_tests.extended_minutes,
        dsto=capabilities.Dsto.ONE_IN_SUBSYSTEM,
        sanicap=sum(ACTIONS.values()) | capabilities.Sanicap.MEDIA_NOT_MODIFIED,
        sqes=capabilities.entry_sizes(SUBMISSION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT),
        cqes=capabilities.entry_sizes(COMPLETION_ENTRY_SHIFT, COMPLETION_ENTRY_SHIFT),
        nn=controller.namespaces.inventory.highest_nsid,
        oncs=controller.support.oncs
        | capabilities.Oncs.SAVE_AND_SELECT
        | _if_there(FeatureId.TIMESTAMP, capabilities.Oncs.TIMESTAMP),
        sgls=capabilities.Sgls.SUPPORTED
        | capabilities.Sgls.BIT_BUCKET
        | capabilities.Sgls.LARGER_THAN_DATA
        | capabilities.Sgls.METADATA_SEGMENT,
        vwc=capabilities.Vwc.PRESENT | capabilities.Vwc.FLUSH_BROADCAST_SUPPORTED,
        awun_z=ATOMIC_BLOCKS - 1,
        awupf_z=ATOMIC_BLOCKS - 1,
        fwug=capabilities.FWUG_NO_RESTRICTION,
        icsvscc=1,
        nwpc=_if_there(FeatureId.NAMESPACE_WRITE_PROTECTION, capabilities.NWPC_WRITE_PROTECT),
        subnqn=identity.nqn,
        psd=(PowerStateDescriptor(mp=2500),),
        **CONTROLLER_FIELDS,
    )
    if len(controller.subsystem.controllers) > 1:
        says.cmic = capabilities.Cmic.MULTIPLE_PORTS | capabilities.Cmic.MULTIPLE_CONTROLLERS
    if controller.placement is not None:
        says.ctratt |= (
            capabilities.Ctratt.ENDURANCE_GROUPS | capabilities.Ctratt.FLEXIBLE_DATA_PLACEMENT
        )
        says.endgidmax = GROUP
    if controller.ana is not None:
        from nvme_spec.asymmetric_access import Anacap
        from potash_firmware.rpu.namespaces.asymmetric_access import TRANSITION_TIME

        says.cmic |= capabilities.Cmic.MULTIPLE_CONTROLLERS | capabilities.Cmic.ASYMMETRIC_ACCESS
        says.anatt, says.anacap = TRANSITION_TIME, sum(Anacap)
        says.anagrpmax = says.nanagrpid = controller.namespaces.ana_groups
        says.mnan = says.nn
        says.oaes |= capabilities.Oaes.ASYMMETRIC_ACCESS
    if controller.host_memory is not None:
        says.hmpre, says.hmmin, says.hmmaxd = controller.host_memory.pages, 1, MOST_DESCRIPTORS
    if controller.power is not None:
        from potash_firmware.rpu.power import STATES

        says.npss_z, says.apsta, says.psd = len(STATES) - 1, 1, STATES
    if controller.ocp is not None:
        says.ctratt |= capabilities.Ctratt.UUID_LIST
    if controller.board.dma.remote and not controller.board.queues.submissions[0].is_mapped:
        says.oacs &= ~capabilities.Oacs.DOORBELL_BUFFER_CONFIG  # nobody polls a page by messages
    if capabilities.CommandSet.ZONED in controller.namespaces.enabled:
        says.oaes |= capabilities.Oaes.ZONE_DESCRIPTOR
    if capabilities.CommandSet.MEMORY in controller.namespaces.enabled:
        says.oaes |= capabilities.Oaes.REACHABILITY
        says.crcap = capabilities.Crcap.REPORTING | capabilities.Crcap.GROUPS_FIXED
        says.copy_formats |= 1 << CopyFormat.MEMORY
        if controller.board.settings.peers is not None:
            says.copy_formats |= 1 << CopyFormat.PEER
    return says


def _if_there(fid: int, says: int) -> int:
    """A field of Identify Controller about a feature; 0 without the feature."""
    return says if fid in table.FEATURES else 0

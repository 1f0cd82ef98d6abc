"""Identify Controller (CNS 01h).

Source: NVM Express Base Specification 2.0, figure 275.
"""

from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import (
    FRMW_SLOTS_SHIFT,
    FWUG_NO_RESTRICTION,
    NWPC_WRITE_PROTECT,
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
from nvme_spec.identify.structures import (
    IdentifyController,
    PowerStateDescriptor,
)
from nvme_spec.queues import COMPLETION_ENTRY_SHIFT, SUBMISSION_ENTRY_SHIFT
from nvme_spec.ranges import CopyFormat
from nvme_spec.registers import VERSION_2_0
from potash_device.media.flash import LAST_SLOT
from potash_firmware.rpu.admin import log_pages
from potash_firmware.rpu.command_sets.nvm.limits import (
    CONTROLLER_FIELDS,
)
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
from potash_firmware.rpu.namespaces.inventory import CONTROLLER_ID
from potash_firmware.rpu.operations.sanitize import ACTIONS
from potash_firmware.rpu.placement import GROUP
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
        oaes=OPTIONAL_EVENTS & ~(Oaes.REACHABILITY | Oaes.ZONE_DESCRIPTOR),
        cntrltype=ControllerType.IO,
        ctratt=_if_there(FeatureId.HOST_IDENTIFIER, Ctratt.HOST_IDENTIFIER_128)
        | Ctratt.EXTENDED_LBA_FORMATS,
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
        sgls=Sgls.SUPPORTED | Sgls.BIT_BUCKET | Sgls.LARGER_THAN_DATA | Sgls.METADATA_SEGMENT,
        vwc=Vwc.PRESENT | Vwc.FLUSH_BROADCAST_SUPPORTED,
        awun_z=ATOMIC_BLOCKS - 1,
        awupf_z=ATOMIC_BLOCKS - 1,
        fwug=FWUG_NO_RESTRICTION,
        icsvscc=1,
        nwpc=_if_there(FeatureId.NAMESPACE_WRITE_PROTECTION, NWPC_WRITE_PROTECT),
        subnqn=identity.nqn,
        psd=(PowerStateDescriptor(mp=2500),),
        **CONTROLLER_FIELDS,
    )
    if controller.placement is not None:
        says.ctratt |= Ctratt.ENDURANCE_GROUPS | Ctratt.FLEXIBLE_DATA_PLACEMENT
        says.endgidmax = GROUP
    if controller.board.dma.remote and not controller.board.queues.submissions[0].is_mapped:
        says.oacs &= ~Oacs.DOORBELL_BUFFER_CONFIG  # nobody polls a page by messages
    if CommandSet.ZONED in controller.namespaces.enabled:
        says.oaes |= Oaes.ZONE_DESCRIPTOR
    if CommandSet.MEMORY in controller.namespaces.enabled:
        says.oaes |= Oaes.REACHABILITY
        says.crcap = Crcap.REPORTING | Crcap.GROUPS_FIXED
        says.copy_formats |= 1 << CopyFormat.MEMORY
    return says


def _if_there(fid: int, says: int) -> int:
    """What Identify Controller says of a feature; 0 without it."""
    return says if fid in FEATURES else 0

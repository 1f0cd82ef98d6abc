"""The Admin commands."""

from csd_spec.opcodes import AdminOpcode as AcceleratorOpcode
from csd_spec.opcodes import FaultOpcode
from nvme_spec.identify.capabilities import CommandSet, Oacs
from nvme_spec.logs import CSE_SHIFT, CommandEffects, SubmissionRestriction
from nvme_spec.opcodes import AdminOpcode
from potash_firmware.rpu.admin import features, identify, log_pages, operations, others, queues
from potash_firmware.rpu.command_sets import compute
from potash_firmware.rpu.dispatch import NamespaceUse, Row, accelerator_command, table
from potash_firmware.rpu.reservations import Access

WRITE, OTHER = Access.WRITE, Access.OTHER
ONE, OWN = NamespaceUse.ONE, NamespaceUse.OWN
_ALONE = CommandEffects(SubmissionRestriction.ANY_NAMESPACE << CSE_SHIFT)
"""Effects of a command beside which a host had better have none on any namespace."""

ADMIN_COMMANDS = table(
    Row(AdminOpcode.DELETE_IO_SUBMISSION_QUEUE, queues.delete_submission, OTHER),
    Row(AdminOpcode.CREATE_IO_SUBMISSION_QUEUE, queues.create_submission, OTHER),
    Row(AdminOpcode.GET_LOG_PAGE, log_pages.get_log_page, OTHER, OWN),
    Row(AdminOpcode.DELETE_IO_COMPLETION_QUEUE, queues.delete_completion, OTHER),
    Row(AdminOpcode.CREATE_IO_COMPLETION_QUEUE, queues.create_completion, OTHER),
    Row(AdminOpcode.IDENTIFY, identify.identify, OTHER, OWN),
    Row(AdminOpcode.ABORT, others.abort, OTHER),
    Row(AdminOpcode.SET_FEATURES, features.set_features, OTHER, OWN),
    Row(AdminOpcode.GET_FEATURES, features.get_features, OTHER, OWN),
    Row(AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST, others.asynchronous_event_request, OTHER),
    Row(AdminOpcode.KEEP_ALIVE, others.keep_alive, OTHER),
    Row(
        AdminOpcode.DOORBELL_BUFFER_CONFIG,
        queues.doorbell_buffer_config,
        OTHER,
        capability=Oacs.DOORBELL_BUFFER_CONFIG,
    ),
    Row(
        AdminOpcode.FIRMWARE_COMMIT,
        operations.firmware_commit,
        OTHER,
        effects=CommandEffects.CCC,
        capability=Oacs.FIRMWARE,
    ),
    Row(
        AdminOpcode.FIRMWARE_IMAGE_DOWNLOAD,
        operations.firmware_download,
        OTHER,
        capability=Oacs.FIRMWARE,
    ),
    Row(
        AdminOpcode.FORMAT_NVM,
        operations.format_nvm,
        WRITE,
        OWN,
        CommandEffects.LBCC | CommandEffects.NCC | _ALONE,
        Oacs.FORMAT_NVM,
    ),
    Row(
        AdminOpcode.NAMESPACE_MANAGEMENT,
        operations.namespace_management,
        WRITE,
        OWN,
        CommandEffects.NCC | CommandEffects.NIC,
        Oacs.NAMESPACE_MANAGEMENT,
    ),
    Row(
        AdminOpcode.NAMESPACE_ATTACHMENT,
        operations.namespace_attachment,
        WRITE,
        OWN,
        CommandEffects.NCC | CommandEffects.NIC,
        Oacs.NAMESPACE_MANAGEMENT,
    ),
    Row(
        AdminOpcode.DEVICE_SELF_TEST,
        operations.device_self_test,
        OTHER,
        OWN,
        capability=Oacs.DEVICE_SELF_TEST,
    ),
    Row(AdminOpcode.SANITIZE, operations.sanitize, WRITE, effects=CommandEffects.LBCC | _ALONE),
    Row(
        AdminOpcode.GET_LBA_STATUS,
        others.get_lba_status,
        OTHER,
        ONE,
        capability=Oacs.GET_LBA_STATUS,
    ),
    Row(AdminOpcode.LOAD_PROGRAM, compute.load_program, OTHER, ONE, command_set=CommandSet.COMPUTE),
    Row(
        AdminOpcode.PROGRAM_ACTIVATION_MANAGEMENT,
        compute.program_activation,
        OTHER,
        ONE,
        command_set=CommandSet.COMPUTE,
    ),
    Row(
        AdminOpcode.MEMORY_RANGE_SET_MANAGEMENT,
        compute.memory_range_sets,
        OTHER,
        ONE,
        command_set=CommandSet.COMPUTE,
    ),
    Row(AcceleratorOpcode.GLOBAL_CONTROL, accelerator_command, OTHER, effects=CommandEffects.CCC),
    Row(AcceleratorOpcode.IDENTIFY, accelerator_command, OTHER),
    Row(AcceleratorOpcode.GET_STATUS, accelerator_command, OTHER),
)
"""Every Admin command that the device supports."""

FAULT_COMMANDS = table(
    Row(FaultOpcode.FAULT_SEND, others.fault_send, OTHER),
    Row(FaultOpcode.FAULT_RECEIVE, others.fault_receive, OTHER),
)
"""Further commands of a device that accepts others."""

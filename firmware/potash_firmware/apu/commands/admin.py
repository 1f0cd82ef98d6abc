"""Admin commands: the subsystem as a whole, identify, status and log.

Alkali CSD platform documentation, sections 4.2.1 and 4.3.1.
"""

from csd_spec import descriptors, fields
from csd_spec.opcodes import LOG_PAGE, GlobalOperation
from nvme_spec.commands import GetLogPage
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.command import Answer, Context, Later, Result
from potash_firmware.apu.lifecycle import PLATFORM_STATUS, STATUS
from potash_firmware.mailbox.messages import Request


def global_control(context: Context, request: Request) -> Result:
    subsystem = context.subsystem
    operation = fields.GlobalControl.decode(request.cdws).operation
    if operation == GlobalOperation.ENABLE:
        subsystem.enabled = True
        return Answer()
    if operation != GlobalOperation.DISABLE:
        raise NvmeError(Status.INVALID_FIELD, f"there is no global operation {operation}")
    subsystem.enabled = False
    accelerators = tuple(subsystem.accelerators.values())
    for accelerator in accelerators:
        context.jobs.stop(accelerator)
    return Later(accelerators)


def identify(context: Context, request: Request) -> Result:
    accelerators = (
        descriptors.Accelerator(
            item.id,
            (
                descriptors.Capability(descriptors.CapabilityId.FIRMWARE),
                descriptors.Capability(descriptors.CapabilityId.INPUT_BUFFER, item.input_size),
                descriptors.Capability(descriptors.CapabilityId.OUTPUT_BUFFER, item.output_size),
            ),
        )
        for item in context.config.accelerators
    )
    return Answer(descriptors.IdentifyData(tuple(accelerators)).encode())


def get_status(context: Context, request: Request) -> Result:
    command = fields.GetStatus.decode(request.cdws)
    accelerator = context.accelerator(command.accelerator)
    meanings = PLATFORM_STATUS if context.config.platform_status else STATUS
    return Answer(
        accelerator.status_snapshot.read(
            lambda: accelerator.status(meanings).encode(), retain=command.retain
        )
    )


def get_log_page(context: Context, request: Request) -> Result:
    command = GetLogPage.decode(request.cdws)
    if command.lid != LOG_PAGE:
        raise NvmeError(Status.INVALID_LOG_PAGE, f"there is no log page {command.lid:#x}")
    engine = context.engine_log(request.nsid)
    if engine is None:
        accelerator = context.accelerator(command.lsi)
        engine = accelerator.log, accelerator.log_snapshot
    log, snapshot = engine
    page = snapshot.read(lambda: log.page().encode(), retain=command.rae)
    if command.offset > len(page):
        detail = f"the log page has {len(page)} bytes, none at {command.offset}"
        raise NvmeError(Status.INVALID_FIELD, detail)
    return Answer(page[command.offset : command.offset + request.length])

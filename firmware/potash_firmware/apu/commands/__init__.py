"""The accelerator command set: one table for each of the two sets, opcode to handler.

Alkali CSD platform documentation, chapter 4 (NVMe commands and extensions).
"""

from csd_spec.opcodes import AdminOpcode, IoOpcode
from csd_spec.status import VendorStatus
from nvme_spec import opcodes as nvme
from nvme_spec.status import NvmeError, Status
from potash_firmware.apu.command import Context, Result, Row, table
from potash_firmware.apu.commands.admin import get_log_page, get_status, global_control, identify
from potash_firmware.apu.commands.control import control
from potash_firmware.apu.commands.data import read_data, read_firmware, send_data, send_firmware
from potash_firmware.apu.commands.storage import (
    append_local_input,
    append_local_output,
    grant_local_storage,
    local_input,
    local_output,
)
from potash_firmware.mailbox.messages import Request

ADMIN = table(
    Row(nvme.AdminOpcode.GET_LOG_PAGE, get_log_page, always=True),
    Row(AdminOpcode.GLOBAL_CONTROL, global_control, always=True),
    Row(AdminOpcode.IDENTIFY, identify, always=True),
    Row(AdminOpcode.GET_STATUS, get_status, always=True),
)

IO = table(
    Row(IoOpcode.SEND_DATA, send_data),
    Row(IoOpcode.READ_DATA, read_data),
    Row(IoOpcode.SEND_FIRMWARE, send_firmware),
    Row(IoOpcode.READ_FIRMWARE, read_firmware),
    Row(IoOpcode.LOCAL_INPUT, local_input),
    Row(IoOpcode.LOCAL_OUTPUT, local_output),
    Row(IoOpcode.APPEND_LOCAL_INPUT, append_local_input),
    Row(IoOpcode.APPEND_LOCAL_OUTPUT, append_local_output),
    Row(IoOpcode.GRANT_LOCAL_STORAGE, grant_local_storage),
    Row(IoOpcode.CONTROL, control),
)


def dispatch(context: Context, request: Request) -> Result:
    """Carry out a command. Raises NvmeError."""
    row = (ADMIN if request.admin else IO).get(request.opcode)
    if row is None:
        raise NvmeError(Status.INVALID_OPCODE, f"there is no command {request.opcode:#x}")
    if not row.always and not context.subsystem.enabled:
        detail = "the accelerator subsystem is disabled"
        raise NvmeError(VendorStatus.SUBSYSTEM_DISABLED, detail)
    return row.handler(context, request)

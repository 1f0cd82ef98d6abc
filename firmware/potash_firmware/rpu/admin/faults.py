"""Fault Send and Fault Receive: fault injection by a host.

Only a device that was started with `--allow-faults` has them in its dispatch table.
"""

from csd_spec import faults
from csd_spec.descriptors import DescriptorError
from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.controller import Controller


def fault_send(controller: Controller, command: Command) -> Result:
    """Arm a fault, which dword 0 gives a number, or clear some."""
    fields = faults.FaultSend.decode(command.entry.cdws)
    if fields.operation == faults.FaultOperation.CLEAR:
        controller.faults.clear(fields.identifier)
        return None
    if fields.operation != faults.FaultOperation.ADD:
        raise NvmeError(Status.INVALID_FIELD, f"operation {fields.operation} is not there")
    length = command.entry.cdw10 * DWORD_SIZE
    if length != faults.FAULT_SIZE:
        raise NvmeError(Status.INVALID_FIELD, f"a fault has {faults.FAULT_SIZE} bytes")
    try:
        fault = faults.Fault.decode(bytes(controller.transfer.receive(command, length)))
    except DescriptorError as error:
        raise NvmeError(Status.INVALID_FIELD, str(error)) from None
    return controller.faults.add(fault)


def fault_receive(controller: Controller, command: Command) -> Result:
    """Give the list of faults, as much of it as is asked for."""
    length = faults.FaultReceive.decode(command.entry.cdws).dwords * DWORD_SIZE
    if length:
        page = faults.encode_faults(controller.faults.listed())
        controller.transfer.send(command, page, length)
    return None

"""The accelerator command set's way through the RPU: to the APU and back.

The RPU knows of these commands only where their lengths are and which way their data moves. It
copies the data between guest memory and a transfer slot; everything else is the APU's to judge.

Source: Alkali CSD platform documentation, sections 4.3.1 and 4.3.2.
"""

from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.status import NvmeError, Status
from potash_device.controller.dma import gather_into, scatter
from potash_firmware.rpu.accelerators.apu_link import Answer
from potash_firmware.rpu.command import Command, Pending, Result, nothing_to_undo
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.core import MAX_TRANSFER


def accelerator_command(controller: Controller, command: Command) -> Result:
    """An accelerator command, whose length is in CDW10: a plain count of dwords."""
    return forward(controller, command, command.entry.cdw10 * DWORD_SIZE)


def forward(controller: Controller, command: Command, length: int) -> Pending:
    """Have the APU answer a command that moves `length` bytes. Raises NvmeError.

    Memory that is not there is refused before the APU hears of the command.
    """
    direction = data_direction(command.entry.opcode)
    if direction is DataDirection.NONE:
        length = 0
    if length > MAX_TRANSFER:
        raise NvmeError(
            Status.INVALID_FIELD, detail=f"{length} bytes are more than one command may move"
        )
    _views(controller, command, direction, length)
    # Also without data: the slots are what keeps the mailbox from overflowing.
    slot = controller.apu.take_slot()
    if slot is None:
        return Pending(
            controller.apu.wait_for_slot(),
            lambda slot: _send(controller, command, direction, slot, length),
            nothing_to_undo,
        )
    return _send(controller, command, direction, slot, length)


def _send(
    controller: Controller, command: Command, direction: DataDirection, slot: int, length: int
) -> Pending:
    """Fill the slot where data goes to the APU, and pass the command on."""
    apu = controller.apu
    if direction is DataDirection.HOST_TO_CONTROLLER:
        try:
            views = _views(controller, command, direction, length)
        except NvmeError:
            apu.free_slot(slot)
            raise
        with controller.moving(command, views, to_host=False):
            gather_into(apu.buffers.slot(slot)[:length], views)
    tag = apu.request(
        admin=command.queue.qid == 0,
        opcode=command.entry.opcode,
        nsid=command.entry.nsid,
        cdws=command.entry.cdws,
        slot=slot,
        length=length,
    )
    return Pending(tag, lambda answer: _finish(controller, command, answer, length))


def _finish(controller: Controller, command: Command, answer: Answer, length: int) -> int:
    """The APU has answered: give the host its data, `length` bytes at most, and dword 0."""
    reply = answer.reply
    if reply.status != Status.SUCCESS:
        raise NvmeError(reply.status, dnr=reply.dnr, detail="the APU says so")
    if reply.length > length:
        raise NvmeError(
            Status.INTERNAL_ERROR, dnr=False, detail="the APU gives more than was asked"
        )
    if reply.length:
        # All of them again, since an SGL has the command's length, however much the APU gives.
        views = _views(controller, command, DataDirection.CONTROLLER_TO_HOST, length)
        with controller.moving(command, views, to_host=True):
            scatter(views, controller.apu.buffers.slot(answer.slot)[: reply.length])
    return reply.result


def _views(
    controller: Controller, command: Command, direction: DataDirection, length: int
) -> list[memoryview]:
    """The host's memory of a transfer, for reading or for writing as its direction says."""
    write = direction is not DataDirection.HOST_TO_CONTROLLER
    return controller.views(command, length, write=write)

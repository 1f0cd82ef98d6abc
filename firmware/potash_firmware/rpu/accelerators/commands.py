"""The accelerator commands in the RPU, which passes them to the APU.

The RPU knows only the data length of these commands and the direction of their data. It copies the
data between guest memory and a transfer slot; the APU makes all other checks.

Source: Alkali CSD platform documentation, sections 4.3.1 and 4.3.2.
"""

from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.accelerators.apu_link import Answer, ApuLink
from potash_firmware.rpu.command import Command, Pending, Result, nothing_to_undo
from potash_firmware.rpu.transfer import Transfer


class AcceleratorCommands:
    """The commands of one controller that the APU answers."""

    def __init__(self, apu: ApuLink, transfer: Transfer) -> None:
        self._apu = apu
        self._transfer = transfer

    def execute(self, command: Command) -> Result:
        """An accelerator command, whose length is in CDW10: a plain count of dwords."""
        return self.forward(command, command.entry.cdw10 * DWORD_SIZE)

    def forward(self, command: Command, length: int) -> Pending:
        """Have the APU answer a command that moves `length` bytes. Raises NvmeError.

        Memory that is not there is refused before the APU hears of the command.
        """
        if data_direction(command.entry.opcode) is DataDirection.NONE:
            length = 0
        self._views(command, length)
        # Also without data: the slots are what keeps the mailbox from overflowing.
        slot = self._apu.take_slot()
        if slot is None:
            return Pending(
                self._apu.wait_for_slot(),
                lambda slot: self._send(command, slot, length),
                nothing_to_undo,
            )
        return self._send(command, slot, length)

    def _send(self, command: Command, slot: int, length: int) -> Pending:
        """Fill the slot where data goes to the APU, and pass the command on."""
        apu = self._apu
        if data_direction(command.entry.opcode) is DataDirection.HOST_TO_CONTROLLER:
            try:
                views = self._views(command, length)
            except NvmeError:
                apu.free_slot(slot)
                raise
            self._transfer.gather(command, views, apu.buffers.slot(slot)[:length])
        tag = apu.request(
            admin=command.queue.qid == 0,
            opcode=command.entry.opcode,
            nsid=command.entry.nsid,
            cdws=command.entry.cdws,
            slot=slot,
            length=length,
        )
        return Pending(tag, lambda answer: self._finish(command, answer, length))

    def _finish(self, command: Command, answer: Answer, length: int) -> int:
        """The APU has answered: give the host its data, `length` bytes at most, and dword 0."""
        reply = answer.reply
        if reply.status != Status.SUCCESS:
            raise NvmeError(reply.status, "the APU says so", dnr=reply.dnr)
        if reply.length > length:
            raise NvmeError(Status.INTERNAL_ERROR, "the APU gives more than was asked", dnr=False)
        if reply.length:
            # All of them again, since an SGL has the command's length, however much the APU gives.
            data = self._apu.buffers.slot(answer.slot)[: reply.length]
            views = self._transfer.views(command, length, write=True)
            self._transfer.scatter(command, views, data)
        return reply.result

    def _views(self, command: Command, length: int) -> list[memoryview]:
        """The host's memory, for reading or for writing as the command's direction says."""
        to_device = data_direction(command.entry.opcode) is DataDirection.HOST_TO_CONTROLLER
        return self._transfer.views(command, length, write=not to_device)

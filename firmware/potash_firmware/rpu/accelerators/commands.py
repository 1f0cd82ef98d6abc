"""The accelerator commands in the RPU, which passes them to the APU.

The RPU knows only the data length of these commands and the direction of their data. It copies the
data between guest memory and a transfer slot; the APU makes all other checks.

Source: Alkali CSD platform documentation, sections 4.3.1 and 4.3.2.
"""

from csd_spec.opcodes import DWORD_SIZE
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.status import NvmeError, Status
from potash_device.trace import Trace
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.command import Command, Steps
from potash_firmware.rpu.transfer import Transfer


class AcceleratorCommands:
    """The commands of one controller that the APU answers."""

    def __init__(self, apu: ApuLink, transfer: Transfer, trace: Trace) -> None:
        self._apu = apu
        self._transfer = transfer
        self._trace = trace

    def execute(self, command: Command) -> Steps:
        """An accelerator command, whose length is in CDW10: a plain count of dwords."""
        return self.forward(command, command.entry.cdw10 * DWORD_SIZE)

    def forward(self, command: Command, length: int) -> Steps:
        """Have the APU answer a command that moves `length` bytes. Raises NvmeError.

        Memory that is not there is refused before the APU hears of the command. It gets the host's
        data, and gives the host its own, `length` bytes at most, and dword 0.
        """
        apu, entry, direction = self._apu, command.entry, data_direction(command.entry.opcode)
        if direction is DataDirection.NONE:
            length = 0
        self._views(command, length)
        # Also without data: the slots are what keeps the mailbox from overflowing.
        with (yield from apu.slot()) as slot:
            data = apu.buffers.slot(slot.number)
            if direction is DataDirection.HOST_TO_CONTROLLER:
                self._transfer.gather(command, self._views(command, length), data[:length])
            tag = apu.request(
                slot,
                admin=command.queue.qid == 0,
                opcode=entry.opcode,
                nsid=entry.nsid,
                cdws=entry.cdws,
                length=length,
            )
            if self._trace.sink is not None:
                named = {"qid": command.queue.qid, "cid": entry.cid, "tag": tag}
                self._trace.sink("rpu.forward", named)
            reply = yield slot.answered
            if reply.status != Status.SUCCESS:
                raise NvmeError(reply.status, "the APU says so", dnr=reply.dnr)
            if reply.length > length:
                raise NvmeError(
                    Status.INTERNAL_ERROR, "the APU gives more than was asked", dnr=False
                )
            if reply.length:
                # All of them again: an SGL has the command's length, however much the APU gives.
                views = self._transfer.views(command, length, write=True)
                self._transfer.scatter(command, views, data[: reply.length])
            return int(reply.result)

    def _views(self, command: Command, length: int) -> list[memoryview]:
        """The host's memory, for reading or for writing as the command's direction says."""
        to_device = data_direction(command.entry.opcode) is DataDirection.HOST_TO_CONTROLLER
        return self._transfer.views(command, length, write=not to_device)

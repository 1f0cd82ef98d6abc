"""The accelerator commands of one controller, which the RPU forwards to the APU.

Of these commands, the RPU knows only the data length and the direction of their data. It copies the
data between guest memory and a transfer slot; the APU makes all other checks.

Source: Alkali CSD platform documentation, sections 4.3.1 and 4.3.2.
"""

from collections.abc import Callable
from functools import partial

from csd_spec.fields import Cdws, DataTransfer, PeerTransfer
from csd_spec.opcodes import DWORD_SIZE, IoOpcode
from nvme_spec.opcodes import DataDirection, data_direction
from nvme_spec.status import NvmeError, Status
from potash_device.pcie.peers import Peers
from potash_device.trace import Trace
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.peer_memory import PeerMemory
from potash_firmware.rpu.scheduler import Steps
from potash_firmware.rpu.transfer import Transfer, check_size


class AcceleratorCommands:
    """The commands of one controller that the APU answers."""

    def __init__(
        self, apu: ApuLink, transfer: Transfer, trace: Trace, controller: int, owned: set[int]
    ) -> None:
        self._apu, self._controller = apu, controller
        self.owned = owned
        """The accelerators that the controller has."""
        self._transfer = transfer
        self._trace = trace

    def execute(self, command: Command) -> Steps[int | None]:
        """An accelerator command, whose length is in CDW10: a plain count of dwords."""
        return self.forward(command, command.entry.cdw10 * DWORD_SIZE)

    def send_peer_data(self, command: Command, peers: Peers) -> Steps[int | None]:
        """Send Data, of data in memory that another drive shares. Raises NvmeError."""
        fields = PeerTransfer.decode(command.entry.cdws)
        length = fields.dwords * DWORD_SIZE
        check_size(length)
        sent = DataTransfer(fields.dwords, fields.accelerator, fields.offset)
        return self.forward(
            command,
            length,
            (IoOpcode.SEND_DATA, sent.encode()),
            lambda: [PeerMemory(peers).view(fields.address, length)],
        )

    def forward(
        self,
        command: Command,
        length: int,
        asked: tuple[int, Cdws] | None = None,
        views: Callable[[], list[memoryview]] | None = None,
    ) -> Steps[int | None]:
        """Have the APU answer a command that moves `length` bytes. Raises NvmeError.

        Memory that is not there is refused before the APU hears of the command. It gets the host's
        data, or those of `views`, and gives the host its own, `length` bytes at most, and dword 0.
        The APU is `asked` another opcode and command dwords if those are given.
        """
        apu, entry = self._apu, command.entry
        opcode, cdws = asked or (entry.opcode, entry.cdws)
        direction = data_direction(opcode)
        if direction is DataDirection.NONE:
            length = 0
        views = views or partial(self._views, command, length)
        views()
        # Also without data: the slots are what keeps the mailbox from overflowing.
        with (yield from apu.slot()) as slot:
            data = apu.buffers.slot(slot.number)
            if direction is DataDirection.HOST_TO_CONTROLLER:
                self._transfer.gather(command, views(), data[:length])
            tag = apu.request(
                slot,
                admin=command.queue.qid == 0,
                opcode=opcode,
                nsid=entry.nsid,
                cdws=cdws,
                length=length,
                controller=self._controller,
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
                into = self._transfer.views(command, length, write=True)
                self._transfer.scatter(command, into, data[: reply.length])
            return int(reply.result)

    def _views(self, command: Command, length: int) -> list[memoryview]:
        """The host's memory, for reading or for writing as the command's direction says."""
        to_device = data_direction(command.entry.opcode) is DataDirection.HOST_TO_CONTROLLER
        return self._transfer.views(command, length, write=not to_device)

"""Commands that move data, in modelled time: each completes when the model says.

They are executed immediately, as without a model, and their results are kept until then. What these
here ask of the drive is known before they begin, so that a write that the drive refuses is not
made; commands with lists of ranges ask themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from csd_spec.opcodes import DWORD_SIZE
from csd_spec.opcodes import IoOpcode as AcceleratorOpcode
from nvme_spec.commands import ReadWrite
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MemoryOpcode
from nvme_spec.opcodes import IoOpcode
from nvme_spec.status import NvmeError
from potash_firmware.rpu.command import Command, Result, Steps, steps_of
from potash_firmware.rpu.command_sets.memory.access import target as memory_target
from potash_firmware.rpu.command_sets.nvm.blocks import Target, add_data, stream_of, target
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import Handler, Table
from potash_firmware.rpu.scheduler import Later
from potash_firmware.rpu.timing.modelled import ModelledTime, UnreadableError
from potash_firmware.rpu.transfer import check_size

Charge = Callable[[Controller, ModelledTime, Command], int | Later]
"""The time at which a command completes. Raises NvmeError, as the handler would, for an invalid
command."""


def _write(controller: Controller, timing: ModelledTime, command: Command) -> int | Later:
    blocks = target(controller, command)
    nsid, fua = blocks.namespace.nsid, blocks.fua or blocks.namespace.write_through
    stream = stream_of(controller, nsid, blocks.placement)
    add_data(controller, command, blocks)
    due = timing.write(nsid, blocks.offset, blocks.length, fua=fua, stream=stream, hint=blocks.hint)
    return timing.transfers.cross(due, blocks.length, inwards=True)


def _blocks(
    charge: Callable[[ModelledTime, Target], int | Later], *, moves_data: bool = True
) -> Charge:
    """The time of a command with the fields of Read."""
    return lambda controller, timing, command: charge(
        timing, target(controller, command, moves_data=moves_data)
    )


def _read(timing: ModelledTime, blocks: Target) -> int:
    return timing.read(blocks.namespace.nsid, blocks.offset, blocks.length)


def _sent(timing: ModelledTime, blocks: Target) -> int | Later:
    return timing.transfers.cross(_read(timing, blocks), blocks.length)


def _compared(timing: ModelledTime, blocks: Target) -> int | Later:
    return timing.transfers.cross(_read(timing, blocks), blocks.length, inwards=True)


def _trim(timing: ModelledTime, blocks: Target) -> int:
    return timing.trim(blocks.namespace.nsid, [(blocks.offset, blocks.length)])


def _memory(*, sent: bool = True, inwards: bool = False) -> Charge:
    """The time of a command on memory, with the fields of Memory Read."""

    def charge(controller: Controller, timing: ModelledTime, command: Command) -> int | Later:
        _, _, length = memory_target(controller, command)
        return timing.transfers.memory(length, length if sent else 0, inwards=inwards)

    return charge


def _buffers(*, inwards: bool) -> Charge:
    """The time of a vendor command that moves data between host and accelerator."""

    def charge(controller: Controller, timing: ModelledTime, command: Command) -> int | Later:
        length = command.entry.cdw10 * DWORD_SIZE
        check_size(length)
        return timing.transfers.memory(length, length, inwards=inwards)

    return charge


def _flush(controller: Controller, timing: ModelledTime, command: Command) -> int:
    assert controller.value_time is not None
    return controller.value_time.flush()


_BLOCKS: dict[int, Charge] = {
    AcceleratorOpcode.SEND_DATA: _buffers(inwards=True),
    AcceleratorOpcode.SEND_PEER_DATA: _buffers(inwards=True),
    AcceleratorOpcode.READ_DATA: _buffers(inwards=False),
    AcceleratorOpcode.SEND_FIRMWARE: _buffers(inwards=True),
    AcceleratorOpcode.READ_FIRMWARE: _buffers(inwards=False),
    IoOpcode.FLUSH: _flush,
    IoOpcode.READ: _blocks(_sent),
    IoOpcode.WRITE: _write,
    IoOpcode.COMPARE: _blocks(_compared),
    IoOpcode.VERIFY: _blocks(_read, moves_data=False),
    IoOpcode.WRITE_ZEROES: _blocks(_trim, moves_data=False),
}
_MEMORY: dict[int, Charge] = {
    MemoryOpcode.MEMORY_READ: _memory(),
    MemoryOpcode.MEMORY_WRITE: _memory(inwards=True),
    MemoryOpcode.MEMORY_FILL: _memory(sent=False),
}
_ZONED = {
    opcode: charge
    for opcode, charge in _BLOCKS.items()
    if opcode not in (IoOpcode.WRITE, IoOpcode.WRITE_ZEROES)
}
"""Writes to zones ask the drive themselves, where the zone takes them."""
_CHARGES: dict[CommandSet, dict[int, Charge]] = {
    CommandSet.NVM: _BLOCKS,
    CommandSet.ZONED: _ZONED,
    CommandSet.MEMORY: _MEMORY,
    CommandSet.KEY_VALUE: {IoOpcode.FLUSH: _flush},
}


def timed(tables: Mapping[CommandSet, Table]) -> dict[CommandSet, Table]:
    """The tables of commands, whose handlers wait for modelled time where they move data."""
    found = dict(tables)
    for commands, charges in _CHARGES.items():
        rows = {
            opcode: replace(row, handler=_timed(row.handler, charges[opcode]))
            for opcode, row in tables[commands].items()
            if opcode in charges
        }
        found[commands] = {**tables[commands], **rows}
    return found


def _fail(error: NvmeError) -> Result:
    raise error


def _timed(handler: Handler, charge: Charge) -> Handler:
    def run(controller: Controller, command: Command) -> Steps:
        timing = controller.timing
        assert timing is not None
        asked, timing.asked = timing.asked, None
        try:
            if isinstance(asked, NvmeError):
                raise asked
            due = charge(controller, timing, command) if asked is None else asked
        except UnreadableError as error:
            # Blocks may be smaller than the pages that cannot be read.
            error.lba = max(error.lba, ReadWrite.decode(command.entry.cdws).slba)
            return controller.scheduler.not_before(error.due, steps_of(partial(_fail, error)))
        steps = steps_of(lambda: handler(controller, command))
        return controller.scheduler.not_before(due, steps)

    return run

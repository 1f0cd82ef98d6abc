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
from potash_firmware.rpu.timing.modelled import ModelledTime, UnreadableError
from potash_firmware.rpu.transfer import check_size

Charge = Callable[[Controller, ModelledTime, Command], int]
"""The time at which a command completes. Raises NvmeError, as the handler would, for an invalid
command."""


def _write(controller: Controller, timing: ModelledTime, command: Command) -> int:
    blocks = target(controller, command)
    nsid, fua = blocks.namespace.nsid, blocks.fua or blocks.namespace.write_through
    stream = stream_of(controller, nsid, blocks.placement)
    add_data(controller, command, blocks)
    return timing.write(
        nsid, blocks.offset, blocks.length, fua=fua, stream=stream, hint=blocks.hint
    )


def _blocks(charge: Callable[[ModelledTime, Target], int], *, moves_data: bool = True) -> Charge:
    """The time of a command with the fields of Read."""
    return lambda controller, timing, command: charge(
        timing, target(controller, command, moves_data=moves_data)
    )


def _read(timing: ModelledTime, blocks: Target) -> int:
    return timing.read(blocks.namespace.nsid, blocks.offset, blocks.length)


def _trim(timing: ModelledTime, blocks: Target) -> int:
    return timing.trim(blocks.namespace.nsid, [(blocks.offset, blocks.length)])


def _memory(*, sent: bool) -> Charge:
    """The time of a command on memory, with the fields of Memory Read."""

    def charge(controller: Controller, timing: ModelledTime, command: Command) -> int:
        _, _, length = memory_target(controller, command)
        return timing.memory(length, length if sent else 0)

    return charge


def _buffers(controller: Controller, timing: ModelledTime, command: Command) -> int:
    """The time of a vendor command that moves data between host and accelerator."""
    length = command.entry.cdw10 * DWORD_SIZE
    check_size(length)
    return timing.memory(length, length)


_BLOCKS: dict[int, Charge] = {
    AcceleratorOpcode.SEND_DATA: _buffers,
    AcceleratorOpcode.READ_DATA: _buffers,
    AcceleratorOpcode.SEND_FIRMWARE: _buffers,
    AcceleratorOpcode.READ_FIRMWARE: _buffers,
    IoOpcode.FLUSH: lambda controller, timing, command: timing.flush(),
    IoOpcode.READ: _blocks(_read),
    IoOpcode.WRITE: _write,
    IoOpcode.COMPARE: _blocks(_read),
    IoOpcode.VERIFY: _blocks(_read, moves_data=False),
    IoOpcode.WRITE_ZEROES: _blocks(_trim, moves_data=False),
}
_MEMORY: dict[int, Charge] = {
    MemoryOpcode.MEMORY_READ: _memory(sent=True),
    MemoryOpcode.MEMORY_WRITE: _memory(sent=True),
    MemoryOpcode.MEMORY_FILL: _memory(sent=False),
}
_ZONED = {
    opcode: charge
    for opcode, charge in _BLOCKS.items()
    if opcode not in (IoOpcode.WRITE, IoOpcode.WRITE_ZEROES)
}
"""Writes to zones ask the drive themselves, where the zone takes them."""
_CHARGES = {CommandSet.NVM: _BLOCKS, CommandSet.ZONED: _ZONED, CommandSet.MEMORY: _MEMORY}


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
        due, timing.asked = timing.asked, None
        try:
            if isinstance(due, NvmeError):
                raise due
            if due is None:
                due = charge(controller, timing, command)
        except UnreadableError as error:
            # Blocks may be smaller than the pages that cannot be read.
            error.lba = max(error.lba, ReadWrite.decode(command.entry.cdws).slba)
            return controller.scheduler.not_before(error.due, steps_of(partial(_fail, error)))
        steps = steps_of(lambda: handler(controller, command))
        return controller.scheduler.not_before(due, steps)

    return run

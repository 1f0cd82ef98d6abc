"""The commands on blocks of a drive whose time is modelled: each completes when the model says.

They are executed at once, as without a model, and what they come to is kept until then. What they
ask of the drive is known before they begin, so that a write that the drive refuses is not made.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.opcodes import IoOpcode
from potash_device.timing.requests import Op
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.command_sets.nvm.blocks import target
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.dispatch import Handler, Table
from potash_firmware.rpu.timing.modelled import ModelledTime

Charge = Callable[[Controller, ModelledTime, Command], int]
"""When a command completes. Raises NvmeError, as the handler would, for one that is ill formed."""


def _blocks(op: Op) -> Charge:
    """Of a command with the fields of Read."""

    def charge(controller: Controller, timing: ModelledTime, command: Command) -> int:
        found = target(controller, command)
        fua = op is Op.WRITE and (found.fua or found.namespace.write_through)
        return timing.charge(found.namespace.nsid, op, found.offset, found.length, fua=fua)

    return charge


_CHARGES: dict[int, Charge] = {
    IoOpcode.READ: _blocks(Op.READ),
    IoOpcode.WRITE: _blocks(Op.WRITE),
}


def timed(tables: Mapping[CommandSet, Table]) -> dict[CommandSet, Table]:
    """The tables of commands, whose handlers wait for modelled time where they are on blocks."""
    rows = {
        opcode: replace(row, handler=_timed(row.handler, _CHARGES[opcode]))
        for opcode, row in tables[CommandSet.NVM].items()
        if opcode in _CHARGES
    }
    return {**tables, CommandSet.NVM: {**tables[CommandSet.NVM], **rows}}


def _timed(handler: Handler, charge: Charge) -> Handler:
    def run(controller: Controller, command: Command) -> Result:
        timing = controller.timing
        assert timing is not None
        due = charge(controller, timing, command)
        return controller.deadlines.keep(due, lambda: handler(controller, command))

    return run

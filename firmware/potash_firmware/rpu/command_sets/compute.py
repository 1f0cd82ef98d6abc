"""The commands and log pages of compute namespaces.

Source: Computational Programs Command Set 1.1, as implementers have it.
"""

from nvme_spec import computational
from nvme_spec.commands import GetLogPage
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result, Steps, steps_of
from potash_firmware.rpu.compute.programs import PROGRAM_TYPES
from potash_firmware.rpu.compute.state import ComputeState
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.memory import ComputeNamespace


def load_program(controller: Controller, command: Command) -> Steps:
    """Load a piece of a program, or unload a program."""
    fields = computational.LoadProgram.decode(command.entry.cdws)
    programs = _state(controller, command).programs
    if fields.sel == computational.LoadProgramSelect.UNLOAD:
        programs.unload(fields.pind)
        return None
    programs.check_piece(fields)
    piece = controller.transfer.receive(command, fields.numb)
    due = None
    if controller.timing is not None:
        due = controller.timing.transfers.memory(fields.numb, fields.numb, inwards=True)
    steps = steps_of(lambda: programs.load(fields, piece))
    return (yield from controller.scheduler.not_before(due, steps))


def program_activation(controller: Controller, command: Command) -> Steps:
    """Activate a program, once it is known to be sound, or deactivate one."""
    fields = computational.ProgramActivation.decode(command.entry.cdws)
    programs = _state(controller, command).programs
    if fields.sel == computational.ActivationSelect.DEACTIVATE:
        programs.deactivate(fields.pind)
        return None
    if fields.sel != computational.ActivationSelect.ACTIVATE:
        raise NvmeError(Status.INVALID_FIELD, detail=f"SEL {fields.sel} is reserved")
    yield from programs.activate(fields.pind)
    return None


def memory_range_sets(controller: Controller, command: Command) -> Result:
    """Create a memory range set, whose identifier is in dword 0, or delete one."""
    fields = computational.RangeSetManagement.decode(command.entry.cdws)
    sets = _state(controller, command).sets
    if fields.sel == computational.RangeSetSelect.DELETE:
        sets.delete(fields.rsid)
        return None
    if fields.sel != computational.RangeSetSelect.CREATE:
        raise NvmeError(Status.INVALID_FIELD, detail=f"SEL {fields.sel} is reserved")
    if fields.rsid:
        raise NvmeError(Status.INVALID_FIELD, detail="a new set has no identifier yet")
    sets.check_count(fields.numr)
    data = controller.transfer.receive(command, fields.numr * computational.MEMORY_RANGE_SIZE)
    return sets.create(list(computational.MemoryRange.decode_list(data)))


def execute_program(controller: Controller, command: Command) -> Result:
    """Run a program; what it returns is in dwords 0 and 1."""
    state = _state(controller, command)
    return state.runs.execute(command, state.programs, state.sets)


def execute_chain(controller: Controller, command: Command) -> Result:
    """Run programs one after another; what the last one returns is in dwords 0 and 1."""
    state = _state(controller, command)
    return state.runs.execute_chain(command, state.programs, state.sets)


def program_list(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """Log page 82h."""
    return computational.encode_program_list(
        _logged(controller, command, fields).programs.describe()
    )


def program_types(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """Log page 83h."""
    _logged(controller, command, fields)
    return computational.encode_program_types(
        [computational.ProgramTypeDescriptor(ptype=ptype) for ptype in PROGRAM_TYPES]
    )


def range_set_list(controller: Controller, command: Command, fields: GetLogPage) -> bytes:
    """Log page 84h; its LSI names one set, 0 all."""
    return computational.encode_range_sets(
        _logged(controller, command, fields).sets.describe(fields.lsi)
    )


def _state(controller: Controller, command: Command) -> ComputeState:
    """The state of the command's namespace. Raises NvmeError where it is not a compute
    namespace."""
    namespace = controller.namespaces.of_kind(ComputeNamespace, command.entry.nsid)
    return controller.compute.of(namespace.nsid)


def _logged(controller: Controller, command: Command, fields: GetLogPage) -> ComputeState:
    if fields.csi not in (CommandSet.NVM, CommandSet.COMPUTE):
        raise NvmeError(Status.INVALID_FIELD, detail="the log page is of another command set")
    return _state(controller, command)

"""The dispatch table's rows: one for each supported command, with everything that the device
reports about it.

Source: NVM Express Base Specification 2.0, section 5.16.1.6 (Commands Supported and Effects)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from nvme_spec import logs
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.command import Command, Result
from potash_firmware.rpu.controller import CommandSupport, Controller
from potash_firmware.rpu.reservations import Access

Handler = Callable[[Controller, Command], Result]

NO_EFFECT = logs.CommandEffects(0)


class NamespaceUse(Enum):
    """The use of the namespace identifier by a command."""

    NONE = "not used"
    ONE = "one active namespace"
    ONE_OR_ALL = "one active namespace, or all of them by the broadcast value"
    OWN = "depends on the command"


@dataclass(frozen=True, slots=True)
class Row:
    """A supported command.

    `capability` is its bit in the field of Identify Controller that names optional commands, OACS
    for an admin command and ONCS for an I/O command; 0 for those that every controller has. `alone`
    says beside which commands a host should not submit it (CSE). `access` is that to the command's
    namespace, or to all without one, which a reservation may deny; a source of a copy, or the
    blocks of a job, are checked where they are found.
    """

    opcode: int
    handler: Handler
    access: Access
    namespace: NamespaceUse = NamespaceUse.NONE
    effects: logs.CommandEffects = NO_EFFECT
    capability: int = 0
    alone: logs.SubmissionRestriction = logs.SubmissionRestriction.NONE
    command_set: CommandSet = CommandSet.NVM
    """The command set without which an Admin command does not exist."""


Table = dict[int, Row]


def table(*rows: Row) -> Table:
    """Rows by opcode. Raises ValueError when two have the same."""
    by_opcode = {row.opcode: row for row in rows}
    if len(by_opcode) != len(rows):
        raise ValueError("two commands have one opcode")
    return by_opcode


def support(admin: Table, io: Mapping[CommandSet, Table]) -> CommandSupport:
    """The parts of Identify and of the log pages that follow from the tables."""

    @cache
    def effects(csi: int, enabled: frozenset[CommandSet]) -> logs.CommandEffectsLog:
        there = {opcode: row for opcode, row in admin.items() if row.command_set in enabled}
        return logs.CommandEffectsLog(
            acs=_effects(there, logs.CommandEffects.CONTROLLER_SCOPE),
            iocs=_effects(io[CommandSet(csi)] if csi in enabled else {}, NO_EFFECT),
        )

    return CommandSupport(
        oacs=_capabilities(admin.values()),
        oncs=_capabilities(io[CommandSet.NVM].values()),
        effects=effects,
    )


def accelerator_command(controller: Controller, command: Command) -> Result:
    """The handler of every command that the APU answers, of the controller that has it."""
    if controller.identifier and not controller.accelerators.owned:
        raise NvmeError(Status.INVALID_OPCODE, "the accelerators are another controller's")
    return controller.accelerators.execute(command)


def send_peer_data(controller: Controller, command: Command) -> Result:
    """Send Peer Data, which the APU answers as Send Data."""
    peers = controller.board.settings.peers
    if peers is None:
        raise NvmeError(Status.INVALID_FIELD, "the drive has no peers that share memory")
    return controller.accelerators.send_peer_data(command, peers)


def check_namespace(controller: Controller, command: Command, use: NamespaceUse) -> None:
    """Raise NvmeError for a namespace identifier that the command cannot have."""
    if use is NamespaceUse.NONE:
        return
    if controller.ana is not None and controller.namespaces.refused:
        controller.ana.check(command)
    if use is NamespaceUse.OWN:
        return
    nsid = command.entry.nsid
    if nsid == BROADCAST_NSID and use is NamespaceUse.ONE_OR_ALL:
        return
    if use is NamespaceUse.ONE:
        controller.namespaces.require_usable(nsid)
    else:
        controller.namespaces.active(nsid)


def _capabilities(rows: Iterable[Row]) -> int:
    bits = 0
    for row in rows:
        bits |= row.capability
    return bits


def _effects(rows: Table, scope: logs.CommandEffects) -> tuple[int, ...]:
    """`scope` is that of commands for no single namespace.

    I/O commands have none: Linux calls every bit of theirs unusual but CSUPP and LBCC.
    """
    return tuple(
        _effects_of(rows[opcode], scope) if opcode in rows else 0
        for opcode in range(logs.COMMAND_COUNT)
    )


def _effects_of(row: Row, scope: logs.CommandEffects) -> int:
    if scope and row.namespace in (NamespaceUse.ONE, NamespaceUse.ONE_OR_ALL):
        scope = logs.CommandEffects.NAMESPACE_SCOPE
    return logs.CommandEffects.CSUPP | row.effects | scope | row.alone << logs.CSE_SHIFT

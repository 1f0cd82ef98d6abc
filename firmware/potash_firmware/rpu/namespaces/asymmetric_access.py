"""Asymmetric namespace access (ANA): the state of one controller's access to each group of
namespaces, how it changes, and what works in it.

A state outlives resets, as it is the subsystem's and not the host's. A command that has begun ends
as usual: the standard refuses those that are submitted in a state without access.

Source: NVM Express Base Specification 2.0, section 8.1 and 5.16.1.13; NVM Command Set Specification
1.0, section 5.1.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from nvme_spec.asymmetric_access import GROUPS_ONLY, AccessGroup, AccessState, encode_access_log
from nvme_spec.commands import GetFeatures, SetFeatures
from nvme_spec.features import FeatureId
from nvme_spec.logs import NoticeEvent
from nvme_spec.opcodes import AdminOpcode
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.media.shapes import MOST_NAMESPACES
from potash_firmware.rpu.command import Command
from potash_firmware.rpu.deadlines import NO_TIMER, Deadlines, Timer
from potash_firmware.rpu.logs.alerts import Alerts
from potash_firmware.rpu.namespaces.inventory import Namespaces

MOST_GROUPS = MOST_NAMESPACES
"""ANAGRPMAX and NANAGRPID: each namespace may have a group of its own."""

TRANSITION_TIME = 10
"""ANATT: seconds that a transition takes at most. Linux resets a controller after twice that."""

_REFUSALS = {
    AccessState.INACCESSIBLE: Status.ASYMMETRIC_ACCESS_INACCESSIBLE,
    AccessState.PERSISTENT_LOSS: Status.ASYMMETRIC_ACCESS_PERSISTENT_LOSS,
    AccessState.CHANGE: Status.ASYMMETRIC_ACCESS_TRANSITION,
}
"""States without access, and the status of the commands that would need it."""

_UNAFFECTED = frozenset(
    {AdminOpcode.IDENTIFY, AdminOpcode.GET_LOG_PAGE, AdminOpcode.NAMESPACE_ATTACHMENT}
)
"""Admin commands that use a namespace identifier and work in every state. Namespace Attachment is
one as a host is to detach namespaces whose access is lost for good (Base 2.2, section 8.1.2.3)."""

UNAVAILABLE = frozenset(
    {
        FeatureId.ERROR_RECOVERY,
        FeatureId.RESERVATION_NOTIFICATION_MASK,
        FeatureId.RESERVATION_PERSISTENCE,
    }
)
"""Features that cannot be read or set without access. All are among them that are a namespace's and
can be saved, which needs access, too."""


@dataclass(eq=False)
class _Access:
    """The access to a group; `target` is the state when no transition is in progress, and `settled`
    the one to which changes go back that end by themselves."""

    state: AccessState = AccessState.OPTIMIZED
    target: AccessState = AccessState.OPTIMIZED
    settled: AccessState = AccessState.OPTIMIZED
    changes: int = 0
    nsids: tuple[int, ...] = ()
    """Attached namespaces in it, as the log page last had them."""
    timer: Timer = NO_TIMER
    """The next step of a transition, or of a change that ends by itself."""


class AsymmetricAccess:
    """The states of one controller's access. Times are in guest time."""

    def __init__(self, namespaces: Namespaces, alerts: Alerts, deadlines: Deadlines) -> None:
        self._namespaces = namespaces
        self._alerts = alerts
        self._deadlines = deadlines
        self._groups: defaultdict[int, _Access] = defaultdict(_Access)
        self._was_listed = False
        namespaces.ana_groups = MOST_GROUPS

    # States.

    def state(self, group: int) -> AccessState:
        return self._groups[group].state

    def capacity_unknown(self, group: int) -> bool:
        """True where Identify Namespace gives no capacities (figure 589)."""
        return self.state(group) in (AccessState.INACCESSIBLE, AccessState.PERSISTENT_LOSS)

    def change(self, group: int, state: int, transition: float = 0.0, lasting: float = 0.0) -> None:
        """Change the state of a group, after `transition` seconds in the Change state; after
        `lasting` further seconds, if given, it goes back to the last state that was to stay.
        Raises ValueError."""
        state = self.require(group, state, transition)
        if state is AccessState.PERSISTENT_LOSS and lasting:
            raise ValueError("persistent loss does not end by itself")
        access = self._groups[group]
        access.timer.cancel()
        access.target = state
        if not lasting:
            access.settled = state

        def arrive() -> None:
            self._enter(group, state)
            if lasting:
                back = partial(self.change, group, access.settled, transition)
                access.timer = self._deadlines.after(lasting, back)

        if transition:
            self._enter(group, AccessState.CHANGE)
            access.timer = self._deadlines.after(transition, arrive)
        else:
            arrive()

    def require(self, group: int, state: int, transition: float) -> AccessState:
        """The state of a change that can be. Raises ValueError."""
        if not 1 <= group <= MOST_GROUPS:
            raise ValueError(f"there is no ANA group {group}: groups are 1 to {MOST_GROUPS}")
        target = AccessState(state)
        if target is AccessState.CHANGE:
            raise ValueError("give the state after the change, and a transition time")
        if not 0 <= transition <= TRANSITION_TIME:
            raise ValueError(f"a transition takes at most {TRANSITION_TIME} seconds (ANATT)")
        if self._groups[group].target is AccessState.PERSISTENT_LOSS is not target:
            raise ValueError(
                f"ANA group {group} is in persistent loss, which ends when the drive starts anew"
            )
        return target

    def _enter(self, group: int, state: AccessState) -> None:
        access = self._groups[group]
        if access.state is state:
            return
        access.state = state
        access.changes += 1
        refused = self._namespaces.refused
        refused.pop(group, None)
        if state in _REFUSALS:
            refused[group] = _REFUSALS[state]
        self._namespaces.attach()
        if state is not AccessState.CHANGE:
            self._alerts.notice(NoticeEvent.ASYMMETRIC_ACCESS_CHANGE)

    def save(self) -> tuple[tuple[int, int, int], ...]:
        """Each group, its state and its change count; whatever was to end has ended."""
        for group, access in self._groups.items():
            access.timer.cancel()
            self._enter(group, access.settled)
        return tuple(
            (group, access.state, access.changes) for group, access in self._groups.items()
        )

    def load(self, groups: Iterable[tuple[int, int, int]]) -> None:
        """Have these states, of which the host was notified. Raises ValueError."""
        for group, state, changes in groups:
            access, target = self._groups[group], self.require(group, state, 0)
            access.target = access.settled = target
            self._enter(group, target)
            access.changes = changes

    # Commands.

    def check(self, command: Command) -> None:
        """Raise NvmeError for an Admin command, or an I/O command for one namespace or all, that
        does not work in the state of its namespaces (Base 2.2, figure 589).

        I/O commands for one namespace have been checked by `Namespaces.require_usable`.
        """
        entry, admin = command.entry, not command.queue.qid
        if admin and entry.opcode in _UNAFFECTED:
            return
        every = entry.nsid == BROADCAST_NSID
        try:
            for nsid in self._namespaces.attached if every else (entry.nsid,):
                self._namespaces.require_accessible(nsid)
        except NvmeError as refusal:
            if not admin or not _works(command, refusal.status, every=every):
                raise

    # Reports.

    def listed(self) -> Sequence[AccessGroup]:
        """The groups with attached namespaces, in ascending order."""
        attached: defaultdict[int, list[int]] = defaultdict(list)
        for nsid, namespace in sorted(self._namespaces.attached.items()):
            attached[namespace.shape.ana_group].append(nsid)
        for group in {*attached, *self._groups}:
            access, nsids = self._groups[group], tuple(attached.get(group, ()))
            if nsids != access.nsids:
                access.changes += self._was_listed
                access.nsids = nsids
        self._was_listed = True
        return [
            AccessGroup(group, access.changes, access.state, access.nsids)
            for group, access in sorted(self._groups.items())
            if access.nsids
        ]

    def log(self, lsp: int) -> bytes:
        """Asymmetric Namespace Access log (0Ch)."""
        groups = self.listed()
        changes = sum(access.changes for access in self._groups.values())
        return encode_access_log(changes, groups, namespaces=not lsp & GROUPS_ONLY)


def _works(command: Command, refusal: int, *, every: bool) -> bool:
    """True for an Admin command that works for a namespace, or for `every` one, without access."""
    entry = command.entry
    if entry.opcode == AdminOpcode.DEVICE_SELF_TEST:
        return every  # a test of all is one of those that are accessible
    if entry.opcode == AdminOpcode.GET_FEATURES:
        return GetFeatures.decode(entry.cdws).fid not in UNAVAILABLE
    if entry.opcode != AdminOpcode.SET_FEATURES or every:
        return False
    lost = refusal == Status.ASYMMETRIC_ACCESS_PERSISTENT_LOSS
    return not lost and SetFeatures.decode(entry.cdws).fid not in UNAVAILABLE

"""Power states of a modelled drive: while it is idle it enters states from which it has to wake up.

Source: NVM Express Base Specification 2.0, sections 5.27.1.2 (Power Management), 5.27.1.10
(Autonomous Power State Transition) and 8.15 (Power Management). The powers and latencies are
assumed, as those of a drive for data centres.
"""

from __future__ import annotations

from collections.abc import Callable

from csd_spec.traffic import CompletionKind
from nvme_spec.features import (
    AutonomousTransition,
    AutonomousTransitions,
    FeatureId,
    PowerManagement,
)
from nvme_spec.identify.structures import PowerStateDescriptor
from potash_firmware.rpu.deadlines import Deadlines
from potash_firmware.rpu.features.table import Feature, Limits, Value, refuse
from potash_firmware.rpu.features.values import Features
from potash_firmware.rpu.outstanding import CommandTask, Outstanding
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.timing.modelled import ModelledTime

STATES = (
    PowerStateDescriptor(mp=2500),
    PowerStateDescriptor(mp=150, nops=1, enlat=1000, exlat=1000, rrt=1, rrl=1, rwt=1, rwl=1),
    PowerStateDescriptor(
        mp=500, mxps=1, nops=1, enlat=5000, exlat=25_000, rrt=2, rrl=2, rwt=2, rwl=2
    ),
)
"""An operational state, and two that are not: 25 W, 1.5 W and 0.05 W."""

_MILLISECOND, _MICROSECOND = 1_000_000, 1000


def _transitions(data: bytes) -> list[AutonomousTransition]:
    """The entry of each state."""
    size, data = AutonomousTransition.SIZE, data.ljust(AutonomousTransitions.SIZE, b"\0")
    return [AutonomousTransition(data[at : at + size]) for at in range(0, len(data), size)]


def _check_state(value: Value, nsid: int, limits: Limits) -> None:
    if PowerManagement(value.dword).ps >= len(STATES):
        raise refuse(f"the last power state is {len(STATES) - 1}")


def _check_transitions(value: Value, nsid: int, limits: Limits) -> None:
    for state, entry in enumerate(_transitions(value.data)[: len(STATES)]):
        if entry.itpt and not (state < entry.itps < len(STATES) and STATES[entry.itps].nops):
            raise refuse(f"an idle drive cannot go from power state {state} to {entry.itps}")


ROWS = {
    FeatureId.POWER_MANAGEMENT: Feature(
        PowerManagement, check=_check_state, values="power states 0 to 2"
    ),
    FeatureId.AUTONOMOUS_POWER_STATE_TRANSITION: Feature(
        AutonomousTransitions.Enable,
        taken=lambda dword: AutonomousTransitions.SIZE,
        given=lambda dword: AutonomousTransitions.SIZE,
        check=_check_transitions,
        saveable=True,
        values="transitions to later states that are not operational",
    ),
}
"""The features of a drive with power states."""


class PowerStates(Part):
    """The power state of one controller, which leaves it when one of its commands wants something
    of the flash. It does not change by itself while `suspended`."""

    def __init__(
        self,
        timing: ModelledTime,
        features: Features,
        deadlines: Deadlines,
        outstanding: Outstanding,
        suspended: Callable[[], bool],
    ) -> None:
        self._timing, self._features, self._deadlines = timing, features, deadlines
        self._outstanding, self._suspended = outstanding, suspended
        self.completed = 0
        """The time at which its last command has completed."""
        self.transitions = 0
        """Transitions since the start."""
        self._entries = _transitions(b"")
        self._state, self._since = 0, 0
        """The state that the controller was in at a time, when it had entered it."""
        features.rows = dict(features.rows) | ROWS
        features.power_state = lambda: self._now_in(deadlines.clock.now())[0]
        self.begin()

    def begin(self) -> None:
        """A command of the controller begins: what is asked of the flash is for it, until one of
        another controller begins."""
        self._timing.wake = self.wake

    def configure(self) -> None:
        """The host has set a feature."""
        state = PowerManagement(self._features.chosen(FeatureId.POWER_MANAGEMENT) or 0).ps
        value = self._features.read(0, FeatureId.AUTONOMOUS_POWER_STATE_TRANSITION)
        enabled = AutonomousTransitions.Enable(value.dword).apste
        self._entries = _transitions(value.data if enabled else b"")
        self._enter(state, self._deadlines.clock.now())

    def reset(self, *, next_host: bool = False) -> None:
        self.configure()

    def restore(self, *, clean: bool | None = None) -> None:
        self.configure()

    def wake(self, at: int) -> int:
        """The time at which the controller can serve a request that arrives `at`."""
        state, entered = self._now_in(at)
        ready = at
        if STATES[state].nops:
            ready = max(at, entered) + self._nanoseconds(STATES[state].exlat * _MICROSECOND)
            self._timing.show("WAKE", at, ready)
            self._enter(0, ready)
        else:
            self._since = at
        return ready

    def _enter(self, state: int, at: int) -> None:
        self.transitions += state != self._state
        self._state, self._since = state, at

    def _now_in(self, at: int) -> tuple[int, int]:
        """The state of the controller at a time, and when it has entered, or will enter, it."""
        idle_since, completions = max(self._since, self.completed), self._timing.completions
        if completions and completions[-1].kind != CompletionKind.COMMAND:  # a job, of anybody
            idle_since = max(idle_since, completions[-1].completed)
        if self._suspended():
            self._since = max(self._since, at)
        if self._suspended() or self._outstanding.working or self._any_job:
            return self._state, self._since
        while True:
            entry = self._entries[self._state]
            leaves = idle_since + self._nanoseconds(entry.itpt * _MILLISECOND)
            if not entry.itpt or at < leaves:
                return self._state, self._since
            idle_since = leaves + self._nanoseconds(STATES[entry.itps].enlat * _MICROSECOND)
            self._enter(entry.itps, idle_since)

    @property
    def _any_job(self) -> bool:
        """Something that is no command, such as a job, waits for its deadline."""
        waiters = (waiter for _, _, waiter in self._deadlines.heap)
        return any(not waiter.over and not isinstance(waiter, CommandTask) for waiter in waiters)

    def _nanoseconds(self, modelled: int) -> int:
        return modelled * self._timing.factor

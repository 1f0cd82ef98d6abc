"""The state of compute namespaces: programs, range sets and executions.

It belongs to the namespaces: a controller reset keeps programs, activation and range sets. They are
lost with the namespace, with power, and before another host may be served.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nvme_spec.status import NvmeError
from potash_firmware.rpu.compute.engine import Execution, ProgramEngine, Shared
from potash_firmware.rpu.compute.programs import Programs
from potash_firmware.rpu.compute.ranges import RangeSets
from potash_firmware.rpu.compute.runs import ExecuteCommand, Runs
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.namespaces.reachability import Reachability
from potash_firmware.rpu.part import Part
from potash_firmware.rpu.scheduler import Scheduler
from potash_firmware.rpu.settings import ComputeSettings
from potash_firmware.rpu.transfer import Transfer

if TYPE_CHECKING:  # it takes NumPy, as in the controller
    from potash_firmware.rpu.timing.jobs import JobTime

LOADED_LIMIT = 256
"""Programs of all namespaces: each holds a descriptor, of which a process has not many."""


@dataclass(frozen=True)
class ComputeState:
    """The state of one namespace."""

    programs: Programs
    sets: RangeSets
    runs: Runs


@dataclass(eq=False, repr=False)
class Compute(Part):
    """The state of all compute namespaces of a drive, by namespace identifier, made when it is
    needed."""

    settings: ComputeSettings
    engine: ProgramEngine
    transfer: Transfer
    scheduler: Scheduler
    namespaces: Namespaces
    reachability: Reachability
    job_time: JobTime | None = None
    _states: dict[int, ComputeState] = field(default_factory=dict)

    def of(self, nsid: int) -> ComputeState:
        """The state of compute namespace `nsid`, of which there has to be one."""
        state = self._states.get(nsid)
        if state is None:
            self.engine.open(nsid)
            runs = Runs(nsid, self.engine, self.transfer, self.job_time)
            programs = Programs(
                nsid, self.settings, self.engine, self.scheduler, runs.uses, self._has_room
            )
            sets = RangeSets(self.settings, self._memory, runs.uses)
            state = self._states[nsid] = ComputeState(programs, sets, runs)
        return state

    def _memory(self, nsid: int) -> Shared | None:
        """The memory of an attached memory namespace that programs can reach."""
        namespace = self.namespaces.accessible.get(nsid)
        if not isinstance(namespace, MemoryNamespace) or not self.reachability.associated:
            return None
        return Shared(namespace.memory.handle, namespace.memory.fd, namespace.size)

    def _has_room(self) -> bool:
        return sum(state.programs.loaded for state in self._states.values()) < LOADED_LIMIT

    @property
    def states(self) -> dict[int, ComputeState]:
        """The states that exist, by namespace identifier."""
        return dict(self._states)

    @property
    def executions(self) -> set[Future[Execution]]:
        """Executions that the engine has not ended, which may still change memory."""
        return set().union(*(state.runs.executions for state in self._states.values()))

    def run_of(self, execution: Future[Execution] | None) -> ExecuteCommand | None:
        """The command of an execution; None if it has ended."""
        every = (run for state in self._states.values() for run in state.runs.running)
        return next((run for run in every if run.execution is execution is not None), None)

    # The end of things.

    def stop(self, nsid: int, error: NvmeError) -> set[Future[Execution]]:
        """End the commands of a compute namespace, with `error`; what is to be waited for."""
        state = self._states.get(nsid)
        return state.runs.stop_all(error) if state is not None else set()

    def stop_all(self, error: NvmeError, memory: int = 0) -> set[Future[Execution]]:
        """End all commands, or those that use a memory namespace, with `error`; what is to be
        waited for."""
        stopped = (state.runs.stop_all(error, memory) for state in self._states.values())
        return set().union(*stopped)

    def forget(self, memory: int) -> None:
        """The memory with that handle is about to go."""
        self.engine.forget(memory)

    def remove(self, nsid: int) -> None:
        """A compute namespace is gone, whose commands have ended."""
        state = self._states.pop(nsid, None)
        if state is not None:
            state.programs.clear()
            self.engine.close(nsid)

    def reset(self, *, next_host: bool = False) -> None:
        """The session is over; the `next_host` is to find nothing of this one's."""
        for state in self._states.values():
            state.runs.reset()
            if next_host:
                state.programs.clear()
                state.sets.clear()

"""The life of a job, as a table: state, event, next state.

A missing row is an event that cannot happen: for a host's command (start) it is a Command Sequence
Error, for anything else an error of the firmware. This module only describes.

Alkali CSD platform documentation, section 4.3.1 (Get Accelerator Status) and 4.3.2 (Basic
Accelerator Control); the states between are this firmware's.
"""

from enum import Enum, auto

from csd_spec.status import StatusId


class JobState(Enum):
    """The state of an accelerator."""

    IDLE = auto()
    RUNNING = auto()
    """The job has been handed to the worker, or waits for one."""
    WRITING = auto()
    """The program has returned; its output goes to its blocks."""
    STOPPING = auto()
    EXPIRING = auto()
    RESETTING = auto()
    """In these three states the worker has been killed, and its exit has not been reported yet."""
    DONE = auto()
    FAILED = auto()
    STOPPED = auto()
    NOT_LOADED = auto()
    """There was no program to start (only with `Config.platform_status`)."""


class Event(Enum):
    """Events of a job."""

    START = auto()
    STOP = auto()
    RESET = auto()
    RETURNED = auto()
    FAULTED = auto()
    EXPIRED = auto()
    WORKER_LOST = auto()
    WRITTEN = auto()
    WRITE_FAILED = auto()
    NEXT_STEP = auto()
    """A step of a chain has ended, and the next one begins."""
    NOT_LOADED = auto()


class OutOfSequence(Exception):
    """The event cannot happen in this state."""


def _idle(state: JobState) -> dict[Event, JobState]:
    return {
        Event.START: JobState.RUNNING,
        Event.STOP: state,
        Event.RESET: JobState.IDLE,
        Event.WORKER_LOST: state,
        Event.NOT_LOADED: JobState.NOT_LOADED,
    }


TRANSITIONS: dict[JobState, dict[Event, JobState]] = {
    JobState.IDLE: _idle(JobState.IDLE),
    JobState.DONE: _idle(JobState.DONE),
    JobState.FAILED: _idle(JobState.FAILED),
    JobState.STOPPED: _idle(JobState.STOPPED),
    JobState.NOT_LOADED: _idle(JobState.NOT_LOADED),
    JobState.RUNNING: {
        Event.RETURNED: JobState.WRITING,
        Event.FAULTED: JobState.FAILED,
        Event.WORKER_LOST: JobState.FAILED,
        Event.STOP: JobState.STOPPING,
        Event.EXPIRED: JobState.EXPIRING,
        Event.RESET: JobState.RESETTING,
    },
    JobState.WRITING: {
        Event.WRITTEN: JobState.DONE,
        Event.NEXT_STEP: JobState.RUNNING,
        Event.WRITE_FAILED: JobState.FAILED,
        Event.STOP: JobState.WRITING,  # nothing can be stopped: the command waits for the end
        Event.RESET: JobState.IDLE,
        Event.WORKER_LOST: JobState.WRITING,
    },
    JobState.STOPPING: {
        Event.WORKER_LOST: JobState.STOPPED,
        Event.STOP: JobState.STOPPING,
        Event.RESET: JobState.RESETTING,
    },
    JobState.EXPIRING: {
        Event.WORKER_LOST: JobState.FAILED,
        Event.STOP: JobState.EXPIRING,
        Event.RESET: JobState.RESETTING,
    },
    JobState.RESETTING: {
        Event.WORKER_LOST: JobState.IDLE,
        Event.STOP: JobState.RESETTING,
        Event.RESET: JobState.RESETTING,
    },
}

STATUS: dict[JobState, StatusId] = {
    JobState.IDLE: StatusId.IDLE,
    JobState.RUNNING: StatusId.RUNNING,
    JobState.WRITING: StatusId.RUNNING,
    JobState.STOPPING: StatusId.RUNNING,
    JobState.EXPIRING: StatusId.RUNNING,
    JobState.RESETTING: StatusId.RUNNING,
    JobState.DONE: StatusId.DONE,
    JobState.FAILED: StatusId.FAILED,
    JobState.STOPPED: StatusId.STOPPED,
    JobState.NOT_LOADED: StatusId.FAILED,
}
"""The status that a host sees, by state."""

PLATFORM_STATUS = STATUS | {JobState.FAILED: StatusId.DONE}
"""The same as the platform's firmware reports it: done after every job, a failed one too."""

ENDING = frozenset({JobState.STOPPING, JobState.EXPIRING, JobState.RESETTING})


def is_busy(state: JobState) -> bool:
    """True while a job has the accelerator and its buffers."""
    return STATUS[state] is StatusId.RUNNING


def after(state: JobState, event: Event) -> JobState:
    """The state that follows. Raises OutOfSequence."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise OutOfSequence(f"{event.name} cannot happen while {state.name}") from None

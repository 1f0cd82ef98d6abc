"""The life of a job, as a table: state, event, next state.

A missing row is an event that cannot happen: for a host's command (start) it is a Command Sequence
Error, for anything else an error of the firmware. This module only describes.

Alkali CSD platform documentation, section 4.3.1 (Get Accelerator Status) and 4.3.2 (Basic
Accelerator Control); the states between are this firmware's.
"""

from enum import Enum, auto

from csd_spec.status import StatusId


class State(Enum):
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
    NOT_LOADED = auto()


class OutOfSequence(Exception):
    """The event cannot happen in this state."""


def _idle(state: State) -> dict[Event, State]:
    return {
        Event.START: State.RUNNING,
        Event.STOP: state,
        Event.RESET: State.IDLE,
        Event.WORKER_LOST: state,
        Event.NOT_LOADED: State.NOT_LOADED,
    }


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.IDLE: _idle(State.IDLE),
    State.DONE: _idle(State.DONE),
    State.FAILED: _idle(State.FAILED),
    State.STOPPED: _idle(State.STOPPED),
    State.NOT_LOADED: _idle(State.NOT_LOADED),
    State.RUNNING: {
        Event.RETURNED: State.WRITING,
        Event.FAULTED: State.FAILED,
        Event.WORKER_LOST: State.FAILED,
        Event.STOP: State.STOPPING,
        Event.EXPIRED: State.EXPIRING,
        Event.RESET: State.RESETTING,
    },
    State.WRITING: {
        Event.WRITTEN: State.DONE,
        Event.WRITE_FAILED: State.FAILED,
        Event.STOP: State.WRITING,  # nothing can be stopped: the command waits for the end
        Event.RESET: State.IDLE,
        Event.WORKER_LOST: State.WRITING,
    },
    State.STOPPING: {
        Event.WORKER_LOST: State.STOPPED,
        Event.STOP: State.STOPPING,
        Event.RESET: State.RESETTING,
    },
    State.EXPIRING: {
        Event.WORKER_LOST: State.FAILED,
        Event.STOP: State.EXPIRING,
        Event.RESET: State.RESETTING,
    },
    State.RESETTING: {
        Event.WORKER_LOST: State.IDLE,
        Event.STOP: State.RESETTING,
        Event.RESET: State.RESETTING,
    },
}

STATUS: dict[State, StatusId] = {
    State.IDLE: StatusId.IDLE,
    State.RUNNING: StatusId.RUNNING,
    State.WRITING: StatusId.RUNNING,
    State.STOPPING: StatusId.RUNNING,
    State.EXPIRING: StatusId.RUNNING,
    State.RESETTING: StatusId.RUNNING,
    State.DONE: StatusId.DONE,
    State.FAILED: StatusId.FAILED,
    State.STOPPED: StatusId.STOPPED,
    State.NOT_LOADED: StatusId.FAILED,
}
"""The status that a host sees, by state."""

PLATFORM_STATUS = STATUS | {State.FAILED: StatusId.DONE}
"""The same as the platform's firmware reports it: done after every job, a failed one too."""

ENDING = frozenset({State.STOPPING, State.EXPIRING, State.RESETTING})


def is_busy(state: State) -> bool:
    """True while a job has the accelerator and its buffers."""
    return STATUS[state] is StatusId.RUNNING


def after(state: State, event: Event) -> State:
    """The state that follows. Raises OutOfSequence."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise OutOfSequence(f"{event.name} cannot happen while {state.name}") from None

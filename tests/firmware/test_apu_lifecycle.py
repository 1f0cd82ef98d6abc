"""The life of a job, event by event."""

import pytest

from csd_spec.status import StatusId
from potash_firmware.apu.lifecycle import (
    ENDING,
    STATUS,
    TRANSITIONS,
    Event,
    OutOfSequence,
    State,
    after,
    is_busy,
)

AT_REST = [state for state in State if not is_busy(state)]


def test_every_state_has_a_row_and_a_status() -> None:
    assert set(TRANSITIONS) == set(STATUS) == set(State)


@pytest.mark.parametrize(
    ("events", "state", "status"),
    [
        ("START RETURNED WRITTEN", State.DONE, StatusId.DONE),
        ("START RETURNED WRITE_FAILED", State.FAILED, StatusId.FAILED),
        ("START RETURNED", State.WRITING, StatusId.RUNNING),
        ("START FAULTED", State.FAILED, StatusId.FAILED),
        ("START WORKER_LOST", State.FAILED, StatusId.FAILED),
        ("START EXPIRED WORKER_LOST", State.FAILED, StatusId.FAILED),
        ("START STOP", State.STOPPING, StatusId.RUNNING),
        ("START STOP WORKER_LOST", State.STOPPED, StatusId.STOPPED),
        ("START STOP WORKER_LOST START", State.RUNNING, StatusId.RUNNING),
        ("START STOP RESET WORKER_LOST", State.IDLE, StatusId.IDLE),
        ("START RETURNED STOP WRITTEN", State.DONE, StatusId.DONE),
        ("START RETURNED WORKER_LOST WRITTEN", State.DONE, StatusId.DONE),
        ("START RETURNED RESET", State.IDLE, StatusId.IDLE),
        ("START FAULTED RESET", State.IDLE, StatusId.IDLE),
        ("NOT_LOADED", State.NOT_LOADED, StatusId.FAILED),
        ("NOT_LOADED START", State.RUNNING, StatusId.RUNNING),
    ],
)
def test_a_jobs_way(events: str, state: State, status: StatusId) -> None:
    now = State.IDLE
    for event in events.split():
        now = after(now, Event[event])
    assert (now, STATUS[now]) == (state, status)


@pytest.mark.parametrize("state", State)
def test_a_job_starts_only_at_rest(state: State) -> None:
    if state in AT_REST:
        assert after(state, Event.START) is State.RUNNING
    else:
        with pytest.raises(OutOfSequence):
            after(state, Event.START)


@pytest.mark.parametrize("state", State)
def test_stop_reset_and_a_lost_worker_can_come_at_any_time(state: State) -> None:
    for event in (Event.STOP, Event.RESET, Event.WORKER_LOST):
        after(state, event)


@pytest.mark.parametrize("state", [state for state in State if state in ENDING])
def test_a_killed_job_is_over_when_its_worker_is_gone_and_not_before(state: State) -> None:
    for event, then in TRANSITIONS[state].items():
        assert is_busy(then) == (event is not Event.WORKER_LOST)


@pytest.mark.parametrize("state", AT_REST)
def test_what_a_worker_says_counts_only_while_it_runs_a_job(state: State) -> None:
    for event in (Event.RETURNED, Event.FAULTED, Event.EXPIRED, Event.WRITTEN, Event.WRITE_FAILED):
        with pytest.raises(OutOfSequence):
            after(state, event)

"""The life of a job, event by event."""

import pytest

from csd_spec.status import StatusId
from potash_firmware.apu.lifecycle import (
    ENDING,
    STATUS,
    TRANSITIONS,
    Event,
    JobState,
    OutOfSequence,
    after,
    is_busy,
)

AT_REST = [state for state in JobState if not is_busy(state)]


def test_every_state_has_a_row_and_a_status() -> None:
    assert set(TRANSITIONS) == set(STATUS) == set(JobState)


@pytest.mark.parametrize(
    ("events", "state", "status"),
    [
        ("START RETURNED WRITTEN", JobState.DONE, StatusId.DONE),
        ("START RETURNED WRITE_FAILED", JobState.FAILED, StatusId.FAILED),
        ("START RETURNED", JobState.WRITING, StatusId.RUNNING),
        ("START FAULTED", JobState.FAILED, StatusId.FAILED),
        ("START WORKER_LOST", JobState.FAILED, StatusId.FAILED),
        ("START EXPIRED WORKER_LOST", JobState.FAILED, StatusId.FAILED),
        ("START STOP", JobState.STOPPING, StatusId.RUNNING),
        ("START STOP WORKER_LOST", JobState.STOPPED, StatusId.STOPPED),
        ("START STOP WORKER_LOST START", JobState.RUNNING, StatusId.RUNNING),
        ("START STOP RESET WORKER_LOST", JobState.IDLE, StatusId.IDLE),
        ("START RETURNED STOP WRITTEN", JobState.DONE, StatusId.DONE),
        ("START RETURNED WORKER_LOST WRITTEN", JobState.DONE, StatusId.DONE),
        ("START RETURNED RESET", JobState.IDLE, StatusId.IDLE),
        ("START FAULTED RESET", JobState.IDLE, StatusId.IDLE),
        ("NOT_LOADED", JobState.NOT_LOADED, StatusId.FAILED),
        ("NOT_LOADED START", JobState.RUNNING, StatusId.RUNNING),
    ],
)
def test_a_jobs_way(events: str, state: JobState, status: StatusId) -> None:
    now = JobState.IDLE
    for event in events.split():
        now = after(now, Event[event])
    assert (now, STATUS[now]) == (state, status)


@pytest.mark.parametrize("state", JobState)
def test_a_job_starts_only_at_rest(state: JobState) -> None:
    if state in AT_REST:
        assert after(state, Event.START) is JobState.RUNNING
    else:
        with pytest.raises(OutOfSequence):
            after(state, Event.START)


@pytest.mark.parametrize("state", JobState)
def test_stop_reset_and_a_lost_worker_can_come_at_any_time(state: JobState) -> None:
    for event in (Event.STOP, Event.RESET, Event.WORKER_LOST):
        after(state, event)


@pytest.mark.parametrize("state", [state for state in JobState if state in ENDING])
def test_a_killed_job_is_over_when_its_worker_is_gone_and_not_before(state: JobState) -> None:
    for event, then in TRANSITIONS[state].items():
        assert is_busy(then) == (event is not Event.WORKER_LOST)


@pytest.mark.parametrize("state", AT_REST)
def test_what_a_worker_says_counts_only_while_it_runs_a_job(state: JobState) -> None:
    for event in (Event.RETURNED, Event.FAULTED, Event.EXPIRED, Event.WRITTEN, Event.WRITE_FAILED):
        with pytest.raises(OutOfSequence):
            after(state, event)

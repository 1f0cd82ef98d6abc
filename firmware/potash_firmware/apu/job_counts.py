"""Counting an accelerator's jobs, in its row of the shared counters."""

import logging
import time

from potash_firmware.apu.lifecycle import STATUS, Event, State
from potash_firmware.apu.model import Accelerator
from potash_firmware.mailbox.counters import Word, add

log = logging.getLogger(__name__)

NANOSECONDS = 1e9

RESULTS = {State.DONE: Word.DONE, State.FAILED: Word.FAILED}
"""The counter for each end of a job; any other end counts as STOPPED, as a reset stops a job,
too."""

SAID = {Word.DONE: "ended", Word.FAILED: "failed", Word.STOPPED: "been stopped"}


def count_event(accelerator: Accelerator, event: Event) -> None:
    """The accelerator is in the state that has followed from `event`."""
    row = accelerator.row
    row[Word.STATE] = STATUS[accelerator.state]
    if event is Event.START:
        row[Word.BEGAN] = time.monotonic_ns()
        add(row, Word.STARTED, 1)
        log.debug("accelerator %d: a job begins", accelerator.config.id)
    elif row[Word.BEGAN] and not accelerator.busy:
        _ended(accelerator)


def count_restart(accelerator: Accelerator) -> None:
    """The APU has been restarted, and a job that was under way then has failed."""
    accelerator.row[Word.STATE] = STATUS[accelerator.state]
    if accelerator.row[Word.BEGAN]:
        _ended(accelerator)


def _ended(accelerator: Accelerator) -> None:
    row = accelerator.row
    took = time.monotonic_ns() - row[Word.BEGAN]
    add(row, Word.BUSY, took)
    row[Word.BEGAN] = 0
    result = RESULTS.get(accelerator.state, Word.STOPPED)
    add(row, result, 1)
    identifier, seconds = accelerator.config.id, took / NANOSECONDS
    known = {"accelerator": identifier, "result": result.name.lower(), "seconds": seconds}
    log.log(
        logging.DEBUG if result is Word.DONE else logging.INFO,
        "accelerator %d: a job has %s after %.3f s",
        identifier,
        SAID[result],
        seconds,
        extra={"known": known},
    )

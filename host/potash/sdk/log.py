"""Entries of one job in an accelerator's log, where they follow those of the jobs before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from csd_spec.descriptors import LogEntry, LogEntryType


def of_last_job(entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """The entries from the last job's start on; all of them where the log has lost that one."""
    starts = [at for at, entry in enumerate(entries) if entry.type == LogEntryType.JOB_STARTED]
    return entries[starts[-1] :] if starts else entries


def is_fault(entries: Sequence[LogEntry]) -> bool:
    """Whether these entries of one job say that it failed, whatever its status is.

    An accelerator with the original platform's status is done after a failed job too. That its log
    has no entry for the job's start proves nothing: it may be the platform's own.
    """
    types = [entry.type for entry in entries]
    if LogEntryType.JOB_STARTED not in types:
        return False
    if LogEntryType.JOB_FINISHED not in types:
        return True
    ended = types.index(LogEntryType.JOB_FINISHED)
    return LogEntryType.INVALID_OUTPUT_BUFFER in types[ended:]


def printed(entries: Iterable[LogEntry]) -> list[str]:
    """What programs have printed."""
    return [entry.text for entry in entries if entry.type == LogEntryType.PROGRAM_OUTPUT]

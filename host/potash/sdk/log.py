"""Entries of one job in an accelerator's log, where they follow those of the jobs before."""

from collections.abc import Iterable, Sequence

from csd_spec.descriptors import LogEntry, LogEntryType


def of_last_job(entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """The entries since the last job's start; all entries if the log no longer contains that."""
    starts = [at for at, entry in enumerate(entries) if entry.type == LogEntryType.JOB_STARTED]
    return entries[starts[-1] :] if starts else entries


def is_fault(entries: Sequence[LogEntry]) -> bool:
    """Whether these entries of one job show that it failed, whatever its status is.

    With the original platform's status, an accelerator is done after a failed job, too. A missing
    entry for the job's start proves nothing, as the platform's own log has none.
    """
    types = [entry.type for entry in entries]
    if LogEntryType.JOB_STARTED not in types:
        return False
    if LogEntryType.JOB_FINISHED not in types:
        return True
    ended = types.index(LogEntryType.JOB_FINISHED)
    return LogEntryType.INVALID_OUTPUT_BUFFER in types[ended:]


def printed(entries: Iterable[LogEntry]) -> list[str]:
    """The lines that programs printed."""
    return [entry.text for entry in entries if entry.type == LogEntryType.PROGRAM_OUTPUT]

"""What an accelerator's log says of one job: its entries lie behind those of the jobs before."""

from __future__ import annotations

from collections.abc import Iterable

from csd_spec.descriptors import LogEntry, LogEntryType


def of_last_job(entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """The entries from the last job's start on; all of them where the log has lost that one."""
    starts = [at for at, entry in enumerate(entries) if entry.type == LogEntryType.JOB_STARTED]
    return entries[starts[-1] :] if starts else entries


def printed(entries: Iterable[LogEntry]) -> list[str]:
    """What programs have printed."""
    return [entry.text for entry in entries if entry.type == LogEntryType.PROGRAM_OUTPUT]

"""What the entries of one job say of it."""

import pytest

from csd_spec.descriptors import LogEntry, LogEntryType
from potash.sdk.errors import is_fault

STARTED, FINISHED = LogEntryType.JOB_STARTED, LogEntryType.JOB_FINISHED


@pytest.mark.parametrize(
    ("types", "fault"),
    [
        ([STARTED, FINISHED], False),
        ([STARTED, LogEntryType.ACCELERATOR_ERROR, FINISHED], False),  # the program's own words
        ([LogEntryType.INVALID_OUTPUT_BUFFER, STARTED, FINISHED], False),  # a range cut at the end
        ([STARTED, LogEntryType.MEMORY_FAULT], True),
        ([STARTED, LogEntryType.LIMIT_EXCEEDED], True),
        ([STARTED, LogEntryType.INVALID_INPUT_BUFFER], True),
        ([STARTED, FINISHED, LogEntryType.INVALID_OUTPUT_BUFFER], True),  # not written
        ([], False),
        ([LogEntryType.ACCELERATOR_ERROR], False),  # an accelerator that logs no jobs
    ],
)
def test_a_job_that_did_not_end_well_is_a_fault(types: list[LogEntryType], fault: bool) -> None:
    assert is_fault([LogEntry(0, kind, "") for kind in types]) is fault

"""Errors that this package raises."""

from potash.sdk.errors import InvalidRequest


class InvalidQuery(InvalidRequest):
    """A query that is wrong, or that the drive cannot answer for this file. The text says why."""

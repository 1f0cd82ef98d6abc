"""Errors that this package raises."""

from potash.sdk.errors import InvalidRequest, PotashError


class InvalidFile(PotashError):
    """A file is not an Arrow file, or not one that can be queried. The text says why."""


class InvalidQuery(InvalidRequest):
    """An expression is wrong, or asks for something that the file's columns do not have."""

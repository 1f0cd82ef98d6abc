"""Errors of the mailbox."""


class MailboxError(Exception):
    """A message, a port or a shared buffer is not what the two processors agreed on."""

"""What a controller has done since its power-on, in numbers for observers outside.

Nothing here is seen by a host, whose own counters are the health log's.
"""

from collections import defaultdict


class Statistics:
    def __init__(self) -> None:
        self.commands: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        """Commands that were fetched, by queue, command set and opcode."""
        self.errors: defaultdict[int, int] = defaultdict(int)
        """Commands that ended with an error, by status (SCT << 8 | SC)."""
        self.resets = 0
        """Ends of a host's session, whatever the kind of reset."""

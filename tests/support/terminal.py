"""What a terminal or a pipe says, and no more of it than was waited for."""

import os
import select
import time

LIMIT = 60.0


def until(descriptor: int, words: bytes) -> bytes:
    """What comes up to `words` and with them; what follows stays to be read. A terminal may deliver
    one write in pieces."""
    said, deadline = bytearray(), time.monotonic() + LIMIT
    while not said.endswith(words):
        left = max(0.0, deadline - time.monotonic())
        assert select.select([descriptor], [], [], left)[0], bytes(said)
        byte = os.read(descriptor, 1)
        assert byte, bytes(said)
        said += byte
    return bytes(said)

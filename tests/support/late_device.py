"""A device that stops its guests, and is late, again and again, until something is said to it.

    late_device.py MONITOR...

Prints the identifier of the process that stops the guests while it is late.
"""

import select
import sys
import time
from pathlib import Path

from potash.vm.standstill import Standstill
from support.played_monitor import PlainClock


def main() -> None:
    clock = PlainClock(time.monotonic_ns)
    still = Standstill(
        [*map(Path, sys.argv[1:])],
        clock,
        watched=True,
        realtime=lambda: 1_700_000_000 + time.monotonic(),
    )
    still.attach(sys.argv[1:])
    assert still._watch is not None
    print(still._watch.pid, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        still.expect(clock.now())
        time.sleep(0.003)
        for step in (lambda _: still.expect(None), still.hold, still.release):
            step("it")
            for _ in range(5):
                select.select(still.sources, [], [], 0.002)
                still.service()
    still.close()


if __name__ == "__main__":
    main()

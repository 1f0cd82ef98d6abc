"""Bit errors of flash: how often a read is repeated until error correction succeeds, if it does.

The raw bit error rate is the expected one, by B. S. Kim, J. Choi and S. L. Min, "Design Tradeoffs
for SSD Reliability", FAST 2019: a sum of wear, of retention and of read disturbance,

    e + a cycles^k + b cycles^m hours^n + c cycles^p reads^q

where `cycles` includes that of the data, and `reads` is the mean of those of a block's pages since
its erase. Nothing is drawn at random.
"""

from potash_device.flash import state
from potash_device.flash.state import FlashState
from potash_device.vta.fast.compiling import Number, outlined

HOUR = 3600 * 10**9
"""Nanoseconds."""


@outlined
def retry(f: FlashState, block: Number) -> Number:
    """The time of the retries that a read of a superblock takes.

    Each step corrects errors up to a rate of its own; where the last one fails, the read is
    uncorrectable.
    """
    e, cycles, limits = f.rber, f.erases[block] + 1.0, f.retry_rber
    hours = max(0, f.now[0] - f.born[block]) / HOUR
    reads = f.reads[block] / (f.settings[state.SUPERBLOCK] / f.settings[state.ROW_PAGES])
    rate = e[0] + e[1] * cycles ** e[2] + e[3] * cycles ** e[4] * hours ** e[5]
    rate += e[6] * cycles ** e[7] * reads ** e[8]
    step = took = 0
    while step < limits.size and rate > limits[step]:
        step += 1
        if step < limits.size:
            took += f.retry_ns[min(step, f.retry_ns.size) - 1]
            f.counters[state.RETRIES] += 1
    f.counters[state.UNCORRECTABLE] += step == limits.size
    return took

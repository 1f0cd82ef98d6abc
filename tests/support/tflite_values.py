"""Values for int8 tensors, and a core on which hardly anything fits."""

from collections.abc import Sequence

import numpy as np

from potash_device.vta.config import Config
from support.tflite import Int8

SMALL = Config(
    log_batch=1,
    log_block_in=3,
    log_block_out=3,
    log_uop_buff_size=9,
    log_inp_buff_size=10,
    log_acc_buff_size=12,
)
"""2x8x8, 64 accumulators: images are in pairs, and hardly a window fits."""


def spread(shape: Sequence[int], seed: int = 0) -> Int8:
    """Values of all sizes, and in places the extremes."""
    random = np.random.default_rng(seed)
    drawn = random.integers(-128, 128, shape, np.int8)
    extreme = random.choice(np.array([-128, 127], np.int8), shape)
    return np.where(random.random(shape) < 0.3, extreme, drawn)

"""Compiles what tests want of the fast engines of the VTA and of a drive's time:
`python -m support.compiled`, in `tests`.

Every path of the VTA that this processor has; numba keeps what it compiles, and cores of other
shapes take the path without tiles that the default one can take, too.
"""

from __future__ import annotations

import support.amx  # noqa: F401 - it adds a path
from potash_device.flash.profiles import PROFILES
from potash_device.vta.config import Config
from potash_device.vta.fast.paths import available
from potash_device.vta.fast.simulator import FastSimulator
from potash_device.vta.isa import encode_stream
from potash_device.vta.warming import DRAM_BYTES, instructions, warm
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.requests import Op


def main() -> None:
    Drive(PROFILES["femu"]).submit(0, Op.FLUSH)
    config = Config.default()
    warm(config)
    stream = encode_stream(instructions(config), config)
    for path in available(config)[1:]:
        FastSimulator(config, memoryview(bytearray(DRAM_BYTES)), path=path).execute(stream)


if __name__ == "__main__":
    main()

"""The check of lab 2: the tilings fit, and take at most 5 % more cycles than the best one known."""

from collections.abc import Mapping
from typing import Any

from potash_device.vta.config import Config
from potash_device.vta.isa import AluOpcode
from potash_device.vta.timing.parameters import PYNQ
from potash_firmware.vta_runtime.schedules import (
    Conv2d,
    Convolution,
    Epilogue,
    ScheduleError,
    Step,
    Tile,
    search,
)
from potash_firmware.vta_runtime.schedules.tiles import fits

LAYERS = {
    "C2": Conv2d(1, 64, 56, 56, 64, (3, 3), (1, 1), (1, 1, 1, 1)),
    "C9": Conv2d(1, 256, 14, 14, 256, (3, 3), (1, 1), (1, 1, 1, 1)),
    "C12": Conv2d(1, 512, 7, 7, 512, (3, 3), (1, 1), (1, 1, 1, 1)),
}
"""Three of ResNet-18's."""
EPILOGUE = Epilogue((Step(AluOpcode.SHR, 6), Step(AluOpcode.MAX, -128), Step(AluOpcode.MIN, 127)))
WORSE = 1.05


def cycles(shape: Conv2d, tile: Tile, config: Config) -> float:
    """Of a layer, on the clock of the core's timing model."""
    stream = search.stream_of(Convolution(shape, config, tile, EPILOGUE))
    return search.clocked(config, PYNQ, stream)


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    config, problems = Config.default(), []
    for name, shape in LAYERS.items():
        tile = made["tile"](shape, EPILOGUE, config)
        if not fits(shape, tile, EPILOGUE, config):
            problems.append(f"{name}: {tile} does not fit the buffers")
            continue
        try:
            taken = cycles(shape, tile, config)
        except ScheduleError as error:
            problems.append(f"{name}: {error}")
            continue
        best = cycles(shape, search.best_tile(shape, config, EPILOGUE, PYNQ), config)
        if taken > WORSE * best:
            problems.append(f"{name}: {taken:.0f} cycles, {taken / best:.2f} times the best")
    return problems

"""A shape of a layer on a core, which a process of its own schedules and times."""

from typing import NamedTuple

from potash.vta.scheduled import STEPS
from potash_device.vta import timing
from potash_device.vta.config import Config
from potash_device.vta.timing.parameters import Parameters
from potash_firmware.vta_runtime.schedules import Conv2d, ScheduleError, conv2d
from potash_firmware.vta_runtime.schedules.search import stream_of


class Task(NamedTuple):
    """A shape to be cut into tiles for a core, and timed on its clock."""

    shape: Conv2d
    config: Config
    parameters: Parameters


class Outcome(NamedTuple):
    """Cycles that it takes, or why there is no schedule."""

    cycles: int | None
    reason: str = ""


def carry_out(task: Task) -> Outcome:
    """Find the best schedule and its cycles; with the shift and the clamps of a quantised layer."""
    shape, config, parameters = task
    try:
        plan = conv2d(shape, config, STEPS, parameters=parameters)
        return Outcome(timing.run(config, parameters, stream_of(plan)).cycles)
    except ScheduleError as error:
        return Outcome(None, str(error))

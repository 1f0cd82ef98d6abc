"""The timing model: the number of cycles of a stream, and what the modules wait for.

`run` is the interface, with `Parameters`, which are the durations of everything; `clock` is loaded
when it is first needed.
"""

from collections.abc import Sequence

from potash_device.vta.config import Config
from potash_device.vta.isa import Instruction, encode_stream
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Timing


def run(
    config: Config,
    parameters: Parameters,
    stream: bytes | bytearray | memoryview | Sequence[Instruction],
    *,
    compiled: bool = True,
) -> Timing:
    """The timing of a stream, given as bytes or as instructions. Raises StreamError if it
    cannot run, and InstructionError for an instruction that cannot be encoded.

    `compiled` may be False for a short stream, for which nothing is then compiled; the result is
    the same.
    """
    from potash_device.vta.timing import clock  # which loads numba

    if not isinstance(stream, bytes | bytearray | memoryview):
        stream = encode_stream(stream, config)
    found = clock.simulate(config, parameters, bytes(stream), compile_it=compiled)
    return Timing(config, parameters, *found)

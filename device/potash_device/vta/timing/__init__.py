"""The timing model: the number of cycles of a stream, and what the modules wait for.

`run` is the interface, with `Parameters`, which are the durations of everything. `model` is the
specification; `compiled` is the same for long streams, compiled when it is first needed.
"""

from collections.abc import Sequence

from potash_device.vta.config import Config
from potash_device.vta.isa import Instruction, encode_stream
from potash_device.vta.stream import decode_stream
from potash_device.vta.timing import model
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Timing


def run(
    config: Config,
    parameters: Parameters,
    stream: bytes | bytearray | memoryview | Sequence[Instruction],
    *,
    compiled: bool = True,
) -> Timing:
    """How long a stream takes, given as bytes or as instructions. Raises StreamError where it
    cannot run, and InstructionError for an instruction that cannot be encoded.

    `compiled` may be False for a short stream where numba is not wanted; the result is the same.
    """
    if not isinstance(stream, bytes | bytearray | memoryview):
        if not compiled:
            return model.simulate(config, parameters, stream)
        stream = encode_stream(stream, config)
    code = bytes(stream)
    if compiled:
        from potash_device.vta.timing import compiled as fast

        found = fast.simulate(config, parameters, code)
        if found is not None:
            return Timing(config, parameters, *found)
    timing = model.simulate(config, parameters, decode_stream(code, config))
    assert not compiled, "the compiled clock refuses a stream that can run"
    return timing

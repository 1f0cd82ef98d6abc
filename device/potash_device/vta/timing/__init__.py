"""The timing model: the number of cycles of a stream, and what the modules wait for.

`run` is the interface, with `Parameters`, which are the durations of everything. `model` is the
specification; `compiled` is the same for long streams, compiled when it is first needed.
"""

from collections.abc import Sequence

from potash_device.vta.config import Config
from potash_device.vta.encoding import INSTRUCTION_BYTES, InstructionError
from potash_device.vta.isa import Instruction, decode, encode_stream
from potash_device.vta.stream import StreamError
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
    timing = model.simulate(config, parameters, _decode(config, code))
    assert not compiled, "the compiled clock refuses a stream that can run"
    return timing


def _decode(config: Config, code: bytes) -> list[Instruction]:
    count, rest = divmod(len(code), INSTRUCTION_BYTES)
    if rest:
        raise StreamError(count, f"the stream ends after {rest} of its bytes")
    found = []
    for index in range(count):
        word = code[index * INSTRUCTION_BYTES : (index + 1) * INSTRUCTION_BYTES]
        try:
            found.append(decode(int.from_bytes(word, "little"), config))
        except InstructionError as error:
            raise StreamError(index, str(error)) from None
    return found

"""The functions that the platform lends to a program, by number.

Source: Alkali CSD platform documentation, section 3.4.3. What a helper does to the world outside
the program is injected, so that nothing here knows where output goes or who runs a model. Every
pointer is checked before anything is done, and whatever goes wrong behind a helper ends the
program with a fault instead of unwinding through it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from csd_spec.program import Helper as HelperNumber
from potash_firmware.bpf.arena import Arena
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.interpreter import Helper

MAX_PRINT = 1024
"""Bytes of one printed text; the rest is cut off."""

Infer = Callable[[memoryview, memoryview, memoryview], int]
"""Runs a model: its bytes and its inputs in, its outputs into the third; returns their length."""

HELPER_NUMBERS = frozenset(HelperNumber)


@dataclass(frozen=True)
class Services:
    """What stands behind the helpers. An exception in one of them ends the program."""

    print: Callable[[str], None]
    infer_apu: Infer
    infer_vta: Infer


class Helpers:
    """The helpers of one run: bound to its arena, and to the length of its output."""

    def __init__(self, arena: Arena, services: Services, output_limit: int) -> None:
        self.output_length: int | None = None
        self._arena = arena
        self._services = services
        self._output_limit = output_limit

    def table(self) -> Mapping[int, Helper]:
        """Number to function, as the machine wants them."""
        return {
            HelperNumber.PRINT: self.print,
            HelperNumber.TFLITE_APU: self.tflite_apu,
            HelperNumber.TFLITE_VTA: self.tflite_vta,
            HelperNumber.SET_OUTPUT_LENGTH: self.set_output_length,
        }

    def print(self, text: int, _2: int, _3: int, _4: int, _5: int) -> int:
        """`print(const char *text)`: one line for the accelerator's log."""
        line = self._arena.string_at(text, MAX_PRINT).decode(errors="replace")
        try:
            self._services.print(line)
        except Exception as error:
            raise _failed(HelperNumber.PRINT, _text(error)) from error
        return 0

    def tflite_apu(
        self, source: int, target: int, input_length: int, output_length: int, model_length: int
    ) -> int:
        """`tflite_apu(in, out, input_len, output_len, model_len)`: on the APU's own cores.

        The model is at `in[0:model_len]`, its input follows up to `in[input_len]`. Returns how
        many bytes of `out` were written.
        """
        lengths = input_length, output_length, model_length
        return self._infer(
            HelperNumber.TFLITE_APU, self._services.infer_apu, source, target, *lengths
        )

    def tflite_vta(
        self, source: int, target: int, input_length: int, output_length: int, model_length: int
    ) -> int:
        """`tflite_vta(…)`: as `tflite_apu`, with the tensor accelerator for what it can do."""
        lengths = input_length, output_length, model_length
        return self._infer(
            HelperNumber.TFLITE_VTA, self._services.infer_vta, source, target, *lengths
        )

    def set_output_length(self, length: int, _2: int, _3: int, _4: int, _5: int) -> int:
        """`set_output_length(u64 length)`: how much of the output buffer is the result."""
        if length > self._output_limit:
            raise _failed(
                HelperNumber.SET_OUTPUT_LENGTH,
                f"the output of {self._output_limit} bytes cannot hold {length}",
            )
        self.output_length = length
        return 0

    def _infer(
        self,
        number: HelperNumber,
        infer: Infer,
        source: int,
        target: int,
        input_length: int,
        output_length: int,
        model_length: int,
    ) -> int:
        if model_length > input_length:
            raise _failed(
                number, f"a model of {model_length} bytes is not within {input_length} of input"
            )
        whole = self._arena.bytes_at(source, input_length)
        output = self._arena.bytes_at(target, output_length, write=True)
        model, inputs = whole[:model_length], whole[model_length:]
        try:
            return int(infer(model, inputs, output))
        except Exception as error:
            raise _failed(number, _text(error)) from error


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _failed(number: HelperNumber, reason: str) -> Fault:
    return Fault(FaultKind.HELPER_FAILED, None, None, f"{number.name.lower()}: {reason}")

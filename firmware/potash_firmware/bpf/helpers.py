"""The helpers: functions that programs call by number.

Source: Alkali CSD platform documentation, section 3.4.3. What a helper does to the world outside
the program is injected, so that nothing here knows where output goes or who runs a model. Every
pointer is checked before anything is done, and whatever goes wrong behind a helper ends the
program with a fault instead of unwinding through it.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, TypeVar

from csd_spec.program import NO_ARGUMENT, Level, Processor
from csd_spec.program import Helper as HelperNumber
from csd_spec.values import LONGEST_FIRST
from potash_device.trace import COMPUTE
from potash_firmware.bpf import added
from potash_firmware.bpf.arena import Arena
from potash_firmware.bpf.elf import TRAP
from potash_firmware.bpf.errors import Fault, FaultKind
from potash_firmware.bpf.interpreter import Helper

MAX_PRINT = 1024
"""Bytes of one printed text; the rest is cut off."""

MAX_MODELS = 8
"""Models that a run has open at a time."""

MAX_MODEL_BYTES = 64 << 20
"""Bytes that they have together: what is loaded is held outside the arena."""

_MASK = (1 << 64) - 1

Infer = Callable[[memoryview, memoryview, memoryview], int]
"""Runs a model: its bytes and its inputs in, its outputs into the third; returns their length."""

Model = Callable[[memoryview, memoryview], int]
"""A loaded model: runs the first's inputs, gives its outputs to the second; returns their
length."""

MoveBlocks = Callable[[int, int, int, memoryview], int]
"""Reads into the view, or writes from it: namespace, first block, blocks; returns their bytes."""


class ValueRequest(NamedTuple):
    """A program's request to a key value namespace: for a value, or for keys."""

    nsid: int
    key: bytes
    """The key of the value, or the first key of the list."""
    lists: bool
    target: memoryview
    offset: int
    """The place of the target in the program's memory."""


ReadValues = Callable[[ValueRequest], int]
"""Reads into the target as much as there is room for; returns the size of the whole value, or the
number of keys, or else a negated errno."""

HELPER_NUMBERS = frozenset(HelperNumber) | {TRAP}

Result = TypeVar("Result")
Choice = TypeVar("Choice", Level, Processor)


def _refuse_blocks(nsid: int, lba: int, count: int, view: memoryview) -> NoReturn:
    raise ValueError("no blocks have been granted")


def _refuse_values(request: ValueRequest) -> NoReturn:
    raise ValueError("there are no key value namespaces here")


def _refuse_model(model: memoryview, processor: Processor) -> NoReturn:
    raise ValueError("there is nothing here to run models")


@dataclass(frozen=True)
class Services:
    """Functions that the helpers call. An exception in one of them ends the program.

    Without `log`, its texts are printed.
    """

    print: Callable[[str], None]
    infer_apu: Infer
    infer_vta: Infer
    log: Callable[[Level, str], None] | None = None
    read_blocks: MoveBlocks = _refuse_blocks
    write_blocks: MoveBlocks = _refuse_blocks
    read_values: ReadValues = _refuse_values
    load_model: Callable[[memoryview, Processor], Model] = _refuse_model
    called: Callable[[], None] | None = None
    """Called before each call of a helper."""


@dataclass(eq=False)
class Helpers:
    """The helpers of a program: bound to its arena, its arguments and the length of its output."""

    arena: Arena
    services: Services
    output_limit: int = 0
    """Bytes that the output may have."""
    arguments: Sequence[bytes] = ()
    output_length: int | None = field(default=None, init=False)
    """The length that the program has set in this run."""
    _models: dict[int, tuple[Model, int]] = field(default_factory=dict, init=False)
    """The open models by their handles, and how long each is."""

    def close(self) -> None:
        """Release the models that the program has left open."""
        self._models.clear()

    def table(self) -> Mapping[int, Helper]:
        """The functions of helpers by number, for the machine."""
        extra = added.found().helpers
        # Each is a method here that is called as its number is named.
        table: dict[int, Helper] = {
            number: getattr(self, number.name.lower()) for number in HelperNumber
        }
        table[TRAP] = self.trap
        table.update((number, helper.bound(self.arena)) for number, helper in extra.items())
        called = self.services.called
        if called is not None:
            table = {number: _counted(called, helper) for number, helper in table.items()}
        if COMPUTE.sink is None:
            return table
        names = {number: helper.name for number, helper in extra.items()}
        names.update((number, number.name.lower()) for number in HelperNumber)
        names[TRAP] = "trap"
        return {number: _watched(names[number], helper) for number, helper in table.items()}

    def trap(self, *_: int) -> int:
        """C's `__builtin_trap`; compilers also call it in code that they take to be unreachable."""
        reason = "the program has reached __builtin_trap, or what its compiler held unreachable"
        raise Fault(FaultKind.HELPER_FAILED, None, None, reason)

    def print(self, text: int, _2: int, _3: int, _4: int, _5: int) -> int:
        """`print(const char *text)`: one line for the accelerator's log."""
        line = self.arena.string_at(text, MAX_PRINT).decode(errors="replace")
        self._do(HelperNumber.PRINT, lambda: self.services.print(line))
        return 0

    def tflite_apu(
        self, source: int, target: int, input_length: int, output_length: int, model_length: int
    ) -> int:
        """`tflite_apu(in, out, input_len, output_len, model_len)`: on the APU's own cores.

        The model is at `in[0:model_len]`, its `input_len` bytes of input follow, which do not
        count the model. Returns how many bytes of `out` were written.
        """
        lengths = input_length, output_length, model_length
        return self._infer(
            HelperNumber.TFLITE_APU, self.services.infer_apu, source, target, *lengths
        )

    def tflite_vta(
        self, source: int, target: int, input_length: int, output_length: int, model_length: int
    ) -> int:
        """`tflite_vta(…)`: as `tflite_apu`, with the tensor accelerator for what it can do."""
        lengths = input_length, output_length, model_length
        return self._infer(
            HelperNumber.TFLITE_VTA, self.services.infer_vta, source, target, *lengths
        )

    def set_output_length(self, length: int, _2: int, _3: int, _4: int, _5: int) -> int:
        """`set_output_length(u64 length)`: how much of the output buffer is the result."""
        if length > self.output_limit:
            raise _failed(
                HelperNumber.SET_OUTPUT_LENGTH,
                f"the output of {self.output_limit} bytes cannot hold {length}",
            )
        self.output_length = length
        return 0

    def log(self, level: int, text: int, length: int, _4: int, _5: int) -> int:
        """`log(u32 level, const void *text, u64 length)`: as `print`, and the text needs no end."""
        chosen = self._choice(HelperNumber.LOG, "level", Level, level)
        data = self.arena.bytes_at(text, length)
        line = bytes(data[:MAX_PRINT]).decode(errors="replace")
        log = self.services.log

        def add() -> None:
            if log is None:
                self.services.print(line)
            else:
                log(chosen, line)

        self._do(HelperNumber.LOG, add)
        return 0

    def arg(self, index: int, target: int, room: int, _4: int, _5: int) -> int:
        """`arg(u32 n, void *to, u64 room)`: argument `n`, as much of it as there is room for.

        Returns its whole length; `NO_ARGUMENT`, and writes nothing, where there is none.
        """
        output = self.arena.bytes_at(target, room, write=True)
        if index >= len(self.arguments):
            return NO_ARGUMENT
        value = self.arguments[index]
        given = value[:room]
        output[: len(given)] = given
        return len(value)

    def crc32c(self, seed: int, data: int, length: int, _4: int, _5: int) -> int:
        """`crc32c(u32 crc, const void *data, u64 length)`: the CRC-32C, going on from `crc`."""
        # It needs numpy, for which the device would start a fifth of a second later.
        from potash_firmware.bpf.crc32c import crc32c

        return crc32c(self.arena.bytes_at(data, length), seed & 0xFFFF_FFFF)

    def read_lba(self, nsid: int, lba: int, count: int, target: int, room: int) -> int:
        """`read_lba(u32 nsid, u64 lba, u64 count, void *to, u64 room)`: blocks of the drive.

        Returns how many bytes they have.
        """
        view = self.arena.bytes_at(target, room, write=True)
        read = self.services.read_blocks
        return self._do(HelperNumber.READ_LBA, lambda: read(nsid, lba, count, view))

    def write_lba(self, nsid: int, lba: int, count: int, source: int, length: int) -> int:
        """`write_lba(u32 nsid, u64 lba, u64 count, const void *from, u64 length)`: likewise."""
        view = self.arena.bytes_at(source, length)
        write = self.services.write_blocks
        return self._do(HelperNumber.WRITE_LBA, lambda: write(nsid, lba, count, view))

    def kv_retrieve(self, nsid: int, key: int, key_length: int, target: int, room: int) -> int:
        """`kv_retrieve(u32 nsid, const void *key, u64 key_length, void *to, u64 room)`: a value of
        a key value namespace, as much of it as there is room for.

        Returns its whole size, or a negated errno.
        """
        request = self._request(nsid, key, key_length, target, room, lists=False)
        return self._read_values(HelperNumber.KV_RETRIEVE, request)

    def kv_list(self, nsid: int, first: int, first_length: int, target: int, room: int) -> int:
        """`kv_list(u32 nsid, const void *first, u64 first_length, void *to, u64 room)`: keys from
        the first one that is not before `first` on, as many as there is room for.

        They have the format of the List command. Returns their number, or a negated errno.
        """
        request = self._request(nsid, first, first_length, target, room, lists=True)
        return self._read_values(HelperNumber.KV_LIST, request)

    def tflite_open(self, model: int, length: int, processor: int, _4: int, _5: int) -> int:
        """`tflite_open(const void *model, u64 length, u32 processor)`: a handle, 1 to MAX_MODELS.

        The model's bytes are copied.
        """
        number = HelperNumber.TFLITE_OPEN
        chosen = self._choice(number, "processor", Processor, processor)
        view = self.arena.bytes_at(model, length)
        handle = next((i for i in range(1, MAX_MODELS + 1) if i not in self._models), None)
        if handle is None:
            raise _failed(number, f"{MAX_MODELS} models are open, and there cannot be more")
        total = length + sum(other for _, other in self._models.values())
        if total > MAX_MODEL_BYTES:
            raise _failed(number, f"the open models may have {MAX_MODEL_BYTES} bytes, not {total}")
        load = self.services.load_model
        self._models[handle] = self._do(number, lambda: load(view, chosen)), length
        return handle

    def tflite_run(
        self, handle: int, source: int, input_length: int, target: int, output_length: int
    ) -> int:
        """`tflite_run(handle, in, in_len, out, out_len)`: run an open model.

        Returns how many bytes of `out` were written.
        """
        model = self._opened(HelperNumber.TFLITE_RUN, handle)
        inputs = self.arena.bytes_at(source, input_length)
        output = self.arena.bytes_at(target, output_length, write=True)
        return self._do(HelperNumber.TFLITE_RUN, lambda: model(inputs, output))

    def tflite_close(self, handle: int, _2: int, _3: int, _4: int, _5: int) -> int:
        """`tflite_close(handle)`: release its memory."""
        self._opened(HelperNumber.TFLITE_CLOSE, handle)
        del self._models[handle]
        return 0

    def _request(
        self, nsid: int, key: int, key_length: int, target: int, room: int, *, lists: bool
    ) -> ValueRequest:
        view = self.arena.bytes_at(target, room, write=True)
        first = bytes(self.arena.bytes_at(key, key_length)[: LONGEST_FIRST + 1])
        return ValueRequest(nsid & 0xFFFF_FFFF, first, lists, view, target - self.arena.base)

    def _read_values(self, number: HelperNumber, request: ValueRequest) -> int:
        if len(request.key) > LONGEST_FIRST:
            return -errno.EINVAL & _MASK
        read = self.services.read_values
        return self._do(number, lambda: read(request)) & _MASK

    def _opened(self, number: HelperNumber, handle: int) -> Model:
        opened = self._models.get(handle)
        if opened is None:
            raise _failed(number, f"no model is open as {handle}")
        return opened[0]

    @staticmethod
    def _choice(number: HelperNumber, what: str, kind: type[Choice], value: int) -> Choice:
        try:
            return kind(value)
        except ValueError:
            raise _failed(number, f"there is no {what} {value}") from None

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
        whole = self.arena.bytes_at(source, model_length + input_length)
        output = self.arena.bytes_at(target, output_length, write=True)
        model, inputs = whole[:model_length], whole[model_length:]
        return self._do(number, lambda: infer(model, inputs, output))

    @staticmethod
    def _do(number: HelperNumber, service: Callable[[], Result]) -> Result:
        """Call a service; whatever goes wrong in it is a fault of the program."""
        try:
            return service()
        except Exception as error:
            raise _failed(number, _text(error)) from error


def _counted(called: Callable[[], None], helper: Helper) -> Helper:
    def counted(*arguments: int) -> int:
        called()
        return helper(*arguments)

    return counted


def _watched(name: str, helper: Helper) -> Helper:
    """A helper whose calls are traced; `arguments` are the registers r1 to r5."""

    def watched(*arguments: int) -> int:
        with COMPUTE.span("bpf.helper", helper=name, arguments=arguments):
            return helper(*arguments)

    return watched


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _failed(number: HelperNumber, reason: str) -> Fault:
    return Fault(FaultKind.HELPER_FAILED, None, None, f"{number.name.lower()}: {reason}")

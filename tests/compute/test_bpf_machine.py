"""A run as the APU's worker asks for it: registers, context, helpers, output, faults."""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from csd_spec.descriptors import DescriptorError, encode_arguments
from csd_spec.program import Context
from potash_firmware.bpf import (
    Engine,
    Fault,
    FaultKind,
    Outcome,
    Prepared,
    ProgramError,
    Services,
    VerificationError,
    buffer_layout,
    load_program,
    reserve,
)
from support.bpf import call, engines, exit_, insn, lddw, load, mov, mov_reg, run_program, store
from support.bpf_elf import ALLOC, OBJECT, R_64_64, WRITE, Name, Part, elf, text

INPUT_SIZE, OUTPUT_SIZE = 8192, 4096
BASE = 0x1000_0000
INPUT = BASE + 8 * 4096
OUTPUT = INPUT + INPUT_SIZE
DATA = OUTPUT + OUTPUT_SIZE
PRINT, TFLITE_APU, TFLITE_VTA, SET_OUTPUT_LENGTH = 1, 2, 3, 4

LAYOUT = buffer_layout(INPUT_SIZE, OUTPUT_SIZE)


def unexpected(*arguments: object) -> int:
    pytest.fail("this helper was not to be called")


SILENT = Services(lambda text: None, unexpected, unexpected)


class Run(NamedTuple):
    outcome: Outcome
    output: bytes
    printed: list[str]


def execute(
    *code: bytes,
    data: Sequence[Part] = (),
    relocations: Sequence[tuple[int, int, str]] = (),
    given: bytes = b"",
    output_length: int | None = None,
    arguments: bytes = b"",
    infer_apu: Callable[[memoryview, memoryview, memoryview], int] = unexpected,
    infer_vta: Callable[[memoryview, memoryview, memoryview], int] = unexpected,
    memory: bytearray | None = None,
    limit: int = 10_000,
) -> Run:
    """Load and run a program whose input is `given`; other memory begins as 0xEE."""
    names = [Name("prog"), *(Name(part.name, part.name, type=OBJECT) for part in data)]
    program = load_program(elf([text(*code, relocations=relocations), *data], names))
    backing = bytearray(b"\xee" * LAYOUT.size) if memory is None else memory
    backing[LAYOUT.input_offset : LAYOUT.input_offset + len(given)] = given
    printed: list[str] = []
    outcome = run_program(
        program,
        memoryview(backing),
        input_size=INPUT_SIZE,
        output_size=OUTPUT_SIZE,
        input_length=len(given),
        output_length=output_length,
        services=Services(printed.append, infer_apu, infer_vta),
        context=Context(arguments),
        instruction_limit=limit,
    )
    output = bytes(backing[LAYOUT.output_offset : LAYOUT.output_offset + OUTPUT_SIZE])
    return Run(outcome, output, printed)


def value(run: Run) -> int:
    return run.outcome.return_value


def test_the_registers_at_the_entry() -> None:
    assert value(execute(mov_reg(0, 1), exit_)) == INPUT
    assert value(execute(mov_reg(0, 2), exit_)) == OUTPUT
    assert value(execute(mov_reg(0, 3), exit_, given=b"12345")) == 5
    assert value(execute(mov_reg(0, 4), exit_)) == OUTPUT_SIZE
    assert value(execute(mov_reg(0, 4), exit_, output_length=100)) == 100
    assert value(execute(mov_reg(0, 10), exit_)) == INPUT


def test_the_input_is_what_was_given() -> None:
    run = execute(load(0, 1), exit_, given=b"ABCDEFGH")
    assert value(run) == int.from_bytes(b"ABCDEFGH", "little")


def test_the_stack_and_the_data_hold_nothing_of_an_earlier_run() -> None:
    assert value(execute(load(0, 10, -8), exit_)) == 0
    assert value(execute(load(0, 10, -4096), exit_)) == 0
    assert value(execute(load(0, 5, 72), exit_)) == 0  # behind the context


def test_the_buffers_are_the_callers() -> None:
    assert execute(mov(0, 0), exit_).output == b"\xee" * OUTPUT_SIZE


def test_an_outcome_counts_instructions_and_keeps_64_bits() -> None:
    outcome = execute(mov(0, -1), exit_).outcome
    assert outcome == Outcome(return_value=2**64 - 1, output_length=None, instructions=2)


def test_what_a_program_writes_is_in_the_output() -> None:
    run = execute(mov(5, 0x41), store(2, 5, OUTPUT_SIZE - 8), mov(0, 0), exit_)
    assert run.output == b"\xee" * (OUTPUT_SIZE - 8) + b"A" + bytes(7)


def test_the_context_is_version_count_length_and_the_list_as_sent() -> None:
    sent = struct.pack("<II", 8, 77) + struct.pack("<I3s", 7, b"abc") + b"\0"
    expected = struct.pack("<IIQ", 2, 2, len(sent)) + sent
    expected += struct.pack("<QQQ QQQQ", 0, 0, 2, INPUT, 3, OUTPUT, OUTPUT_SIZE)
    for offset in range(0, len(expected), 8):
        run = execute(load(0, 5, offset), exit_, given=b"abc", arguments=sent)
        assert value(run) == struct.unpack_from("<Q", expected, offset)[0]


def test_the_context_of_no_arguments() -> None:
    assert value(execute(load(0, 5), exit_)) == 2
    assert value(execute(load(0, 5, 8), exit_)) == 0


def test_the_context_lies_behind_the_programs_data() -> None:
    data = Part(".data", b"\x05" * 12, ALLOC | WRITE)
    assert value(execute(mov_reg(0, 5), exit_, data=[data])) == DATA + 16


def test_a_malformed_argument_list_is_refused_before_anything_changes() -> None:
    memory = bytearray(b"\xee" * LAYOUT.size)
    with pytest.raises(DescriptorError):
        execute(mov(0, 0), exit_, arguments=struct.pack("<I", 3), memory=memory)
    assert memory == b"\xee" * LAYOUT.size


def test_an_argument_list_too_long_is_refused() -> None:
    sent = struct.pack("<I", (1 << 20) + 4096) + bytes((1 << 20) + 4092)
    with pytest.raises(ProgramError, match="context of"):
        execute(mov(0, 0), exit_, arguments=sent)


def test_data_is_fresh_in_each_run() -> None:
    counter = Part("counter", struct.pack("<Q", 5), ALLOC | WRITE)
    code = [lddw(1, 0), load(0, 1), insn(0x07, 0, imm=1), store(1, 0), exit_]
    memory = bytearray(LAYOUT.size)
    for _ in range(2):
        run = execute(*code, data=[counter], relocations=[(0, R_64_64, "counter")], memory=memory)
        assert value(run) == 6


@pytest.mark.parametrize("engine", engines())
def test_prepared_programs_find_nothing_of_an_earlier_run_in_their_memory(engine: Engine) -> None:
    """Two alternate, one with little data and one with much. Each adds up a variable, its stack and
    its argument, overwrites them, sets its output's length, and faults if its input says so."""
    code = [lddw(8, 0), mov(0, 0), mov(6, -1), mov_reg(9, 1)]
    for register, offset in ((8, 0), (10, -8), (10, -4096), (5, 16)):
        code += [load(7, register, offset), insn(0x0F, 0, 7), store(register, 6, offset)]
    code += [mov_reg(6, 0), load(7, 9), insn(0x15, 7, offset=3)]
    code += [mov(1, 9), call(SET_OUTPUT_LENGTH), load(0, 7), mov_reg(0, 6), exit_]
    memory = reserve.allocate(LAYOUT.size)
    argument = encode_arguments([b"turn"])

    def prepared(more: int) -> Prepared:
        variable = Part("variable", struct.pack("<Q", 5), ALLOC | WRITE)
        parts = [
            text(*code, relocations=[(0, R_64_64, "variable")]),
            variable,
            Part("more", b"", ALLOC | WRITE, type=8, size=more),
        ]
        names = [Name("prog"), Name("variable", "variable", type=OBJECT)]
        return Prepared(
            load_program(elf(parts, names)),
            memory,
            input_size=INPUT_SIZE,
            output_size=OUTPUT_SIZE,
            services=SILENT,
            context=Context(argument),
            engine=engine,
        )

    programs = [prepared(8), prepared((1 << 20) - 8)]
    source = memory[LAYOUT.input_offset :][:8]
    for turn in (b"turn", b"turn", b"next"):
        argument = encode_arguments([turn])
        for item in programs:
            source[:] = struct.pack("<Q", 1)
            with pytest.raises(Fault, match="out of bounds"):
                item.run(8, OUTPUT_SIZE, Context(argument))
            source[:] = bytes(8)
            expected = 5 + int.from_bytes(argument[:8], "little")
            for _ in range(2):
                outcome = item.run(8, OUTPUT_SIZE, Context(argument))
                assert outcome[:2] == (expected, None)


def test_constants_cannot_be_overwritten() -> None:
    constant = Part("constant", struct.pack("<Q", 5))
    with pytest.raises(Fault) as caught:
        execute(
            lddw(1, 0), store(1, 1), exit_, data=[constant], relocations=[(0, R_64_64, "constant")]
        )
    assert caught.value.kind is FaultKind.READ_ONLY


def test_print_is_one_line_of_text() -> None:
    words = Part("words", "größer\0".encode() + b"\xff!\0")
    code = [lddw(1, 0), call(PRINT), lddw(1, 9), call(PRINT), exit_]
    relocations = [(0, R_64_64, "words"), (24, R_64_64, "words")]
    assert execute(*code, data=[words], relocations=relocations).printed == ["größer", "\ufffd!"]


def test_a_long_text_is_cut() -> None:
    words = Part("words", b"x" * 5000 + b"\0")
    run = execute(lddw(1, 0), call(PRINT), exit_, data=[words], relocations=[(0, R_64_64, "words")])
    assert run.printed == ["x" * 1024]


def test_print_of_a_bad_pointer_faults_and_prints_nothing() -> None:
    with pytest.raises(Fault) as caught:
        execute(mov(1, 8), call(PRINT), exit_)
    fault = caught.value
    assert (fault.kind, fault.pc, fault.address) == (FaultKind.OUT_OF_BOUNDS, 1, 8)


def infer_call(
    helper: int,
    source: int = INPUT,
    target: int = OUTPUT,
    input_length: int = 4,
    output_length: int = 4,
    model_length: int = 6,
) -> list[bytes]:
    values = [source, target, input_length, output_length, model_length]
    return [*(lddw(register, number) for register, number in enumerate(values, 1)), call(helper)]


@pytest.mark.parametrize("helper", [TFLITE_APU, TFLITE_VTA], ids=["apu", "vta"])
def test_a_model_is_run_with_the_input_that_follows_it(helper: int) -> None:
    seen = []

    def infer(model: memoryview, given: memoryview, output: memoryview) -> int:
        seen.append((bytes(model), bytes(given), model.readonly, given.readonly))
        output[:] = b"DONE"
        return 4

    code = [*infer_call(helper), exit_]
    apu, vta = (infer, unexpected) if helper == TFLITE_APU else (unexpected, infer)
    run = execute(*code, given=b"MODEL!abcd", infer_apu=apu, infer_vta=vta)
    assert value(run) == 4
    assert run.output[:5] == b"DONE\xee"
    assert seen == [(b"MODEL!", b"abcd", True, True)]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ({"source": BASE - 1}, FaultKind.OUT_OF_BOUNDS),
        ({"source": 0}, FaultKind.OUT_OF_BOUNDS),
        ({"input_length": 1 << 40}, FaultKind.OUT_OF_BOUNDS),
        ({"input_length": 2**64 - 1}, FaultKind.OUT_OF_BOUNDS),
        ({"target": 0}, FaultKind.OUT_OF_BOUNDS),
        ({"target": DATA, "output_length": 1 << 30}, FaultKind.OUT_OF_BOUNDS),
        ({"output_length": 2**64 - 1}, FaultKind.OUT_OF_BOUNDS),
        # The input buffer's end is no end of the arena; the output and the data follow.
        ({"model_length": LAYOUT.size - 4096 - 3}, FaultKind.OUT_OF_BOUNDS),
        ({"model_length": 2**64 - 1}, FaultKind.OUT_OF_BOUNDS),
        ({"model_length": 2**64 - 4, "input_length": 4}, FaultKind.OUT_OF_BOUNDS),
    ],
)
@pytest.mark.parametrize("helper", [TFLITE_APU, TFLITE_VTA], ids=["apu", "vta"])
def test_bad_pointers_and_lengths_fault_before_a_model_is_run(
    helper: int, bad: dict[str, int], kind: FaultKind
) -> None:
    with pytest.raises(Fault) as caught:
        execute(*infer_call(helper, **bad), exit_)
    assert caught.value.kind is kind
    assert caught.value.pc == 10


def test_the_output_of_a_model_cannot_go_to_constants() -> None:
    constant = Part("constant", bytes(8))
    code = infer_call(TFLITE_VTA)
    code[1] = lddw(2, 0)
    with pytest.raises(Fault) as caught:
        execute(*code, exit_, data=[constant], relocations=[(16, R_64_64, "constant")])
    assert caught.value.kind is FaultKind.READ_ONLY


def test_an_error_behind_a_helper_is_a_fault_with_its_text() -> None:
    class ModelError(Exception):
        pass

    def infer(model: memoryview, given: memoryview, output: memoryview) -> int:
        raise ModelError("this is not a TensorFlow Lite model")

    with pytest.raises(Fault, match="tflite_vta: this is not a TensorFlow Lite model") as caught:
        execute(*infer_call(TFLITE_VTA), exit_, infer_vta=infer)
    assert (caught.value.kind, caught.value.pc) == (FaultKind.HELPER_FAILED, 10)


def test_an_error_without_a_text_is_named() -> None:
    def infer(model: memoryview, given: memoryview, output: memoryview) -> int:
        raise MemoryError

    with pytest.raises(Fault, match="tflite_apu: MemoryError"):
        execute(*infer_call(TFLITE_APU), exit_, infer_apu=infer)


def test_the_output_length_is_what_was_set_last() -> None:
    code = [mov(1, 9), call(SET_OUTPUT_LENGTH), mov(1, 7), call(SET_OUTPUT_LENGTH), exit_]
    assert execute(*code).outcome.output_length == 7
    assert execute(mov(1, 0), call(SET_OUTPUT_LENGTH), exit_).outcome.output_length == 0


@pytest.mark.parametrize("length", [OUTPUT_SIZE + 1, 2**64 - 1])
def test_an_output_longer_than_its_buffer_faults(length: int) -> None:
    with pytest.raises(Fault, match="cannot hold"):
        execute(lddw(1, length), call(SET_OUTPUT_LENGTH), exit_)
    exact = execute(lddw(1, OUTPUT_SIZE), call(SET_OUTPUT_LENGTH), exit_)
    assert exact.outcome.output_length == OUTPUT_SIZE


def test_the_instruction_limit_holds() -> None:
    with pytest.raises(Fault) as caught:
        execute(insn(0x05, offset=-1), limit=1000)
    assert caught.value.kind is FaultKind.INSTRUCTION_LIMIT


def test_a_program_that_cannot_run_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(VerificationError, match="no helper 99"):
        execute(call(99), exit_)


@pytest.mark.parametrize(
    ("input_length", "output_length"), [(-1, 0), (INPUT_SIZE + 1, 0), (0, OUTPUT_SIZE + 1)]
)
def test_lengths_beyond_the_buffers_are_refused(input_length: int, output_length: int) -> None:
    program = load_program(elf([text(exit_)], [Name("prog")]))
    with pytest.raises(ValueError, match="exceed"):
        run_program(
            program,
            memoryview(bytearray(LAYOUT.size)),
            input_size=INPUT_SIZE,
            output_size=OUTPUT_SIZE,
            input_length=input_length,
            output_length=output_length,
            services=SILENT,
        )


def test_any_program_fits_in_the_memory_that_the_layout_names() -> None:
    """Nearly the most data, the most constants and the longest context, all at once."""
    mebibyte = 1 << 20
    parts = [
        text(load(0, 5), exit_),
        Part("d", b"", ALLOC | WRITE, type=8, size=mebibyte - 1),
        Part("r", bytes(mebibyte)),
    ]
    program = load_program(elf(parts, [Name("prog")]))
    sent = struct.pack("<I", mebibyte - 16) + bytes(mebibyte - 20)
    outcome = run_program(
        program,
        memoryview(bytearray(LAYOUT.size)),
        input_size=INPUT_SIZE,
        output_size=OUTPUT_SIZE,
        input_length=0,
        services=SILENT,
        context=Context(sent),
    )
    assert outcome.return_value == 1 << 32 | 2

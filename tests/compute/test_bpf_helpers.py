"""What each helper does, and what becomes of every pointer, length and number that it cannot
use."""

import errno
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csd_spec.descriptors import encode_arguments
from csd_spec.program import Context, Level, Processor
from potash_firmware.bpf import (
    Engine,
    Fault,
    FaultKind,
    Program,
    Services,
    ValueRequest,
    buffer_layout,
    helpers,
    load_program,
    reserve,
)
from potash_firmware.bpf.engine import unavailable
from support.bpf import exit_, insn, load, mov_reg, run_program
from support.bpf_elf import R_64_32, Name, Part, elf, text

PRINT, TFLITE_APU, TFLITE_VTA, SET_OUTPUT_LENGTH, LOG, ARG, CRC32C = range(1, 8)
READ_LBA, WRITE_LBA, TFLITE_OPEN, TFLITE_RUN, TFLITE_CLOSE, KV_RETRIEVE, KV_LIST = range(8, 15)
MINUS_ONE = 2**64 - 1

INPUT_SIZE, OUTPUT_SIZE = 8192, 4096
BASE = 0x1000_0000
INPUT = BASE + 8 * 4096
OUTPUT = INPUT + INPUT_SIZE
DATA = OUTPUT + OUTPUT_SIZE
CONSTANTS = DATA + 4096
END = CONSTANTS + 64

CALLS = INPUT + 4096
"""Where the program finds what it is to call."""

LAYOUT = buffer_layout(INPUT_SIZE, OUTPUT_SIZE)

TRAP = text(insn(0x85, src=1, imm=-1), exit_, relocations=[(0, R_64_32, "__bpf_trap")])

ENGINES = [
    pytest.param(
        engine,
        marks=pytest.mark.skipif(unavailable(engine) is not None, reason=str(unavailable(engine))),
    )
    for engine in (Engine.INTERPRETER, Engine.NATIVE)
]


@lru_cache(maxsize=1)
def caller() -> Program:
    """A program that calls what its input says: for each call a number, 0 at the end, and r1 to r5.

    It leaves the values in the second half of the output, and returns the last one.
    """
    code = [
        mov_reg(6, 1),
        insn(0x07, 6, imm=4096),
        mov_reg(7, 2),
        insn(0x07, 7, imm=2048),
        load(8, 6),
        insn(0x55, 8, offset=1),  # if it is not 0, over the next one
        exit_,
        *(load(register, 6, 8 * register) for register in range(1, 6)),
        insn(0x8D, 8),
        insn(0x7B, 7, 0),  # store
        insn(0x07, 6, imm=48),
        insn(0x07, 7, imm=8),
        insn(0x05, offset=-13),
    ]
    constants = Part("constants", bytes(64), alignment=4096)
    return load_program(elf([text(*code), constants], [Name("prog")]))


@dataclass
class Bench:
    """A run of helpers, and what stands behind them, which writes down what it is asked for."""

    engine: Engine
    arguments: tuple[bytes, ...] = ()
    memory: bytearray = field(default_factory=lambda: bytearray(b"\xee" * LAYOUT.size))
    said: list[object] = field(default_factory=list)

    def put(self, address: int, data: bytes) -> None:
        at = address - BASE
        self.memory[at : at + len(data)] = data

    def get(self, address: int, length: int) -> bytes:
        return bytes(self.memory[address - BASE : address - BASE + length])

    def call(self, *calls: tuple[int, ...]) -> list[int]:
        """The values of helpers called one after the other, each a number and its arguments."""
        listed = b"".join(struct.pack("<6Q", *call, *[0] * (6 - len(call))) for call in calls)
        self.put(CALLS, listed + bytes(48))
        run_program(
            caller(),
            memoryview(self.memory),
            input_size=INPUT_SIZE,
            output_size=OUTPUT_SIZE,
            input_length=INPUT_SIZE,
            services=Services(
                lambda line: self.said.append(line),
                self._unexpected,
                self._unexpected,
                log=lambda level, line: self.said.append((level, line)),
                read_blocks=self._read,
                write_blocks=self._write,
                load_model=self._load,
                read_values=self._values,
            ),
            context=Context(encode_arguments(self.arguments)),
            engine=self.engine,
        )
        return list(struct.unpack(f"<{len(calls)}Q", self.get(OUTPUT + 2048, 8 * len(calls))))

    def fault(self, *calls: tuple[int, ...]) -> Fault:
        with pytest.raises(Fault) as caught:
            self.call(*calls)
        return caught.value

    def _unexpected(self, *views: memoryview) -> int:
        pytest.fail("this helper was not to be called")

    def _read(self, nsid: int, lba: int, count: int, view: memoryview) -> int:
        self.said.append(("read", nsid, lba, count, len(view)))
        view[:4] = b"READ"
        return count * 512

    def _write(self, nsid: int, lba: int, count: int, view: memoryview) -> int:
        self.said.append(("write", nsid, lba, count, bytes(view), view.readonly))
        return count * 512

    def _values(self, request: ValueRequest) -> int:
        nsid, key, lists, target, offset = request
        self.said.append((nsid, key, lists, len(target), offset + BASE))
        target[:4] = b"LIST"[: len(target)] if lists else b"KEPT"[: len(target)]
        return -errno.ENOENT if key == b"absent" else 100

    def _load(self, model: memoryview, processor: Processor) -> Callable[..., int]:
        if bytes(model) == b"bad":
            raise ValueError("this is no model")
        name = bytes(model)
        self.said.append(("load", name, processor))

        def run(inputs: memoryview, output: memoryview) -> int:
            assert inputs.readonly and not output.readonly
            output[: len(name)] = name
            self.said.append(("run", name, bytes(inputs), len(output)))
            return len(name)

        return run


@pytest.fixture(params=ENGINES)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param, (b"first", b"", b"x" * 40))


def test_the_layout_is_what_this_file_takes_it_for(bench: Bench) -> None:
    bench.put(INPUT, b"a")
    assert bench.call((CRC32C, 0, CONSTANTS, 64), (CRC32C, 0, END, 0))[1] == 0
    assert bench.fault((CRC32C, 0, CONSTANTS, 65)).kind is FaultKind.OUT_OF_BOUNDS


# What they do


def test_log_takes_a_text_by_its_length(bench: Bench) -> None:
    bench.put(INPUT, b"no end\xffmore")
    assert bench.call((LOG, 0, INPUT, 7), (LOG, 1, INPUT, 2), (LOG, 0, INPUT, 0)) == [0, 0, 0]
    assert bench.said == [(Level.INFO, "no end\ufffd"), (Level.ERROR, "no"), (Level.INFO, "")]


def test_a_long_text_is_cut(bench: Bench) -> None:
    bench.put(INPUT, b"x" * 4096)
    bench.call((LOG, 1, INPUT, 4096))
    assert bench.said == [(Level.ERROR, "x" * 1024)]


def test_log_prints_where_there_is_nothing_else() -> None:
    lines: list[str] = []
    made = Bench(Engine.INTERPRETER)
    made.put(INPUT, b"text")
    made.put(CALLS, struct.pack("<6Q", LOG, 1, INPUT, 4, 0, 0) + bytes(48))
    run_program(
        caller(),
        memoryview(made.memory),
        input_size=INPUT_SIZE,
        output_size=OUTPUT_SIZE,
        input_length=INPUT_SIZE,
        services=Services(lines.append, lambda *_: 0, lambda *_: 0),
    )
    assert lines == ["text"]


def test_arg_copies_what_there_is_room_for_and_tells_the_whole_length(bench: Bench) -> None:
    values = bench.call((ARG, 0, OUTPUT, 64), (ARG, 1, OUTPUT + 64, 9), (ARG, 2, OUTPUT + 80, 7))
    assert values == [5, 0, 40]
    assert bench.get(OUTPUT, 6) == b"first\xee"
    assert bench.get(OUTPUT + 64, 9) == b"\xee" * 9
    assert bench.get(OUTPUT + 80, 8) == b"xxxxxxx\xee"


@pytest.mark.parametrize("index", [3, 2**31, 2**32 - 1, MINUS_ONE])
def test_an_argument_that_is_not_there_is_minus_one(bench: Bench, index: int) -> None:
    assert bench.call((ARG, index, OUTPUT, 64)) == [MINUS_ONE]
    assert bench.get(OUTPUT, 64) == b"\xee" * 64


def test_crc32c_goes_on_from_an_earlier_one(bench: Bench) -> None:
    bench.put(INPUT, b"123456789")
    whole, first = bench.call((CRC32C, 0, INPUT, 9), (CRC32C, 0, INPUT, 4))
    assert whole == 0xE306_9283  # the check value of CRC-32C in every catalogue of CRCs
    assert bench.call((CRC32C, first, INPUT + 4, 5)) == [whole]
    assert bench.call((CRC32C, first | 7 << 32, INPUT + 4, 5)) == [whole]


def test_blocks_are_read_and_written_through_what_is_behind_the_helper(bench: Bench) -> None:
    bench.put(INPUT, b"ABCD")
    values = bench.call((READ_LBA, 1, 5, 2, OUTPUT, 1024), (WRITE_LBA, 2, 2**40, 1, INPUT, 4))
    assert values == [1024, 512]
    assert bench.get(OUTPUT, 5) == b"READ\xee"
    assert bench.said == [("read", 1, 5, 2, 1024), ("write", 2, 2**40, 1, b"ABCD", True)]


def test_values_and_keys_are_requested(bench: Bench) -> None:
    bench.put(INPUT, b"absent and more than a key")
    values = bench.call(
        (KV_RETRIEVE, 2 | 9 << 32, INPUT, 2, OUTPUT, 8),
        (KV_RETRIEVE, 2, INPUT, 6, OUTPUT + 8, 0),
        (KV_LIST, 2, INPUT, 17, OUTPUT + 8, 4),
        (KV_LIST, 2, INPUT, 18, OUTPUT + 12, 4),
    )
    assert values == [100, 2**64 - errno.ENOENT, 100, 2**64 - errno.EINVAL]
    assert bench.get(OUTPUT, 13) == b"KEPT\xee\xee\xee\xeeLIST\xee"
    assert bench.said == [
        (2, b"ab", False, 8, OUTPUT),
        (2, b"absent", False, 0, OUTPUT + 8),
        (2, b"absent and more t", True, 4, OUTPUT + 8),
    ]


def test_a_model_is_loaded_once_and_run_on_many_inputs(bench: Bench) -> None:
    bench.put(INPUT, b"one two ")
    values = bench.call(
        (TFLITE_OPEN, INPUT, 3, 1),
        (TFLITE_OPEN, INPUT + 4, 4, 0),
        (TFLITE_RUN, 2, INPUT, 2, OUTPUT, 8),
        (TFLITE_RUN, 1, INPUT + 1, 1, OUTPUT + 8, 8),
        (TFLITE_RUN, 2, INPUT + 4, 1, OUTPUT + 16, 8),
    )
    assert values == [1, 2, 4, 3, 4]
    assert (
        bench.get(OUTPUT, 24) == b"two \xee\xee\xee\xeeone\xee\xee\xee\xee\xeetwo \xee\xee\xee\xee"
    )
    assert bench.said == [
        ("load", b"one", Processor.VTA),
        ("load", b"two ", Processor.APU),
        ("run", b"two ", b"on", 8),
        ("run", b"one", b"n", 8),
        ("run", b"two ", b"t", 8),
    ]


def test_the_number_of_a_closed_model_is_free_again(bench: Bench) -> None:
    opened = (TFLITE_OPEN, INPUT, 1, 0)
    values = bench.call(opened, opened, opened, (TFLITE_CLOSE, 2), opened, opened)
    assert values == [1, 2, 3, 0, 2, 4]


def test_no_more_than_eight_models_are_open(bench: Bench) -> None:
    opened = (TFLITE_OPEN, INPUT, 1, 0)
    assert bench.call(*[opened] * 8) == list(range(1, 9))
    assert "8 models are open" in bench.fault(*[opened] * 9).reason


def test_open_models_are_so_large_together_and_no_larger(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helpers, "MAX_MODEL_BYTES", 100)
    large, small = (TFLITE_OPEN, INPUT, 60, 0), (TFLITE_OPEN, INPUT, 40, 0)
    assert bench.call(large, small, (TFLITE_CLOSE, 1), large) == [1, 2, 0, 1]
    assert "may have 100 bytes, not 101" in bench.fault(large, (TFLITE_OPEN, INPUT, 41, 0)).reason


def test_models_that_are_left_open_are_let_go(bench: Bench) -> None:
    """Each run begins with none, whatever the one before has left."""
    bench.call((TFLITE_OPEN, INPUT, 1, 0))
    assert "no model is open as 1" in bench.fault((TFLITE_RUN, 1, INPUT, 1, OUTPUT, 1)).reason


# What they refuse


@pytest.mark.parametrize("handle", [0, 2, 9, 2**32 + 1, MINUS_ONE])
@pytest.mark.parametrize("helper", [TFLITE_RUN, TFLITE_CLOSE], ids=["run", "close"])
def test_a_number_that_is_no_open_model(bench: Bench, helper: int, handle: int) -> None:
    fault = bench.fault((TFLITE_OPEN, INPUT, 1, 0), (helper, handle, INPUT, 1, OUTPUT, 1))
    assert fault.kind is FaultKind.HELPER_FAILED
    assert f"no model is open as {handle}" in fault.reason


def test_a_model_is_not_closed_twice(bench: Bench) -> None:
    opened, closed = (TFLITE_OPEN, INPUT, 1, 0), (TFLITE_CLOSE, 1)
    assert bench.fault(opened, closed, closed).kind is FaultKind.HELPER_FAILED


def test_what_cannot_be_loaded_takes_no_number(bench: Bench) -> None:
    bench.put(INPUT, b"bad")
    fault = bench.fault((TFLITE_OPEN, INPUT, 3, 0))
    assert (fault.kind, fault.reason) == (FaultKind.HELPER_FAILED, "tflite_open: this is no model")


@pytest.mark.parametrize("value", [2, 2**32, MINUS_ONE])
def test_levels_and_processors_that_there_are_not(bench: Bench, value: int) -> None:
    for call in ((LOG, value, INPUT, 1), (TFLITE_OPEN, INPUT, 1, value)):
        assert bench.fault(call).kind is FaultKind.HELPER_FAILED
    assert bench.said == []


@pytest.mark.parametrize(
    ("helper", "text"),
    [
        (READ_LBA, "no blocks have been granted"),
        (WRITE_LBA, "no blocks have been granted"),
        (KV_RETRIEVE, "there are no key value namespaces here"),
    ],
)
def test_without_grants_or_a_drive_nothing_is_accessed(helper: int, text: str) -> None:
    made = Bench(Engine.INTERPRETER)
    made.put(CALLS, struct.pack("<6Q", helper, 1, INPUT, 1, OUTPUT, 512) + bytes(48))
    with pytest.raises(Fault, match=text):
        run_program(
            caller(),
            memoryview(made.memory),
            input_size=INPUT_SIZE,
            output_size=OUTPUT_SIZE,
            input_length=INPUT_SIZE,
            services=Services(lambda line: None, lambda *_: 0, lambda *_: 0),
        )


OPENED = (TFLITE_OPEN, INPUT, 1, 0)

READERS: dict[str, Callable[[int, int], list[tuple[int, ...]]]] = {
    "log": lambda at, length: [(LOG, 0, at, length)],
    "crc32c": lambda at, length: [(CRC32C, 0, at, length)],
    "write_lba": lambda at, length: [(WRITE_LBA, 1, 0, 1, at, length)],
    "kv_retrieve's key": lambda at, length: [(KV_RETRIEVE, 1, at, length, OUTPUT, 8)],
    "tflite_open": lambda at, length: [(TFLITE_OPEN, at, length, 0)],
    "tflite_run's input": lambda at, length: [OPENED, (TFLITE_RUN, 1, at, length, OUTPUT, 8)],
}
WRITERS: dict[str, Callable[[int, int], list[tuple[int, ...]]]] = {
    "arg": lambda at, length: [(ARG, 0, at, length)],
    "arg that is not there": lambda at, length: [(ARG, 99, at, length)],
    "read_lba": lambda at, length: [(READ_LBA, 1, 0, 1, at, length)],
    "kv_retrieve": lambda at, length: [(KV_RETRIEVE, 1, INPUT, 1, at, length)],
    "kv_list": lambda at, length: [(KV_LIST, 1, INPUT, 0, at, length)],
    "tflite_run's output": lambda at, length: [OPENED, (TFLITE_RUN, 1, INPUT, 1, at, length)],
}
OUTSIDE = [
    (0, 1),
    (8, 8),
    (BASE - 1, 1),
    (BASE - 1, 2),
    (END, 1),
    (END - 1, 2),
    (END + 1, 0),
    (BASE, END - BASE + 1),
    (INPUT, 2**32),
    (INPUT, 2**63),
    (INPUT, MINUS_ONE),
    (1 << 40, 1),
    (2**63, 1),
    (MINUS_ONE, 1),
    (MINUS_ONE - 7, 16),
    (MINUS_ONE, MINUS_ONE),
]
CONSTANT = [(CONSTANTS, 1), (CONSTANTS - 1, 2), (END - 1, 1), (OUTPUT, END - OUTPUT)]


@pytest.mark.parametrize("name", [*READERS, *WRITERS])
def test_what_is_not_wholly_inside_faults_before_anything_is_done(bench: Bench, name: str) -> None:
    calls = (READERS | WRITERS)[name]
    for at, length in OUTSIDE:
        before, asked = (
            bench.get(INPUT, 4096),
            [one for one in bench.said if "load" not in str(one)],
        )
        fault = bench.fault(*calls(at, length))
        assert (fault.kind, fault.address) == (FaultKind.OUT_OF_BOUNDS, at), (at, length)
        assert bench.get(INPUT, 4096) == before and bench.get(OUTPUT, 2048) == b"\xee" * 2048
        assert [one for one in bench.said if "load" not in str(one)] == asked


@pytest.mark.parametrize("name", WRITERS)
def test_constants_are_not_written(bench: Bench, name: str) -> None:
    for at, length in CONSTANT:
        fault = bench.fault(*WRITERS[name](at, length))
        assert fault.kind is FaultKind.READ_ONLY, (at, length)
        assert bench.get(CONSTANTS, 64) == bytes(64)


@pytest.mark.parametrize("name", READERS)
def test_constants_can_be_read(bench: Bench, name: str) -> None:
    bench.call(*READERS[name](CONSTANTS, 8))


numbers = st.one_of(
    st.integers(0, 16),
    st.sampled_from([BASE, INPUT, OUTPUT, DATA, CONSTANTS, END]).flatmap(
        lambda at: st.integers(at - 16, at + 16)
    ),
    st.integers(0, 2**64 - 1),
    st.integers(2**64 - 16, 2**64 - 1),
)


@given(st.lists(st.tuples(st.integers(1, 15), *[numbers] * 5), min_size=1, max_size=6))
def test_whatever_a_helper_is_given_it_returns_or_faults(calls: list[tuple[int, ...]]) -> None:
    made = Bench(Engine.INTERPRETER, (b"argument",))
    calls = [call for call in calls if call[0] not in (TFLITE_APU, TFLITE_VTA)]
    try:
        for value in made.call(*calls):
            assert 0 <= value < 2**64
    except Fault as fault:
        assert fault.pc is not None and fault.reason
    assert made.get(CONSTANTS, 64) == bytes(64)
    assert made.memory[END - BASE :] == b"\xee" * (len(made.memory) - (END - BASE))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_trap_of_the_compiler_ends_the_program(engine: Engine) -> None:
    """LLVM 22 calls it, by an undefined weak symbol, where earlier versions refuse the source."""
    program = load_program(elf([TRAP], [Name("prog"), Name("__bpf_trap", 0, type=0)]))
    with pytest.raises(Fault, match="has reached __builtin_trap, or what its") as caught:
        run_program(
            program,
            reserve.allocate(LAYOUT.size),
            input_size=INPUT_SIZE,
            output_size=OUTPUT_SIZE,
            input_length=0,
            services=Services(lambda text: None, lambda *_: 0, lambda *_: 0),
            engine=engine,
        )
    assert (caught.value.kind, caught.value.pc) == (FaultKind.HELPER_FAILED, 0)

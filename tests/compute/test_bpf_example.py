"""Programs from a C compiler: the example as it is shipped, rebuilt, and one that uses more."""

import re
import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from csd_spec.descriptors import encode_arguments
from csd_spec.program import Context
from potash_firmware.bpf import Fault, Outcome, Services, buffer_layout, load_program
from support.bpf import run_program
from support.bpf_compiler import INCLUDE, NO_COMPILER, compile_program, compiler

ADD = Path(__file__).parents[2] / "examples" / "add"
SIZE = 4096
LAYOUT = buffer_layout(SIZE, SIZE)
MODEL, VECTORS = b"a model of twenty by", bytes(range(32))


class Done(NamedTuple):
    """Everything that can be seen of a run."""

    outcome: Outcome
    output: bytes
    printed: list[str]
    models: list[tuple[bytes, bytes]]


def sums(model: memoryview, given: memoryview, output: memoryview) -> int:
    """Stands in for the model: adds the halves of its input."""
    half = len(given) // 2
    output[:] = bytes(a + b for a, b in zip(given[:half], given[half:], strict=True))
    return len(output)


def run(data: bytes, given: bytes, arguments: list[bytes]) -> Done:
    memory = bytearray(LAYOUT.size)
    memory[LAYOUT.input_offset : LAYOUT.input_offset + len(given)] = given
    printed: list[str] = []
    models: list[tuple[bytes, bytes]] = []

    def infer(model: memoryview, inputs: memoryview, output: memoryview) -> int:
        models.append((bytes(model), bytes(inputs)))
        return sums(model, inputs, output)

    outcome = run_program(
        load_program(data),
        memoryview(memory),
        input_size=SIZE,
        output_size=SIZE,
        input_length=len(given),
        services=Services(printed.append, infer, infer),
        context=Context(encode_arguments(arguments)),
    )
    output = bytes(memory[LAYOUT.output_offset : LAYOUT.output_offset + SIZE])
    return Done(outcome, output, printed, models)


def u32(*values: int) -> list[bytes]:
    return [struct.pack("<I", value) for value in values]


def needed_compiler() -> list[str]:
    command = compiler()
    if command is None:
        pytest.skip(NO_COMPILER)
    return list(command)


def test_the_example_is_small() -> None:
    assert len((ADD / "program.o").read_bytes()) <= 8 << 10


def test_the_example_runs_the_model_and_says_how_long_its_output_is() -> None:
    done = run((ADD / "program.o").read_bytes(), MODEL + VECTORS, u32(len(MODEL), 16))
    assert done.outcome.return_value == 0
    assert done.outcome.output_length == 16
    assert done.models == [(MODEL, VECTORS)]
    assert done.output == bytes(range(16, 48, 2)) + bytes(SIZE - 16)
    assert done.printed == ["add: running the model"]


BAD_ARGUMENTS = [
    ([], 1),
    (u32(20), 1),
    ([b"abc", *u32(16)], 1),
    (u32(len(MODEL + VECTORS) + 1, 16), 2),
    (u32(20, SIZE + 1), 2),
]


@pytest.mark.parametrize(("arguments", "value"), BAD_ARGUMENTS)
def test_the_example_refuses_arguments_it_cannot_use(arguments: list[bytes], value: int) -> None:
    done = run((ADD / "program.o").read_bytes(), MODEL + VECTORS, arguments)
    assert (done.outcome.return_value, done.outcome.output_length) == (value, 0)
    assert (done.models, len(done.printed)) == ([], 1)
    assert done.output == bytes(SIZE)


def test_the_example_rebuilt_does_the_same(tmp_path: Path) -> None:
    rebuilt = compile_program(needed_compiler(), ADD / "program.c", tmp_path / "program.o")
    shipped = (ADD / "program.o").read_bytes()
    for arguments in (u32(len(MODEL), 16), *(arguments for arguments, _ in BAD_ARGUMENTS)):
        ours, theirs = (run(data, MODEL + VECTORS, arguments) for data in (shipped, rebuilt))
        assert ours._replace(outcome=theirs.outcome) == theirs
        assert ours.outcome.return_value == theirs.outcome.return_value
        assert ours.outcome.output_length == theirs.outcome.output_length


def test_the_header_calls_each_helper_by_its_number() -> None:
    header = (INCLUDE / "potash.h").read_text()
    declared = re.findall(r"\(\*const (\w+)\)\([^)]*\)\s*=\s*\(void \*\)(\d+);", header)
    assert [(name, int(number)) for name, number in declared] == [
        ("print", 1),
        ("tflite_apu", 2),
        ("tflite_vta", 3),
        ("set_output_length", 4),
        ("log", 5),
        ("arg", 6),
        ("crc32c", 7),
        ("read_lba", 8),
        ("write_lba", 9),
        ("tflite_open", 10),
        ("tflite_run", 11),
        ("tflite_close", 12),
        ("kv_retrieve", 13),
        ("kv_list", 14),
    ]


MORE = """
#include "potash.h"

typedef long (*operation)(long, long);

static int counter = 5;
static u64 table[16];
static const u32 squares[4] = {1, 4, 9, 16};
static const char *const names[2] = {"zero", "one"};

static __attribute__((noinline)) long add(long a, long b) { return a + b; }
static __attribute__((noinline)) long sub(long a, long b) { return a - b; }
static operation volatile operations[2] = {add, sub};
static volatile int which;

static __attribute__((noinline)) long fibonacci(long n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

static __attribute__((section("elsewhere"), noinline)) long far(long x)
{
	return x * 3 + squares[x & 3];
}

int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)
{
	u64 *results = (u64 *)out;

	for (int i = 0; i < 16; i++)
		table[i] += i * counter;
	counter++;
	results[0] = table[15];
	results[1] = counter;
	results[2] = fibonacci(7);
	results[3] = far(2);
	results[4] = operations[which](10, 3);
	results[5] = operations[which + 1](10, 3);
	results[6] = squares[in[0] & 3];
	print(names[in[0] & 1]);
	return -1;
}
"""


@pytest.mark.parametrize("flags", [[], ["-g"], ["-mcpu=v1"], ["-mcpu=v3"]], ids=str)
def test_a_compilers_data_calls_and_function_pointers(flags: list[str], tmp_path: Path) -> None:
    source = tmp_path / "more.c"
    source.write_text(MORE)
    data = compile_program(needed_compiler(), source, tmp_path / "more.o", *flags)
    done = run(data, b"\3", [])
    assert struct.unpack_from("<7Q", done.output) == (75, 6, 13, 15, 13, 7, 16)
    assert done.outcome.return_value & 0xFFFF_FFFF == 0xFFFF_FFFF
    assert done.printed == ["one"]


DOCUMENTED = Path(__file__).parents[2] / "docs" / "programs.md"


def test_the_documented_program_does_what_it_says(tmp_path: Path) -> None:
    source = tmp_path / "sum.c"
    source.write_text(re.findall(r"```c\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)[0])
    data = compile_program(needed_compiler(), source, tmp_path / "sum.o")
    padding = b"\xff\xff"
    done = run(data, bytes(range(200)) + padding, [struct.pack("<I", 200)])
    assert struct.unpack_from("<Q", done.output) == (sum(range(200)),)
    assert done.outcome.output_length == 8
    for arguments in ([], [struct.pack("<I", 203)]):
        done = run(data, bytes(range(200)) + padding, arguments)
        assert done.outcome.return_value & 0xFFFF_FFFF == 0xFFFF_FFFF
        assert done.outcome.output_length == 0
        assert len(done.printed) == 1


def test_a_recursion_too_deep_is_a_fault(tmp_path: Path) -> None:
    source = tmp_path / "deep.c"
    source.write_text(MORE.replace("fibonacci(7)", "fibonacci(20)"))
    data = compile_program(needed_compiler(), source, tmp_path / "deep.o")
    with pytest.raises(Fault, match="at most 8 functions"):
        run(data, b"\3", [])

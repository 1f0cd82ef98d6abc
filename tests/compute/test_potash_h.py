"""`potash.h` as a C compiler sees it: every helper's call, and the small functions it brings."""

import errno
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from csd_spec.descriptors import encode_arguments
from csd_spec.program import Context, Helper, Level, Processor
from nvme_spec.key_value import encode_keys
from potash_firmware.bpf import (
    Engine,
    Outcome,
    Services,
    ValueRequest,
    buffer_layout,
    load_program,
)
from potash_firmware.bpf.machine import Placed
from potash_firmware.bpf.reserve import Extent, Space
from potash_firmware.mailbox.shared import SharedMemory
from support.bpf import run_program
from support.bpf_compiler import INCLUDE, NO_COMPILER, compile_program, compiler

SIZE = 8192
LAYOUT = buffer_layout(SIZE, SIZE)


class Done(NamedTuple):
    outcome: Outcome
    output: bytes
    said: list[object]

    @property
    def numbers(self) -> list[int]:
        """The output as 64-bit numbers."""
        return list(struct.unpack(f"<{SIZE // 8}Q", self.output))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], bytes]:
    """The object file of a program whose body is given, which must compile without a warning."""
    command = compiler()
    if command is None:
        pytest.skip(NO_COMPILER)

    def compiled(body: str) -> bytes:
        source = tmp_path / "program.c"
        source.write_text(
            '#include "potash.h"\n'
            "int prog(char *in, char *out, u64 in_len, u64 out_len, struct context *ctx)\n"
            "{\n\tu64 *results = (u64 *)out;\n\n\t(void)results;\n" + body + "\n\treturn 0;\n}\n"
        )
        return compile_program(command, source, tmp_path / "program.o", "-std=gnu99")

    return compiled


def run(image: bytes, given: bytes = b"", arguments: tuple[bytes, ...] = ()) -> Done:
    memory = bytearray(LAYOUT.size)
    memory[LAYOUT.input_offset : LAYOUT.input_offset + len(given)] = given
    said: list[object] = []

    def infer(name: str) -> Callable[[memoryview, memoryview, memoryview], int]:
        def once(model: memoryview, inputs: memoryview, output: memoryview) -> int:
            said.append((name, bytes(model), bytes(inputs), len(output)))
            return len(output)

        return once

    def move(name: str) -> Callable[[int, int, int, memoryview], int]:
        def blocks(nsid: int, lba: int, count: int, view: memoryview) -> int:
            said.append((name, nsid, lba, count, len(view)))
            return count * 512

        return blocks

    def load(model: memoryview, processor: Processor) -> Callable[[memoryview, memoryview], int]:
        said.append(("open", bytes(model), processor))

        def again(inputs: memoryview, output: memoryview) -> int:
            said.append(("run", bytes(inputs), len(output)))
            return 3

        return again

    def values(request: ValueRequest) -> int:
        said.append((request.nsid, request.key, request.lists, len(request.target)))
        if not request.lists:
            return 99 if len(request.key) == 3 else -errno.ENOENT
        listed = encode_keys([b"abc", b"x"], 64)
        request.target[: len(listed)] = listed
        return 2

    outcome = run_program(
        load_program(image),
        memoryview(memory),
        input_size=SIZE,
        output_size=SIZE,
        input_length=len(given),
        services=Services(
            said.append,
            infer("apu"),
            infer("vta"),
            log=lambda level, line: said.append((level, line)),
            read_blocks=move("read"),
            write_blocks=move("write"),
            load_model=load,
            read_values=values,
        ),
        context=Context(encode_arguments(arguments)),
    )
    return Done(outcome, bytes(memory[LAYOUT.output_offset :][:SIZE]), said)


def test_every_helper_is_called_as_it_is_declared(build: Callable[[str], bytes]) -> None:
    done = run(
        build("""
	long model;

	print("printed");
	results[0] = tflite_apu(in, out + 4096, 2, 7, 3);
	results[1] = tflite_vta(in, out + 4096, 4, 8, 2);
	results[2] = set_output_length(100);
	results[3] = log(LOG_ERROR, "error", 3);
	results[4] = log(LOG_INFO, "news", 4);
	results[5] = arg(1, out + 1024, 64);
	results[6] = arg(9, out + 1024, 64);
	results[7] = crc32c(0, in, 9);
	results[8] = read_lba(1, 1ull << 40, 2, out + 4096, 1024);
	results[9] = write_lba(2, 3, 1, in, 9);
	results[10] = model = tflite_open(in, 4, ON_VTA);
	results[11] = tflite_run(model, in + 4, 5, out + 4096, 11);
	results[12] = tflite_close(model);
	results[13] = tflite_open(in, 1, ON_APU);
	results[14] = kv_retrieve(7, in, 3, out + 4096, 16);
	results[15] = kv_list(7, in, 0, out + 4096, 64);
	results[16] = kv_first(out + 4096)->length;
	results[17] = kv_next(kv_first(out + 4096))->bytes[0];
	results[18] = kv_retrieve(7, in, 2, out + 4096, 16) == KV_NO_KEY;
"""),
        b"123456789",
        (b"zero", b"one"),
    )
    assert done.numbers[:19] == [
        7, 8, 0, 0, 0, 3, 2**64 - 1, 0xE306_9283, 1024, 512, 1, 3, 0, 1, 99, 2, 3, ord("x"), 1,
    ]  # fmt: skip
    assert done.output[1024:1028] == b"one\0"
    assert done.outcome.output_length == 100
    assert done.said == [
        "printed",
        ("apu", b"123", b"45", 7),
        ("vta", b"12", b"3456", 8),
        (Level.ERROR, "err"),
        (Level.INFO, "news"),
        ("read", 1, 1 << 40, 2, 1024),
        ("write", 2, 3, 1, 9),
        ("open", b"1234", Processor.VTA),
        ("run", b"56789", 11),
        ("open", b"1", Processor.APU),
        (7, b"123", False, 16),
        (7, b"", True, 64),
        (7, b"12", False, 16),
    ]


def test_every_helper_that_there_is_is_declared() -> None:
    declared = re.findall(r"\(\*const (\w+)\)", (INCLUDE / "potash.h").read_text())
    assert declared == [helper.name.lower() for helper in Helper]


def test_memory_is_copied_moved_set_and_compared(build: Callable[[str], bytes]) -> None:
    done = run(
        build("""
	char *at = out + 1024;

	results[0] = memcpy(at, in, 8) == at;
	results[1] = memmove(at + 16, in, 8) == at + 16;
	memmove(at + 18, at + 16, 6);
	memcpy(at + 32, in, 8);
	memmove(at + 30, at + 32, 6);
	results[2] = memset(at + 48, 0x1ff, 4) == at + 48;
	results[3] = memcmp(in, in, 8);
	results[4] = memcmp(in, in + 1, 8);
	results[5] = memcmp(in + 8, in, 1);
	results[6] = memcmp(in, in + 8, 0);
	memcpy(at + 60, in, 0);
"""),
        b"abcdefgh\xff",
    )
    assert done.numbers[:7] == [1, 1, 1, 0, 2**64 - 1, 1, 0]
    at = done.output[1024:]
    assert at[:8] == b"abcdefgh"
    assert at[16:24] == b"ababcdef"
    assert at[30:40] == b"abcdefefgh"
    assert at[48:53] == b"\xff" * 4 + b"\0"
    assert at[60:70] == bytes(10)


def test_texts_are_measured_and_searched(build: Callable[[str], bytes]) -> None:
    done = run(
        build("""
	results[0] = strlen(in);
	results[1] = strlen("");
	results[2] = (char *)memchr(in, 'w' + 256, 12) - in;
	results[3] = memchr(in, 'w', 6) == 0;
	results[4] = find(in, 11, "world", 5) - in;
	results[5] = find(in, 10, "world", 5) == 0;
	results[6] = find(in, 11, "o ", 2) - in;
	results[7] = find(in, 0, "x", 1) == 0;
	results[8] = find(in, 5, "", 0) == in;
	results[9] = find(in, 3, "hello world", 11) == 0;
	results[10] = find(in, 11, "lo", 2) - in;
"""),
        b"hello world\0more",
    )
    assert done.numbers[:11] == [11, 0, 6, 1, 6, 1, 4, 1, 1, 1, 3]


@pytest.mark.parametrize("value", [0, 7, 9, 10, 99, 100, 12345678, 10**19, 2**64 - 1])
def test_numbers_are_written_in_decimal(value: int, build: Callable[[str], bytes]) -> None:
    done = run(
        build('\tresults[0] = decimal(out + 8, *(u64 *)in);\n\tprint_number("n = ", *(u64 *)in);'),
        struct.pack("<Q", value),
    )
    text = str(value).encode()
    assert done.numbers[0] == len(text)
    assert done.output[8:40] == text.ljust(32, b"\0")
    assert done.said == [(Level.INFO, f"n = {value}")]


def test_a_long_text_before_a_number_is_cut(build: Callable[[str], bytes]) -> None:
    done = run(build(f'\tprint_number("{"x" * 300}", 2);'))
    assert done.said == [(Level.INFO, "x" * 100 + "2")]


def test_arguments_are_found_in_the_context(build: Callable[[str], bytes]) -> None:
    image = build("""
	u32 length = 7, small = 1;
	u64 large = 2;
	const char *at = argument(ctx, 2, &length);

	results[0] = at ? at[0] : 0;
	results[1] = length;
	results[2] = argument(ctx, 3, &length) == 0;
	results[3] = argument_u32(ctx, 0, &small);
	results[4] = small;
	results[5] = argument_u32(ctx, 1, &small);
	results[6] = argument_u64(ctx, 1, &large);
	results[7] = large;
	results[8] = argument_u64(ctx, 0, &large);
	results[9] = argument_u64(ctx, 9, &large);
	results[10] = ctx->argument_count;
	results[11] = ctx->version;
""")
    arguments = (struct.pack("<I", 77), struct.pack("<Q", 1 << 40), b"xyz")
    done = run(image, arguments=arguments)
    assert done.numbers[:12] == [ord("x"), 3, 1, 1, 77, 0, 1, 1 << 40, 0, 0, 3, 2]


SEES = """
	const struct memory_range *second = memory_range(ctx, 1);
	u32 number = 0;

	results[0] = memory_range_count(ctx);
	results[1] = memory_range(ctx, 0)->start == in && memory_range(ctx, 0)->length == in_len;
	results[2] = second->start == out && second->length == out_len;
	results[3] = memory_range(ctx, 9) == 0;
	results[4] = parameter(ctx, 1);
	results[5] = parameter(ctx, 2);
	results[6] = ctx->argument_count;
	results[7] = argument_u32(ctx, 3, &number);
	results[8] = number;
	results[9] = ctx->list_length;
	results[10] = *(u64 *)memory_range(ctx, memory_range_count(ctx) - 1)->start;
"""


def test_buffers_are_ranges_of_a_program_that_was_started(build: Callable[[str], bytes]) -> None:
    given = struct.pack("<Q", 5) * 4
    done = run(build(SEES), given, (b"abc",))
    zero_output = 2  # the last range is the output, whose first number was 2 by then
    assert done.numbers[:11] == [2, 1, 1, 1, 0, 0, 1, 0, 0, 8, zero_output]


@pytest.mark.parametrize("engine", [Engine.INTERPRETER, Engine.NATIVE])
def test_the_same_source_runs_on_memory_ranges(
    build: Callable[[str], bytes], engine: Engine
) -> None:
    program = load_program(build(SEES))
    memory = [SharedMemory(4096, f"range{index}") for index in range(3)]
    memory[2].view[:8] = struct.pack("<Q", 1 << 63)
    services = Services(lambda _: None, lambda *_: 0, lambda *_: 0)
    space = Space()
    placed = Placed(program, space)
    space.show([Extent(one.fd, 0, 4096) for one in memory])
    placed.prepare(services, 1000, engine)

    def numbers(parameters: tuple[int, int], data: bytes) -> list[int]:
        assert placed.run(parameters, data).return_value == 0
        placed.clear()
        return list(struct.unpack("<11Q", memory[1].view[:88]))

    expected = [3, 1, 1, 1, 1 << 32 | 2, 4 << 32 | 3, 4, 1, 4, 32, 1 << 63]
    assert numbers((1 << 32 | 2, 4 << 32 | 3), b"") == expected
    arguments = encode_arguments([b"a", b"b", b"c", struct.pack("<I", 77), b"e"])
    expected = [3, 1, 1, 1, 1, 0, 5, 1, 77, len(arguments), 1 << 63]
    assert numbers((1, 0), arguments) == expected
    assert numbers((1, 0), b"\xff" * 7)[6:10] == [0, 0, 0, 7]
    for one in memory:
        one.close()


def documented(name: str, tmp_path: Path) -> bytes:
    """The object file of a program of the page about programs, which says what it is called."""
    command = compiler()
    if command is None:
        pytest.skip(NO_COMPILER)
    page = (INCLUDE.parents[1] / "docs" / "programs.md").read_text()
    source = tmp_path / name
    source.write_text(page.partition(f"`{name}`")[2].partition("```c\n")[2].partition("```")[0])
    return compile_program(command, source, tmp_path / "program.o")


def numbers(*values: int) -> tuple[bytes, ...]:
    return tuple(struct.pack("<I", value) for value in values)


def test_the_documented_program_loads_its_model_once(tmp_path: Path) -> None:
    done = run(documented("each.c", tmp_path), b"MODELaabbccdd", numbers(5, 2, 3))
    assert done.said == [
        ("open", b"MODEL", Processor.VTA),
        ("run", b"aa", SIZE),
        ("run", b"bb", SIZE - 3),
        ("run", b"cc", SIZE - 6),
    ]
    assert (done.outcome.return_value, done.outcome.output_length) == (0, 9)


@pytest.mark.parametrize("size", [2048, 4096])
def test_the_documented_program_counts_what_is_in_blocks(tmp_path: Path, size: int) -> None:
    drive = bytearray(10 * size)
    drive[2 * size : 4 * size] = bytes(value % 251 for value in range(2 * size))
    struct.pack_into("<2Q", drive, 7 * size, 100, 200)

    def read(nsid: int, lba: int, count: int, view: memoryview) -> int:
        view[: count * size] = drive[lba * size : (lba + count) * size]
        return count * size

    def write(nsid: int, lba: int, count: int, view: memoryview) -> int:
        drive[lba * size : (lba + count) * size] = view
        return count * size

    run_program(
        load_program(documented("tally.c", tmp_path)),
        memoryview(bytearray(LAYOUT.size)),
        input_size=SIZE,
        output_size=SIZE,
        input_length=0,
        services=Services(
            pytest.fail, lambda *_: 0, lambda *_: 0, read_blocks=read, write_blocks=write
        ),
        context=Context(encode_arguments(numbers(2, 2, 7))),
    )
    expected = [drive[2 * size : 4 * size].count(value) for value in range(256)]
    expected[0] += 100
    expected[1] += 200
    assert list(struct.unpack_from("<256Q", drive, 7 * size)) == expected

"""The clock: when each instruction of a stream does what.

Four machines run at once: the fetch fills the modules' command queues; LOAD, COMPUTE and STORE work
through them. An instruction begins when its module is free, it has been fetched and each token
queue that it pops from has a token; it gives its own tokens, all at once, when its work is done and
their queues are not full. Transfers take a memory channel in the order of their requests; LOAD and
COMPUTE share the one for reads. The time depends on the instructions alone: nothing is computed.

All of it is in this one file, because numba recompiles what it kept when the file of the function
has changed. Called as Python, it gives the same for short streams without being compiled.

Source: "VTA: An Open Hardware-Software Stack for Deep Learning", sections 2.3 to 2.6."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.fast import layout
from potash_device.vta.fast.admission import (
    LOAD_STAGE,
    POP_NEXT,
    POP_PREV,
    PUSH_NEXT,
    PUSH_PREV,
    STAGES,
    STORE_STAGE,
    decode,
    stage_of,
)
from potash_device.vta.fast.compiling import Flag, Number, compiled, entry
from potash_device.vta.stream import StreamError, canonical_order, decode_stream
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Facts, Kind, Moments, fetch_cycles

NAMES = (
    *("bus_bytes", "latency", "burst_bytes", "burst_cycles", "decode", "token_cycles"),
    *("gemm_interval", "gemm_fill", "gemm_drain"),
    *("alu_interval", "alu_immediate_interval", "alu_fill", "alu_drain"),
    *("command_queue", "token_queue"),
)
"""The parameters, in the order of the array that compiled code sees; then the fetch's cycles."""
BUS_BYTES, LATENCY, BURST_BYTES, BURST_CYCLES, DECODE, TOKEN_CYCLES = range(6)
GEMM_INTERVAL, GEMM_FILL, GEMM_DRAIN = range(6, 9)
ALU_INTERVAL, ALU_IMMEDIATE_INTERVAL, ALU_FILL, ALU_DRAIN = range(9, 13)
COMMAND_QUEUE, TOKEN_QUEUE, FETCH = range(13, 16)

FETCHED, FREE, PREVIOUS, START, GRANTED, DONE, END = range(len(Moments._fields))
STAGE, KIND, BITS, CYCLES, BEATS, SIZE, PRODUCTS = range(len(Facts._fields))
KIND_TOKENS, KIND_GEMM, KIND_RESET, KIND_ALU = (
    int(kind) for kind in (Kind.TOKENS, Kind.GEMM, Kind.RESET, Kind.ALU)
)
KINDS = tuple(int(Kind[memory.name.partition("_")[0]]) for memory in MemoryId)
"""The kind of a transfer, by memory: ACC_8BIT is of ACC."""
LONGEST = 1 << 60
"""Cycles: 365 years at 100 MHz."""

MODULE = LENGTH, BEGUN, QUEUED, FREED, UNFINISHED = tuple(range(5))
"""Columns of a module: the numbers of its instructions, of those begun and of those fetched, the
time at which it became free, and the instruction that has tokens to give."""

GIVEN, TAKEN = range(2)
TOKEN_QUEUES = 4
"""Queues from each module to the next, and back: 2s leads from module s on, 2s + 1 back to it."""

NOBODY = -1


class Clock(NamedTuple):
    """One run of a stream."""

    settings: Any
    facts: Any
    moments: Any
    waiting: Any
    """The indices that wait for each module."""
    modules: Any
    times: Any
    """Times at which tokens were given and taken."""
    tokens: Any
    """Numbers of tokens given and taken."""
    channels: Any
    """Times until which the memory channels are busy."""


def simulate(
    config: Config, parameters: Parameters, code: bytes, *, compile_it: bool = True
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Moments and facts of each instruction. Raises StreamError where the stream cannot run."""
    count, rest = divmod(len(code), INSTRUCTION_BYTES)
    words = np.frombuffer(code[: len(code) - rest], "<u8").reshape(-1, 2)
    numbers = [getattr(parameters, name) for name in NAMES]
    settings = np.array([*numbers, fetch_cycles(parameters)], np.int64)
    sizes = np.array([config.element_bytes(memory) for memory in MemoryId], np.int64)
    moments = np.zeros((count, len(Moments._fields)), np.int64)
    facts = np.zeros((count, len(Facts._fields)), np.int64)
    row = np.zeros(layout.COLUMNS, np.int64)
    clock = Clock(
        settings,
        facts,
        moments,
        waiting=np.zeros((STAGES, count), np.int64),
        modules=np.zeros((STAGES, len(MODULE)), np.int64),
        times=np.zeros((TOKEN_QUEUES, 2, count), np.int64),
        tokens=np.zeros((TOKEN_QUEUES, 2), np.int64),
        channels=np.zeros(2, np.int64),
    )
    steps: tuple[Any, ...] = measure, run_clock
    if not compile_it:
        steps = tuple(step.py_func for step in steps)
    measured, run = steps
    whole = count and not rest
    if whole and measured(words, layout.fields(config), settings, sizes, row, facts) and run(clock):
        return moments, facts
    canonical_order(decode_stream(code, config))
    late = np.flatnonzero(moments[:, DONE] > LONGEST)
    if late.size:
        raise StreamError(int(late[0]), f"the stream takes more than {LONGEST} cycles")
    raise StreamError(
        int(np.flatnonzero(moments[:, END] == 0)[0]),
        f"deadlock: command queues of {parameters.command_queue} instructions and "
        f"token queues of {parameters.token_queue} are too short for the stream",
    )


@entry
def measure(words: Any, fields: Any, settings: Any, sizes: Any, row: Any, facts: Any) -> Flag:
    """Decode a stream into the facts of each instruction."""
    count = words.shape[0]
    for index in range(count):
        if not decode(words[index], fields, row):
            return False
        opcode = row[layout.OPCODE]
        if (opcode == layout.FINISH) != (index == count - 1):
            return False
        stage = stage_of(row)
        facts[index, BITS] = row[layout.DEPENDENCIES]
        if stage == LOAD_STAGE and facts[index, BITS] & (POP_PREV | PUSH_PREV):
            return False
        if stage == STORE_STAGE and facts[index, BITS] & (POP_NEXT | PUSH_NEXT):
            return False
        fact = facts[index]
        fact[STAGE] = stage
        if opcode == layout.GEMM or opcode == layout.ALU:
            iterations = row[layout.ITER_OUT] * row[layout.ITER_IN]
            steps = iterations * max(0, row[layout.UOP_END] - row[layout.UOP_BGN])
            if opcode == layout.GEMM:
                fact[KIND] = KIND_RESET if row[layout.RESET] else KIND_GEMM
                fact[PRODUCTS] = 0 if row[layout.RESET] else steps
                busy = steps * settings[GEMM_INTERVAL] + iterations * settings[GEMM_DRAIN]
                fact[CYCLES] = busy + settings[GEMM_FILL]
            else:
                interval = settings[ALU_IMMEDIATE_INTERVAL if row[layout.USE_IMM] else ALU_INTERVAL]
                fact[KIND] = KIND_ALU
                fact[CYCLES] = (
                    steps * interval + iterations * settings[ALU_DRAIN] + settings[ALU_FILL]
                )
        elif opcode != layout.FINISH and row[layout.X_SIZE]:
            transfer(row, settings, sizes, fact)
        else:
            fact[KIND] = KIND_TOKENS
            fact[CYCLES] = settings[TOKEN_CYCLES]
    return True


@compiled
def transfer(row: Any, settings: Any, sizes: Any, fact: Any) -> None:
    """The facts of a LOAD or STORE that moves something."""
    rows = row[layout.Y_SIZE]
    size = row[layout.X_SIZE] * sizes[row[layout.MEMORY_TYPE]]
    beats = -(-size // settings[BUS_BYTES])
    bursts = -(-size // settings[BURST_BYTES])
    across = row[layout.X_PAD_0] + row[layout.X_PAD_1]
    pads = (row[layout.Y_PAD_0] + row[layout.Y_PAD_1]) * (
        row[layout.X_SIZE] + across
    ) + rows * across
    fact[KIND] = KINDS[row[layout.MEMORY_TYPE]]
    fact[CYCLES] = rows * (beats + bursts * settings[BURST_CYCLES] + settings[LATENCY]) + pads
    fact[BEATS] = rows * beats
    fact[SIZE] = rows * size


@entry
def run_clock(clock: Clock) -> Flag:
    """Run the clock; False for a deadlock and for a stream that takes too long."""
    count = clock.facts.shape[0]
    for index in range(count):
        stage = clock.facts[index, STAGE]
        clock.waiting[stage, clock.modules[stage, LENGTH]] = index
        clock.modules[stage, LENGTH] += 1
    clock.modules[:, UNFINISHED] = NOBODY
    fetched, done = 0, 0
    while True:
        fetched = fetch(clock, fetched)
        for stage in range(STAGES):
            if finish(stage, clock):
                done += 1
        first = NOBODY
        for stage in range(STAGES):
            index = ready(stage, clock, fetched)
            if index != NOBODY and (
                first == NOBODY or clock.moments[index, START] < clock.moments[first, START]
            ):
                first = index
        if first == NOBODY:
            return done == count
        if not execute(first, clock):
            return False


@compiled
def fetch(clock: Clock, fetched: Number) -> Number:
    """Fetch until the next instruction's command queue is full. Gives how many are fetched."""
    while fetched < clock.facts.shape[0]:
        stage = clock.facts[fetched, STAGE]
        leaver = clock.modules[stage, QUEUED] - clock.settings[COMMAND_QUEUE]
        if leaver >= clock.modules[stage, BEGUN]:
            break
        now = clock.moments[fetched - 1, FETCHED] if fetched else clock.settings[LATENCY]
        if leaver >= 0:
            now = max(now, clock.moments[clock.waiting[stage, leaver], START])
        clock.moments[fetched, FETCHED] = now + clock.settings[FETCH]
        clock.modules[stage, QUEUED] += 1
        fetched += 1
    return fetched


@compiled
def ready(stage: Number, clock: Clock, fetched: Number) -> Number:
    """A module's next instruction, where it is known when that begins."""
    place = clock.modules[stage, BEGUN]
    if clock.modules[stage, UNFINISHED] != NOBODY or place == clock.modules[stage, LENGTH]:
        return NOBODY
    index = clock.waiting[stage, place]
    if index >= fetched:
        return NOBODY
    moment = clock.moments[index]
    moment[FREE] = clock.modules[stage, FREED]
    now = max(moment[FREE], moment[FETCHED])
    if clock.facts[index, BITS] & POP_PREV:
        queue = 2 * (stage - 1)
        if clock.tokens[queue, TAKEN] == clock.tokens[queue, GIVEN]:
            return NOBODY
        now = max(now, clock.times[queue, GIVEN, clock.tokens[queue, TAKEN]])
    moment[PREVIOUS] = now
    if clock.facts[index, BITS] & POP_NEXT:
        queue = 2 * stage + 1
        if clock.tokens[queue, TAKEN] == clock.tokens[queue, GIVEN]:
            return NOBODY
        now = max(now, clock.times[queue, GIVEN, clock.tokens[queue, TAKEN]])
    moment[START] = now
    return index


@compiled
def execute(index: Number, clock: Clock) -> Flag:
    """Begin an instruction and do its work. False where that takes too long."""
    stage, moment = clock.facts[index, STAGE], clock.moments[index]
    if clock.facts[index, BITS] & POP_PREV:
        queue = 2 * (stage - 1)
        clock.times[queue, TAKEN, clock.tokens[queue, TAKEN]] = moment[START]
        clock.tokens[queue, TAKEN] += 1
    if clock.facts[index, BITS] & POP_NEXT:
        queue = 2 * stage + 1
        clock.times[queue, TAKEN, clock.tokens[queue, TAKEN]] = moment[START]
        clock.tokens[queue, TAKEN] += 1
    granted = moment[START]
    if clock.facts[index, KIND] != KIND_TOKENS:
        granted += clock.settings[DECODE]
    if clock.facts[index, BEATS]:
        channel = 1 if stage == STORE_STAGE else 0
        granted = max(granted, clock.channels[channel])
        clock.channels[channel] = granted + clock.facts[index, BEATS]
    moment[GRANTED] = granted
    moment[DONE] = granted + clock.facts[index, CYCLES]
    clock.modules[stage, BEGUN] += 1
    clock.modules[stage, UNFINISHED] = index
    return moment[DONE] <= LONGEST


@compiled
def finish(stage: Number, clock: Clock) -> Flag:
    """Give the tokens of a module's instruction; False where it has none, or it is not known when
    their queues are not full."""
    index = clock.modules[stage, UNFINISHED]
    if index == NOBODY:
        return False
    back, on = clock.facts[index, BITS] & PUSH_PREV, clock.facts[index, BITS] & PUSH_NEXT
    before, after = 2 * (stage - 1) + 1, 2 * stage
    if (
        back
        and clock.tokens[before, GIVEN] - clock.settings[TOKEN_QUEUE] >= clock.tokens[before, TAKEN]
    ):
        return False
    if (
        on
        and clock.tokens[after, GIVEN] - clock.settings[TOKEN_QUEUE] >= clock.tokens[after, TAKEN]
    ):
        return False
    end = clock.moments[index, DONE]
    if back:
        end = max(end, room_since(before, clock))
    if on:
        end = max(end, room_since(after, clock))
    if back:
        clock.times[before, GIVEN, clock.tokens[before, GIVEN]] = end
        clock.tokens[before, GIVEN] += 1
    if on:
        clock.times[after, GIVEN, clock.tokens[after, GIVEN]] = end
        clock.tokens[after, GIVEN] += 1
    clock.moments[index, END] = end
    clock.modules[stage, FREED] = end
    clock.modules[stage, UNFINISHED] = NOBODY
    return True


@compiled
def room_since(queue: Number, clock: Clock) -> Number:
    """The cycle from which on a queue that is not full can take its next token."""
    leaver = clock.tokens[queue, GIVEN] - clock.settings[TOKEN_QUEUE]
    return clock.times[queue, TAKEN, leaver] if leaver >= 0 else 0

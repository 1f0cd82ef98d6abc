"""The clock in compiled code: the results of `model`, for streams of any length.

All of it is in this one file, because numba recompiles what it kept when the file of the function
has changed. Where a stream cannot run this gives no reason; `model` does.
"""

from typing import Any

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
from potash_device.vta.fast.compiling import Flag, Number, compiled
from potash_device.vta.timing.model import LONGEST, TRANSFERS
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
KINDS = tuple(int(TRANSFERS[memory]) for memory in MemoryId)

MODULE = LENGTH, BEGUN, QUEUED, FREED, UNFINISHED = tuple(range(5))
"""What is known of a module: how many instructions it gets, how many of them have begun and how
many have been fetched, since when it is free, and the one that has tokens to give."""

GIVEN, TAKEN = range(2)
TOKEN_QUEUES = 4
"""From each module to the next, and back: queue 2s leads from module s on, 2s + 1 back to it."""

NOBODY = -1


def simulate(
    config: Config, parameters: Parameters, code: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Moments and facts of each instruction; None where the stream cannot run."""
    count, rest = divmod(len(code), INSTRUCTION_BYTES)
    if rest or not count:
        return None
    words = np.frombuffer(code, "<u8").reshape(-1, 2)
    numbers = [getattr(parameters, name) for name in NAMES]
    settings = np.array([*numbers, fetch_cycles(parameters)], np.int64)
    sizes = np.array([config.element_bytes(memory) for memory in MemoryId], np.int64)
    moments = np.zeros((count, len(Moments._fields)), np.int64)
    facts = np.zeros((count, len(Facts._fields)), np.int64)
    row = np.zeros(layout.COLUMNS, np.int64)
    if not measure(words, layout.fields(config), settings, sizes, row, facts):
        return None
    ran = run_clock(
        settings,
        facts,
        np.zeros((STAGES, count), np.int64),
        np.zeros((STAGES, len(MODULE)), np.int64),
        np.zeros((TOKEN_QUEUES, 2, count), np.int64),
        np.zeros((TOKEN_QUEUES, 2), np.int64),
        np.zeros(2, np.int64),
        moments,
    )
    if not ran:
        return None
    return moments, facts


@compiled
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


@compiled
def run_clock(
    settings: Any,
    facts: Any,
    waiting: Any,
    modules: Any,
    times: Any,
    tokens: Any,
    channels: Any,
    moments: Any,
) -> Flag:
    """Run the clock; False for a deadlock and for a stream that takes too long.

    Room for: the indices that wait for each module, the modules' states, when tokens were given and
    taken, how many were, and until when the channels are taken.
    """
    count = facts.shape[0]
    for index in range(count):
        stage = facts[index, STAGE]
        waiting[stage, modules[stage, LENGTH]] = index
        modules[stage, LENGTH] += 1
    modules[:, UNFINISHED] = NOBODY
    fetched, done = 0, 0
    while True:
        fetched = fetch(settings, facts, waiting, modules, moments, fetched)
        for stage in range(STAGES):
            if finish(stage, settings, facts, modules, times, tokens, moments):
                done += 1
        first = NOBODY
        for stage in range(STAGES):
            index = ready(stage, facts, waiting, modules, times, tokens, moments, fetched)
            if index != NOBODY and (
                first == NOBODY or moments[index, START] < moments[first, START]
            ):
                first = index
        if first == NOBODY:
            return done == count
        if not execute(first, settings, facts, modules, times, tokens, channels, moments):
            return False


@compiled
def fetch(
    settings: Any, facts: Any, waiting: Any, modules: Any, moments: Any, fetched: Number
) -> Number:
    """Fetch until the next instruction's command queue is full. Gives how many are fetched."""
    while fetched < facts.shape[0]:
        stage = facts[fetched, STAGE]
        leaver = modules[stage, QUEUED] - settings[COMMAND_QUEUE]
        if leaver >= modules[stage, BEGUN]:
            break
        now = moments[fetched - 1, FETCHED] if fetched else settings[LATENCY]
        if leaver >= 0:
            now = max(now, moments[waiting[stage, leaver], START])
        moments[fetched, FETCHED] = now + settings[FETCH]
        modules[stage, QUEUED] += 1
        fetched += 1
    return fetched


@compiled
def ready(
    stage: Number,
    facts: Any,
    waiting: Any,
    modules: Any,
    times: Any,
    tokens: Any,
    moments: Any,
    fetched: Number,
) -> Number:
    """A module's next instruction, where it is known when that begins."""
    place = modules[stage, BEGUN]
    if modules[stage, UNFINISHED] != NOBODY or place == modules[stage, LENGTH]:
        return NOBODY
    index = waiting[stage, place]
    if index >= fetched:
        return NOBODY
    moment = moments[index]
    moment[FREE] = modules[stage, FREED]
    now = max(moment[FREE], moment[FETCHED])
    if facts[index, BITS] & POP_PREV:
        queue = 2 * (stage - 1)
        if tokens[queue, TAKEN] == tokens[queue, GIVEN]:
            return NOBODY
        now = max(now, times[queue, GIVEN, tokens[queue, TAKEN]])
    moment[PREVIOUS] = now
    if facts[index, BITS] & POP_NEXT:
        queue = 2 * stage + 1
        if tokens[queue, TAKEN] == tokens[queue, GIVEN]:
            return NOBODY
        now = max(now, times[queue, GIVEN, tokens[queue, TAKEN]])
    moment[START] = now
    return index


@compiled
def execute(
    index: Number,
    settings: Any,
    facts: Any,
    modules: Any,
    times: Any,
    tokens: Any,
    channels: Any,
    moments: Any,
) -> Flag:
    """Begin an instruction and do its work. False where that takes too long."""
    stage, moment = facts[index, STAGE], moments[index]
    if facts[index, BITS] & POP_PREV:
        queue = 2 * (stage - 1)
        times[queue, TAKEN, tokens[queue, TAKEN]] = moment[START]
        tokens[queue, TAKEN] += 1
    if facts[index, BITS] & POP_NEXT:
        queue = 2 * stage + 1
        times[queue, TAKEN, tokens[queue, TAKEN]] = moment[START]
        tokens[queue, TAKEN] += 1
    granted = moment[START]
    if facts[index, KIND] != KIND_TOKENS:
        granted += settings[DECODE]
    if facts[index, BEATS]:
        channel = 1 if stage == STORE_STAGE else 0
        granted = max(granted, channels[channel])
        channels[channel] = granted + facts[index, BEATS]
    moment[GRANTED] = granted
    moment[DONE] = granted + facts[index, CYCLES]
    modules[stage, BEGUN] += 1
    modules[stage, UNFINISHED] = index
    return moment[DONE] <= LONGEST


@compiled
def finish(
    stage: Number,
    settings: Any,
    facts: Any,
    modules: Any,
    times: Any,
    tokens: Any,
    moments: Any,
) -> Flag:
    """Give the tokens of a module's instruction; False where it has none, or it is not known when
    their queues are not full."""
    index = modules[stage, UNFINISHED]
    if index == NOBODY:
        return False
    back, on = facts[index, BITS] & PUSH_PREV, facts[index, BITS] & PUSH_NEXT
    before, after = 2 * (stage - 1) + 1, 2 * stage
    if back and tokens[before, GIVEN] - settings[TOKEN_QUEUE] >= tokens[before, TAKEN]:
        return False
    if on and tokens[after, GIVEN] - settings[TOKEN_QUEUE] >= tokens[after, TAKEN]:
        return False
    end = moments[index, DONE]
    if back:
        end = max(end, room_since(before, settings, times, tokens))
    if on:
        end = max(end, room_since(after, settings, times, tokens))
    if back:
        times[before, GIVEN, tokens[before, GIVEN]] = end
        tokens[before, GIVEN] += 1
    if on:
        times[after, GIVEN, tokens[after, GIVEN]] = end
        tokens[after, GIVEN] += 1
    moments[index, END] = end
    modules[stage, FREED] = end
    modules[stage, UNFINISHED] = NOBODY
    return True


@compiled
def room_since(queue: Number, settings: Any, times: Any, tokens: Any) -> Number:
    """The cycle from which on a queue that is not full can take its next token."""
    leaver = tokens[queue, GIVEN] - settings[TOKEN_QUEUE]
    return times[queue, TAKEN, leaver] if leaver >= 0 else 0

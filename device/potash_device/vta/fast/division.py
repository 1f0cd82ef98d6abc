"""Division of a stream's steps among threads, each of which has buffers of its own.

A core executes one step after another. To use several processors, independent steps have to be
found. What a core computes depends on DRAM alone wherever a stream loads everything that it uses.
Steps that pass accumulators to one another form a *chain*, such as the products, the ALU operations
and the store of a tile. A chain is executed by one thread; loads, and zeroes, are executed by every
thread whose chains use them. For example, a stream of two tiles that have the same weights,

    0 load weights   1 load inputs   2 products   3 store
                     4 load inputs   5 products   6 store

has the chains 2, 3 and 5, 6. One thread executes steps 0, 1, 2 and 3, the other 0, 4, 5 and 6.

As each thread keeps the stream's order, its buffers hold what the core's would, as far as its
chains read them. Chains that use what the core held before the stream are left to the first thread,
whose buffers are the core's.

In DRAM, a step waits until the other threads are past the last step whose bytes it needs, or
overwrites. That step is earlier in the stream, so some thread can always continue."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.fast import layout
from potash_device.vta.fast import steps as s
from potash_device.vta.fast.compiling import Number, compiled, entry, least, most
from potash_device.vta.fast.execution import Part
from potash_device.vta.fast.pieces import MUL

MOST_USES = 16
"""Maximum number of loads that a step uses, on average over a stream."""
MOST_GRANULES = 1 << 20
"""Maximum number of pieces of DRAM that are distinguished."""

NOTHING = -1


class Chains(NamedTuple):
    """Dependencies between the steps of a stream, and the threads that execute them."""

    parent: NDArray[np.int32]
    """For each step, an earlier step of its chain; the first step of a chain names itself."""
    cost: NDArray[np.int64]
    """Approximate nanoseconds of each step; later of each chain, at its first step."""
    bound: NDArray[np.uint8]
    """1 for a step, later for a chain, that uses what the buffers held before the stream."""
    shared: NDArray[np.uint8]
    """1 for a step that several threads may execute: a load, or zeroes."""
    used: NDArray[np.int32]
    """For each shared step, the last step that was found to use it."""
    uses: NDArray[np.int32]
    """Steps and the shared ones that they use, in order."""
    level: NDArray[np.int32]
    """For each chain, the number of chains that have to be executed one after the other before
    it."""
    total: NDArray[np.int64]
    given: NDArray[np.int64]
    """The cost of all chains of a level, and of those that have been given to a thread."""
    load: NDArray[np.int64]
    """The cost of all steps of a thread."""
    threads: NDArray[np.int64]
    """A bit for each thread that executes a step."""


class Writers(NamedTuple):
    """The last step that wrote each element of a buffer."""

    inp: NDArray[np.int32]
    wgt: NDArray[np.int32]
    acc: NDArray[np.int32]


class Granules(NamedTuple):
    """The part of DRAM that a stream stores to, in granules of `size` bytes from `begin` on."""

    begin: int
    size: int
    stored: NDArray[np.int32]
    """The last step that stored to each granule."""
    loaded: NDArray[np.int32]
    """The last step of each thread that loaded a granule, of shape (threads, granules)."""


class Left(NamedTuple):
    """Elements of a buffer that were last written by another thread than the first."""

    memory: MemoryId
    thread: int
    begin: int
    end: int


class Division(NamedTuple):
    """The steps of each thread, and what has to be copied into the core's buffers afterwards."""

    parts: tuple[Part, ...]
    left: tuple[Left, ...]

    @property
    def size(self) -> int:
        """Steps of all parts."""
        return sum(part.steps.size for part in self.parts)


def divide(
    sink: s.Sink,
    geometry: layout.Geometry,
    config: Config,
    threads: int,
    worth: int,
) -> Division | None:
    """Divide the steps of `sink`. None where that saves less than about `worth` nanoseconds."""
    count = sink.steps.shape[0]
    chains = Chains(
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint8),
        np.zeros(count, np.uint8),
        np.full(count, NOTHING, np.int32),
        np.empty((MOST_USES * count, 2), np.int32),
        np.zeros(count, np.int32),
        np.zeros(count + 1, np.int64),
        np.zeros(count + 1, np.int64),
        np.zeros(threads, np.int64),
        np.zeros(count, np.int64),
    )
    writers = Writers(
        *(
            np.full(config.depth(memory), NOTHING, np.int32)
            for memory in (MemoryId.INP, MemoryId.WGT, MemoryId.ACC)
        )
    )
    found = relate(sink, geometry, chains, writers)
    if found < 0:
        return None
    begin, end = _stored_to(sink, geometry)
    size = int(geometry.sizes[layout.OUT])
    while (end - begin) // size >= MOST_GRANULES:
        size *= 2
    number = -(-(end - begin) // size)
    granules = Granules(
        begin,
        size,
        np.full(number, NOTHING, np.int32),
        np.full((threads, number), NOTHING, np.int32),
    )
    saved = assign(sink, geometry, chains, found, granules)
    if saved < worth:
        return None
    parts = tuple(
        Part(np.empty(each, np.int32), np.full((each, threads), NOTHING, np.int32))
        for each in (np.count_nonzero(chains.threads >> thread & 1) for thread in range(threads))
    )
    for thread, part in enumerate(parts):
        put_in_order(sink, geometry, chains, granules, thread, part)
    return Division(parts, tuple(_left(chains, writers)))


def _stored_to(sink: s.Sink, geometry: layout.Geometry) -> tuple[int, int]:
    """The bytes of DRAM, counted from its first one, between which a stream stores."""
    stores = sink.steps[sink.steps[:, s.KIND] == s.TRANSFER, s.ROW :].astype(np.int64)
    stores = stores[(stores[:, layout.OPCODE] == layout.STORE) & (stores[:, layout.Y_SIZE] > 0)]
    if not stores.size:
        return 0, 0
    first = stores[:, layout.DRAM_BASE] & layout.DRAM_BASE_MASK
    end = first + (stores[:, layout.Y_SIZE] - 1) * stores[:, layout.X_STRIDE]
    size = int(geometry.sizes[layout.OUT])
    base = geometry.base
    begin, last = int(first.min()), int((end + stores[:, layout.X_SIZE]).max())
    return begin * size - base, last * size - base


def _left(chains: Chains, writers: Writers) -> list[Left]:
    """Runs of elements that the core's buffers lack at the end, as another thread wrote them."""
    found = []
    for memory, writer in zip((MemoryId.INP, MemoryId.WGT, MemoryId.ACC), writers, strict=True):
        written = np.flatnonzero(writer >= 0)
        masks = chains.threads[writer[written]]
        elsewhere = written[masks & 1 == 0]
        if not elsewhere.size:
            continue
        bits = masks[masks & 1 == 0]
        lowest = np.log2(bits & -bits).astype(np.int64)
        cuts = np.flatnonzero((np.diff(elsewhere) != 1) | (np.diff(lowest) != 0)) + 1
        begins = np.concatenate(([0], cuts))
        ends = np.concatenate((cuts, [elsewhere.size]))
        found += [
            Left(memory, int(lowest[at]), int(elsewhere[at]), int(elsewhere[end - 1]) + 1)
            for at, end in zip(begins, ends, strict=True)
        ]
    return found


@entry
def relate(sink: s.Sink, geometry: layout.Geometry, chains: Chains, writers: Writers) -> Number:
    """Join steps to chains and find the shared steps that they use. Returns the number of `uses`,
    or -1 where there is no room for them."""
    count = 0
    at = 0
    while at < sink.steps.shape[0]:
        step = sink.steps[at]
        kind = step[s.KIND]
        if count + sink.steps.shape[0] > chains.uses.shape[0]:
            return -1
        if kind == s.PRODUCTS:
            count = _relate_products(step, at, sink.pairs, chains, writers, count)
        elif kind == s.ELEMENTWISE:
            for member in range(at, at + step[s.MEMBERS]):
                count = _relate_elementwise(sink.steps[member], at, chains, writers, count)
            at += step[s.MEMBERS] - 1
        elif kind == s.ZERO:
            chains.shared[at] = 1
            writers.acc[step[s.TARGET] : step[s.TARGET] + step[s.COUNT]] = at
        else:
            count = _relate_transfer(step[s.ROW :], at, geometry, chains, writers, count)
        at += 1
    return count


@compiled
def _relate_products(
    step: Any, at: Number, pairs: Any, chains: Chains, writers: Writers, count: Number
) -> Number:
    positions, lines = np.int64(step[s.COUNT]), np.int64(step[s.LINES])
    for part in range(step[s.BLOCKS] * lines):
        block, line = divmod(part, lines)
        target = np.int64(step[s.TARGET]) + block * np.int64(step[s.BLOCK_STEP])
        target += line * np.int64(step[s.LINE_STEP])
        for position in range(positions):
            element = target + position * step[s.DST_STEP]
            if not step[s.FRESH]:
                count = _use(chains, at, writers.acc[element], count)
            writers.acc[element] = at
        src = np.int64(step[s.SRC]) + block * np.int64(step[s.SRC_BLOCK])
        src += line * np.int64(step[s.SRC_LINE])
        wgt = np.int64(step[s.WGT]) + block * np.int64(step[s.WGT_STEP])
        for number in range(step[s.PAIR], step[s.PAIR] + step[s.PAIRS]):
            count = _use(chains, at, writers.wgt[pairs[number, s.PAIR_WGT] + wgt], count)
            first = pairs[number, s.PAIR_INP] + src
            before = -2
            for position in range(positions):
                writer = writers.inp[first + position * step[s.SRC_STEP]]
                if writer != before:
                    count = _use(chains, at, writer, count)
                    before = writer
    products = positions * lines * step[s.BLOCKS]
    chains.cost[at] = 10 * lines + products * (2 + np.int64(step[s.PAIRS])) // 4
    return count


@compiled
def _relate_elementwise(
    step: Any, at: Number, chains: Chains, writers: Writers, count: Number
) -> Number:
    total, cut = np.int64(step[s.COUNT]), np.int64(step[s.CUT])
    target = np.int64(step[s.TARGET])
    # Schedules zero a plane by multiplying it by 0.
    zeroes = step[s.IMMEDIATE] and step[s.OPCODE] == MUL and step[s.OPERAND] == 0
    for element in range(total):
        if not zeroes:
            count = _use(chains, at, writers.acc[target + element], count)
        if not step[s.IMMEDIATE]:
            run, within = divmod(element, cut)
            operand = np.int64(step[s.OPERAND]) + run * np.int64(step[s.JUMP])
            operand += within * np.int64(step[s.STRIDE])
            count = _use(chains, at, writers.acc[operand], count)
        writers.acc[target + element] = at
    chains.cost[at] += 5 + total // 2
    return count


@compiled
def _relate_transfer(
    row: Any, at: Number, geometry: layout.Geometry, chains: Chains, writers: Writers, count: Number
) -> Number:
    width = row[layout.X_PAD_0] + row[layout.X_SIZE] + row[layout.X_PAD_1]
    height = row[layout.Y_PAD_0] + row[layout.Y_SIZE] + row[layout.Y_PAD_1]
    begin, end = row[layout.SRAM_BASE], row[layout.SRAM_BASE] + width * height
    memory = row[layout.MEMORY_TYPE]
    if row[layout.OPCODE] == layout.STORE:
        for element in range(begin, end):
            count = _use(chains, at, writers.acc[element], count)
        chains.cost[at] = 10 + width * height
        return count
    chains.shared[at] = 1
    chains.cost[at] = 10 + width * height * (12 if memory == layout.WGT else 1)
    if memory == layout.INP:
        writers.inp[begin:end] = at
    elif memory == layout.WGT:
        writers.wgt[begin:end] = at
    else:
        writers.acc[begin:end] = at
    return count


@compiled
def _use(chains: Chains, step: Number, writer: Number, count: Number) -> Number:
    """Record that a step uses what step `writer` has written. Returns the number of `uses`."""
    if writer == step:
        return count
    if writer < 0:
        chains.bound[step] = 1
    elif not chains.shared[writer]:
        _join(chains.parent, step, writer)
    elif chains.used[writer] != step:
        chains.used[writer] = step
        chains.uses[count, 0] = step
        chains.uses[count, 1] = writer
        count += 1
    return count


@compiled
def _first_of(parent: Any, step: Number) -> Number:
    """The first step of a chain."""
    while parent[step] != step:
        parent[step] = parent[parent[step]]
        step = parent[step]
    return step


@compiled
def _join(parent: Any, left: Number, right: Number) -> None:
    left, right = _first_of(parent, left), _first_of(parent, right)
    parent[most(left, right)] = least(left, right)


@entry
def assign(
    sink: s.Sink,
    geometry: layout.Geometry,
    chains: Chains,
    uses: Number,
    granules: Granules,
) -> Number:
    """Choose the threads of all steps. Returns the cost that this saves, in nanoseconds.

    Chains of a level do not depend on each other. Each thread gets some that follow one another, as
    these often use the same weights.
    """
    _find_levels(sink, geometry, chains, uses, granules)
    threads = chains.load.size
    everything = np.int64(0)
    at = 0
    while at < chains.parent.size:
        if not chains.shared[at] and chains.parent[at] == at:
            level = chains.level[at]
            middle = chains.given[level] + chains.cost[at] // 2
            thread = 0
            if not chains.bound[at]:
                thread = least(middle * threads // most(chains.total[level], 1), threads - 1)
            chains.given[level] += chains.cost[at]
            chains.threads[at] = 1 << thread
            chains.load[thread] += chains.cost[at]
            everything += chains.cost[at]
        at += _length(sink, at)
    for use in range(uses):
        first = _first_of(chains.parent, chains.uses[use, 0])
        chains.threads[chains.uses[use, 1]] |= chains.threads[first]
    at = 0
    while at < chains.parent.size:
        if not chains.shared[at]:
            chains.threads[at] = chains.threads[_first_of(chains.parent, at)]
        else:
            if chains.threads[at] == 0:
                chains.threads[at] = 1
            everything += chains.cost[at]
            for thread in range(threads):
                if chains.threads[at] >> thread & 1:
                    chains.load[thread] += chains.cost[at]
        at += _length(sink, at)
    longest = np.int64(0)
    for thread in range(threads):
        longest = most(longest, chains.load[thread])
    return everything - longest


@compiled
def _find_levels(
    sink: s.Sink, geometry: layout.Geometry, chains: Chains, uses: Number, granules: Any
) -> None:
    """Find the level of each chain, and the cost of chains and levels."""
    use, at = 0, 0
    while at < chains.parent.size:
        first = _first_of(chains.parent, at)
        while use < uses and chains.uses[use, 0] == at:
            chains.level[first] = most(chains.level[first], chains.level[chains.uses[use, 1]])
            use += 1
        if first != at:
            chains.cost[first] += chains.cost[at]
            chains.bound[first] |= chains.bound[at]
        if sink.steps[at, s.KIND] == s.TRANSFER:
            row = sink.steps[at, s.ROW :]
            for line in range(row[layout.Y_SIZE]):
                begin, end = _granules_of(row, line, geometry, granules)
                for number in range(begin, end):
                    if row[layout.OPCODE] == layout.STORE:
                        granules.stored[number] = at
                    elif granules.stored[number] >= 0:
                        stored = _first_of(chains.parent, granules.stored[number])
                        chains.level[at] = most(chains.level[at], chains.level[stored] + 1)
        at += _length(sink, at)
    at = 0
    while at < chains.parent.size:
        if not chains.shared[at] and chains.parent[at] == at:
            chains.total[chains.level[at]] += chains.cost[at]
        at += _length(sink, at)


@compiled
def _length(sink: s.Sink, at: Number) -> Number:
    """Number of steps that are executed together with the step `at`, including it."""
    if sink.steps[at, s.KIND] == s.ELEMENTWISE:
        return np.int64(sink.steps[at, s.MEMBERS])
    return np.int64(1)


@compiled
def _granules_of(row: Any, line: Number, geometry: layout.Geometry, granules: Granules) -> Any:
    """First and end of the granules of one line of a LOAD or STORE, as far as the stream stores
    there."""
    size = geometry.sizes[row[layout.MEMORY_TYPE]]
    begin = (row[layout.DRAM_BASE] & layout.DRAM_BASE_MASK) + line * row[layout.X_STRIDE]
    begin = begin * size - geometry.base
    end = begin + row[layout.X_SIZE] * size - granules.begin
    first = most(begin - granules.begin, 0) // granules.size
    return first, least(-(-end // granules.size), granules.stored.size)


@entry
def put_in_order(
    sink: s.Sink,
    geometry: layout.Geometry,
    chains: Chains,
    granules: Granules,
    thread: Number,
    part: Part,
) -> None:
    """Fill `part` with the steps of a thread, and with the steps that each of them waits for."""
    granules.stored[:] = NOTHING
    granules.loaded[:, :] = NOTHING
    filled, at = 0, 0
    while at < chains.parent.size:
        mine = chains.threads[at] >> thread & 1
        if mine:
            part.steps[filled] = at
        if sink.steps[at, s.KIND] == s.TRANSFER:
            row = sink.steps[at, s.ROW :]
            for line in range(row[layout.Y_SIZE]):
                begin, end = _granules_of(row, line, geometry, granules)
                for number in range(begin, end):
                    if mine:
                        _wait(row, number, chains, granules, thread, part.waits[filled])
                    if row[layout.OPCODE] == layout.STORE:
                        granules.stored[number] = at
                        continue
                    for other in range(granules.loaded.shape[0]):
                        if chains.threads[at] >> other & 1:
                            granules.loaded[other, number] = at
        filled += mine
        at += _length(sink, at)


@compiled
def _wait(
    row: Any, number: Number, chains: Chains, granules: Granules, thread: Number, waits: Any
) -> None:
    """Have a transfer of a granule wait for those of other threads that come before it."""
    stored = granules.stored[number]
    if stored >= 0 and not chains.threads[stored] >> thread & 1:
        for other in range(waits.size):
            if chains.threads[stored] >> other & 1:
                waits[other] = most(waits[other], stored)
    if row[layout.OPCODE] == layout.STORE:
        for other in range(waits.size):
            if other != thread:
                waits[other] = most(waits[other], granules.loaded[other, number])

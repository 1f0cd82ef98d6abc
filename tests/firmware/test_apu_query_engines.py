"""Queries of tables in compute namespaces, in a real APU process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from csd_spec.table_plans import Piece
from potash_device.cores import CoreProfile
from potash_firmware.apu import queries
from potash_firmware.apu.checks import Checks
from potash_firmware.apu.engines import Engines
from potash_firmware.mailbox import pair
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    Execute,
    Executed,
    OpenEngine,
    Outcome,
)
from support.apu import program
from support.bpf import exit_, mov
from support.engines import CONFIG as ENGINE_CONFIG
from support.engines import NSID, PAGE, EngineBoard, engine_board
from support.processes import children, name
from support.queries import (
    BY_REGION,
    CHEAP,
    expected_groups,
    expected_rows,
    request,
    rows,
    sales,
    whole,
)
from support.tables import arrow, parquet
from support.workers import PlayedSupervisor

SEVEN = program(mov(0, 7), exit_)


@pytest.fixture(scope="module")
def engines() -> Iterator[EngineBoard]:
    with engine_board(
        replace(ENGINE_CONFIG, limits=replace(ENGINE_CONFIG.limits, engine_workers=2))
    ) as made:
        yield made


@pytest.mark.parametrize("in_data", [False, True])
def test_a_file_in_memory_is_queried(engines: EngineBoard, in_data: bool) -> None:
    data = parquet(sales())
    file, handle = engines.memory(data)
    output, target = engines.memory(pages=8)
    asked_in, asking = engines.memory(pages=1)
    with closing(file), closing(output), closing(asked_in):

        def run(asked: bytes) -> bytes:
            ranges = [(handle, 0, file.size), (target, 0, output.size)]
            if not in_data:
                asked_in.view[: len(asked)] = asked
                ranges.append((asking, 0, PAGE))
            outcome, length = engines.execute(
                DeviceProgram.QUERY, *ranges, data=asked if in_data else b""
            )
            assert outcome is Outcome.RETURNED, engines.texts()
            return bytes(output.view[:length])

        for plan, expected in ((CHEAP, expected_rows()), (BY_REGION, expected_groups())):
            assert rows(whole(plan, len(data), run)[0]) == expected


def test_programs_and_queries_take_turns(engines: EngineBoard) -> None:
    """Many at once, on workers that were there before the first query, too."""
    seven = engines.program(SEVEN)
    data = parquet(sales(10))
    file, handle = engines.memory(data)
    outputs = [engines.memory(pages=1) for _ in range(4)]
    asked = request(BY_REGION, len(data))
    with closing(file):
        tags = [
            (
                engines.begin(seven),
                engines.begin(
                    DeviceProgram.QUERY, (handle, 0, file.size), (target, 0, PAGE), data=asked
                ),
            )
            for _, target in outputs
        ]
        for first, second in tags:
            assert engines.end_of(first) == (Outcome.RETURNED, 7)
            assert engines.end_of(second)[0] is Outcome.RETURNED
    made = {bytes(output.view) for output, _ in outputs}
    assert len(made) == 1
    for output, _ in outputs:
        output.close()


def is_confined(pid: int) -> bool:
    return "Seccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text()


def test_queries_of_one_memory_go_on_each_in_its_worker() -> None:
    """What all pieces of each have counted is what the last one says."""
    limits = replace(ENGINE_CONFIG.limits, engine_workers=2)
    config = replace(ENGINE_CONFIG, limits=limits, processor=CoreProfile())
    data = arrow(sales(), 100)
    with engine_board(config) as engines:
        memory, handle = engines.memory(data, 256)
        size = -(-len(data) // PAGE) * PAGE
        starts = (size, size + 4 * PAGE)

        def begin(start: int, offset: int = 0) -> int:
            asked = request(CHEAP, len(data), offset)
            ranges = (handle, 0, size), (handle, start, 4 * PAGE)
            return engines.begin(DeviceProgram.QUERY, *ranges, data=asked)

        def end(tag: int) -> int:
            engines.until(lambda: tag in engines.ended_executions)
            work = engines.ended_executions.pop(tag).work
            assert work is not None
            return work.queries[0]

        with closing(memory):
            # A worker that is not ready yet leaves both queries to the other one.
            rounds = 0
            while rounds < 20:
                for tag in [begin(start) for start in starts]:
                    end(tag)
                found = children(engines.fork_server())
                workers = [pid for pid in found if name(pid) == "potash-engine"]
                rounds += len(workers) == 2 and all(map(is_confined, workers))
            offsets, decoded = [0, 0], [0, 0]
            for _ in range(12):
                for at, start in enumerate(starts):
                    decoded[at] += end(begin(start, offsets[at]))
                    piece = Piece.decode_head(memory.view[start:])
                    offsets[at] += piece.length
                    assert piece.decoded == decoded[at]


def test_a_query_in_a_compute_namespace_is_cancelled(engines: EngineBoard) -> None:
    data = parquet(sales(200_000))
    file, handle = engines.memory(data)
    output, target = engines.memory(pages=1)
    asked = request(BY_REGION, len(data))
    chosen = random.Random(3)
    with closing(file), closing(output):
        for _ in range(6):
            tag = engines.begin(
                DeviceProgram.QUERY, (handle, 0, file.size), (target, 0, PAGE), data=asked
            )
            if chosen.random() < 0.7:
                engines.until_so(lambda: chosen.random() < 0.2)
            engines.cancel(tag)
            assert engines.end_of(tag)[0] in (Outcome.CANCELLED, Outcome.RETURNED)


def test_without_arrow_a_compute_namespace_refuses_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queries, "PACKAGE", "a_package_that_nobody_has")
    rpu, port = pair()
    with rpu, port, PlayedSupervisor(ENGINE_CONFIG) as supervisor:
        checks = Checks(supervisor, ENGINE_CONFIG.limits)
        engines = Engines(ENGINE_CONFIG, supervisor, checks, port, lambda: 0.0)
        engines.handle(OpenEngine(NSID))
        engines.handle(Execute(5, NSID, DeviceProgram.QUERY))
        assert rpu.receive() == Executed(5, Outcome.REFUSED)
        found = engines.log_of(NSID)
        assert found is not None
        assert found[0].page().entries[-1].text == queries.LACKING


def test_a_query_whose_ranges_make_no_sense_is_refused(engines: EngineBoard) -> None:
    file, handle = engines.memory(b"no table")
    with closing(file):
        place = (handle, 0, PAGE)
        assert engines.execute(DeviceProgram.QUERY, place, place) == (Outcome.REFUSED, 0)
        assert "3 ranges are needed" in engines.texts()[-1]
        asked = request(CHEAP, PAGE)
        assert engines.execute(DeviceProgram.QUERY, place, place, data=asked)[0] is Outcome.REFUSED
        assert "neither a Parquet file nor an Arrow file" in engines.texts()[-1]

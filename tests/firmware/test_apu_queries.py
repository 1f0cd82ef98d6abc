"""Queries of tables on accelerators and in compute namespaces, in a real APU process."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from csd_spec import fields
from csd_spec.descriptors import LogEntryType, encode_arguments
from csd_spec.opcodes import QUERY_FIRMWARE, IoOpcode, Operation
from csd_spec.status import StatusId, VendorStatus
from csd_spec.table_plans import (
    Aggregate,
    Call,
    Column,
    Field,
    Order,
    Piece,
    PieceFlag,
    Plan,
    Request,
    Value,
)
from nvme_spec.status import NvmeError
from potash_device.cores import CoreProfile, Price, Work
from potash_firmware.apu import commands, queries
from potash_firmware.apu.commands import Context
from potash_firmware.apu.config import AcceleratorConfig, NamespaceConfig
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import Subsystem
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import NEXT_HOST, Outcome
from potash_firmware.mailbox.messages import Request as Command
from support.apu import CONFIG, Board, board, program
from support.bpf import exit_, mov
from support.engines import CONFIG as ENGINE_CONFIG
from support.engines import PAGE, EngineBoard, engine_board
from support.processes import children, name
from support.queries import request, sales, whole
from support.tables import arrow, parquet
from support.workers import PlayedSupervisor

MEDIA, OTHER = 256 * PAGE, 128 * PAGE
BLOCK = 512
OUTPUT = 32 * 1024

CHEAP = Plan(where=Call("less", (Column("price"), Value(500))))
"""Half of the rows, which are several pieces."""
BY_REGION = Plan(
    select=(
        Field("region", Column("region")),
        Field(
            "total",
            Aggregate("sum", Call("multiply_checked", (Column("price"), Column("quantity")))),
        ),
    ),
    by=(Field("region", Column("region")),),
    order=(Order("region"),),
)
SEVEN = program(mov(0, 7), exit_)


def expected_rows() -> list[dict[str, Any]]:
    return [row for row in sales().to_pylist() if row["price"] < 500]


def expected_groups() -> list[dict[str, Any]]:
    totals: dict[str, int] = {}
    for row in sales().to_pylist():
        totals[row["region"]] = totals.get(row["region"], 0) + row["price"] * row["quantity"]
    return [{"region": region, "total": totals[region]} for region in sorted(totals)]


def rows(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    namespaces = (NamespaceConfig(1, MEDIA), NamespaceConfig(2, OTHER, BLOCK))
    accelerators = (AcceleratorConfig(0, 128 * PAGE, OUTPUT),)
    with board(replace(CONFIG, accelerators=accelerators, namespaces=namespaces)) as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    booted.reset_controller()
    booted.ended.clear()
    booted.read_error = (0, 0)
    booted.read_checks.clear()
    assert booted.enable() == 0
    assert booted.control(Operation.SELECT_FIRMWARE, firmware=QUERY_FIRMWARE) == 0
    return booted


def grant(apu: Board, start: int, pages: int, nsid: int = 1) -> None:
    cdws = fields.LocalStorage(start, pages, 0).encode()
    assert apu.command(False, IoOpcode.GRANT_LOCAL_STORAGE, cdws, nsid=nsid)[0] == 0


def scatter(apu: Board, data: bytes, extents: Sequence[tuple[int, int, int]]) -> None:
    """Have a file in extents (namespace, first page, pages), which are granted in this order."""
    for nsid, first, pages in extents:
        part, data = data[: pages * PAGE], data[pages * PAGE :]
        apu.media[nsid].view[first * PAGE : first * PAGE + len(part)] = part
        grant(apu, first, pages, nsid)
    assert not data


def job(apu: Board, asked: bytes) -> bytes:
    """The output of a job that ends well."""
    assert (
        apu.control(Operation.START, firmware=QUERY_FIRMWARE, arguments=encode_arguments([asked]))
        == 0
    )
    status = apu.wait()
    assert status.status == StatusId.DONE, apu.log().entries[-1]
    made = apu.read_data(apu.config.accelerators[0].output_size)
    assert status.produced == status.return_value
    assert not any(made[status.produced :])
    return made[: status.produced]


def failure(apu: Board, asked: bytes) -> str:
    """What the log says of a job that fails."""
    apu.forget_log()
    assert (
        apu.control(Operation.START, firmware=QUERY_FIRMWARE, arguments=encode_arguments([asked]))
        == 0
    )
    assert apu.wait().status == StatusId.FAILED
    return apu.log().entries[-1].text


EXTENTS = [(1, 200, 3), (2, 5, 1), (1, 0, 7), (2, 64, 2), (1, 100, 20)]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
def test_a_file_in_granted_blocks_is_queried(apu: Board, compression: str) -> None:
    data = parquet(sales(), compression=compression)
    scatter(apu, data, EXTENTS)
    output, headers = whole(BY_REGION, len(data), lambda asked: job(apu, asked))
    assert rows(output) == expected_groups()
    assert headers[-1].file_rows == 5000


def test_a_result_comes_in_pieces_of_one_execution(apu: Board) -> None:
    data = arrow(sales(), 1000, compression="zstd")
    scatter(apu, data, EXTENTS)
    output, headers = whole(CHEAP, len(data), lambda asked: job(apu, asked))
    assert rows(output) == expected_rows()
    assert len(headers) > 2
    assert all(header.flags == PieceFlag.MORE for header in headers[:-1])
    worker = apu.worker(0)
    # Another program, and a piece from the middle on.
    assert apu.send_firmware(SEVEN) == apu.send_data(b"none") == 0
    assert apu.control(Operation.START, firmware=0) == 0
    assert apu.wait().return_value == 7
    assert apu.worker(0) == worker
    first = headers[0].length
    again = job(apu, request(CHEAP, len(data), first))
    assert again[Piece.RECORD.size :] == output[first:][: headers[1].length]


def test_the_input_is_the_file_where_nothing_is_granted(apu: Board) -> None:
    data = parquet(sales())
    padded = data + bytes(-len(data) % 4)
    assert apu.send_data(padded) == 0
    assert rows(whole(BY_REGION, len(data), lambda asked: job(apu, asked))[0]) == expected_groups()
    apu.media[1].view[: len(data)] = data
    assert apu.local(IoOpcode.LOCAL_INPUT, 0, 3) == 0
    assert apu.local(IoOpcode.APPEND_LOCAL_INPUT, 3, 60) == 0
    assert rows(whole(BY_REGION, len(data), lambda asked: job(apu, asked))[0]) == expected_groups()


def test_the_program_is_chosen_by_its_identifier(apu: Board) -> None:
    assert apu.status().firmware == QUERY_FIRMWARE
    assert apu.send_firmware(SEVEN, QUERY_FIRMWARE) == VendorStatus.INVALID_FIRMWARE
    assert apu.read_firmware(64, QUERY_FIRMWARE)[0] == VendorStatus.INVALID_FIRMWARE
    assert apu.control(Operation.START) == VendorStatus.INVALID_FIRMWARE
    started = apu.control(Operation.START, firmware=QUERY_FIRMWARE)
    assert started == VendorStatus.INVALID_BUFFERS
    assert apu.send_firmware(SEVEN) == 0
    assert apu.control(Operation.SELECT_FIRMWARE, firmware=0) == 0
    assert apu.status().firmware == 0


def test_the_choice_survives_the_loss_of_the_apu(apu: Board) -> None:
    apu.kill()
    apu.boot()
    assert apu.status().firmware == QUERY_FIRMWARE
    data = parquet(sales(10))
    scatter(apu, data, [(1, 0, 8)])
    assert rows(job(apu, request(CHEAP, len(data)))[Piece.RECORD.size :])


def test_without_arrow_the_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PACKAGE", "a_package_that_nobody_has")
    with PlayedSupervisor(CONFIG) as supervisor, Board(CONFIG) as made:
        subsystem = Subsystem.create(CONFIG, lambda: 0.0)
        subsystem.enabled = True
        jobs = Jobs(CONFIG, subsystem.accelerators, supervisor, lambda message: None)
        context = Context(CONFIG, subsystem, jobs, made.buffers)
        cdws = fields.Control(Operation.START, 0, QUERY_FIRMWARE).encode()
        with pytest.raises(NvmeError, match=r"pip install 'potash\[columns\]'") as refused:
            commands.dispatch(context, Command(1, False, IoOpcode.CONTROL, 1, cdws))
        assert refused.value.status == VendorStatus.INVALID_FIRMWARE
        (entry,) = subsystem.accelerators[0].log.page().entries
        assert entry.type == LogEntryType.INVALID_FIRMWARE


def test_a_block_that_is_lost_fails_the_jobs_that_read_it(apu: Board) -> None:
    """Statistics say that the last row group has nothing."""
    data = parquet(sales(), row_group_size=1000, compression="none", use_dictionary=False)
    scatter(apu, data, [(1, 0, 120)])
    few = Plan(
        where=Call("greater", (Column("price"), Value(999))),
        select=(Field("n", Aggregate("count_all")),),
    )
    apu.read_error = (5, 8 * PAGE)
    checks = iter([(5, 8 * PAGE), (0, 0)])
    answer = apu.port.send

    def once(message: Any) -> None:
        if hasattr(message, "at"):
            message = replace(message, error=(found := next(checks))[0], at=found[1])
        answer(message)

    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patched:
        patched.setattr(apu.port, "send", once)
        assert rows(job(apu, request(few, len(data)))[Piece.RECORD.size :]) == [{"n": 0}]
        checks = iter([(5, 8 * PAGE), (0, 0)])
        assert failure(apu, request(BY_REGION, len(data))) == "block 8 of namespace 1 is lost"
    assert apu.log_types()[-1] == LogEntryType.INVALID_INPUT_BUFFER


def test_a_file_may_have_a_thousand_extents(apu: Board) -> None:
    """They are checked by few messages."""
    for page in range(1024):
        grant(apu, page % (MEDIA // PAGE), 1)
    cdws = fields.LocalStorage(0, 1, 0).encode()
    refused = apu.command(False, IoOpcode.GRANT_LOCAL_STORAGE, cdws)[0]
    assert refused == VendorStatus.INVALID_BUFFERS
    data = parquet(sales())
    apu.media[1].view[: len(data)] = data
    assert rows(whole(BY_REGION, len(data), lambda asked: job(apu, asked))[0]) == expected_groups()
    assert len(apu.read_checks) <= 8


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (b"", "no Request"),
        (request(CHEAP, 1 << 40), "can be read"),
        (Request(plan_size=2, file_size=PAGE).encode() + b"{}", "version"),
        (request(Plan(where=Column("prize")), PAGE), "file"),
    ],
)
def test_a_request_that_makes_no_sense_fails_its_job(apu: Board, asked: bytes, said: str) -> None:
    grant(apu, 0, 1)
    assert said in failure(apu, asked)


def test_a_query_has_one_argument(apu: Board) -> None:
    grant(apu, 0, 1)
    assert apu.control(Operation.START, firmware=QUERY_FIRMWARE) == 0
    assert apu.wait().status == StatusId.FAILED
    assert apu.log().entries[-1].text == "a query has 1 argument, its request, not 0"


def test_hostile_files_cost_a_job_each(apu: Board) -> None:
    chosen = random.Random(39)
    sound = [parquet(sales(300)), arrow(sales(300), compression="lz4")]
    grant(apu, 0, 32)
    for number in range(40):
        data = bytearray(sound[number % 2])
        if number % 4 < 2:
            del data[chosen.randrange(len(data)) :]
        for _ in range(chosen.randrange(1, 5)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        apu.media[1].view[: len(data)] = bytes(data)
        arguments = encode_arguments([request(BY_REGION, len(data))])
        assert apu.control(Operation.START, firmware=QUERY_FIRMWARE, arguments=arguments) == 0
        assert apu.wait().status in (StatusId.DONE, StatusId.FAILED)
    apu.media[1].view[: len(sound[0])] = sound[0]
    assert len(rows(job(apu, request(BY_REGION, len(sound[0])))[Piece.RECORD.size :])) == 7


def test_a_worker_that_is_lost_costs_its_job(apu: Board) -> None:
    data = arrow(sales(), 1000, compression="zstd")
    scatter(apu, data, EXTENTS)
    first = job(apu, request(CHEAP, len(data)))
    worker = apu.worker(0)
    os.kill(worker, signal.SIGSEGV)
    length = Piece.decode_head(first).length
    apu.until_so(lambda: apu.workers(0) not in ([], [worker]))
    _, headers = whole(CHEAP, len(data), lambda asked: job(apu, asked))
    assert headers[0].length == length


def kill_workers(apu: Board) -> None:
    for pid in apu.workers(0):
        os.kill(pid, signal.SIGKILL)


def test_a_query_is_interrupted_at_any_moment(apu: Board) -> None:
    """Stopped, reset, or its worker killed; the next one is answered."""
    data = parquet(sales(), row_group_size=100)
    chosen = random.Random(39)
    arguments = encode_arguments([request(BY_REGION, len(data))])
    interruptions: list[Callable[[], object]] = [
        lambda: apu.control(Operation.STOP),
        lambda: apu.control(Operation.RESET),
        apu.reset_controller,
        lambda: kill_workers(apu),
    ]
    for number in range(12):
        assert apu.enable() == 0
        apu.ended.clear()
        cdws = fields.LocalStorage(0, 60, 0, replace=True).encode()
        assert apu.command(False, IoOpcode.GRANT_LOCAL_STORAGE, cdws)[0] == 0
        apu.media[1].view[: len(data)] = data
        assert apu.control(Operation.START, firmware=QUERY_FIRMWARE, arguments=arguments) == 0
        time.sleep(chosen.random() * 0.03)
        interruptions[number % 4]()
        apu.until_so(lambda: apu.status().status != StatusId.RUNNING)
    assert apu.enable() == apu.grant(0, 60, replace=True) == 0
    apu.ended.clear()
    output, _ = whole(BY_REGION, len(data), lambda asked: job(apu, asked))
    assert rows(output) == expected_groups()


def test_a_worker_that_has_run_a_query_is_replaced_for_the_next_host(apu: Board) -> None:
    data = arrow(sales(10))
    scatter(apu, data, [(1, 0, 8)])
    job(apu, request(CHEAP, len(data)))
    worker = apu.worker(0)
    apu.reset_controller(NEXT_HOST)
    assert apu.status().firmware is None
    apu.until_so(lambda: apu.workers(0) not in ([], [worker]))


LIMIT = 192 << 20


def test_a_query_that_takes_too_much_memory_fails() -> None:
    limits = replace(CONFIG.limits, memory=LIMIT)
    namespaces = (NamespaceConfig(1, 4096 * PAGE),)
    with board(replace(CONFIG, limits=limits, namespaces=namespaces)) as apu:
        assert apu.enable() == 0
        table = sales(1_000_000)
        data = parquet(table, compression="zstd")
        scatter(apu, data, [(1, 0, 4096)])
        everything = Plan(order=(Order("price"), Order("quantity")))
        assert "the 192 MiB that it may have" in failure(apu, request(everything, len(data)))
        assert job(apu, request(BY_REGION, len(data)))


def test_the_time_of_a_query_is_that_of_its_counters() -> None:
    cycles = (1000, 20_000, 300_000, 4_000_000)
    profile = CoreProfile(dispatch_ns=7, clock_hz=1_000_000_000, query_cycles=cycles)
    with board(replace(CONFIG, processor=profile, namespaces=(NamespaceConfig(1, MEDIA),))) as apu:
        assert apu.enable() == 0
        data = parquet(sales(), row_group_size=500, compression="none")
        scatter(apu, data, [(1, 0, 60)])
        sizes: list[int] = []

        def run(asked: bytes) -> bytes:
            made = job(apu, asked)
            sizes.append(len(made))
            return made

        for plan in (CHEAP, BY_REGION):
            apu.counted.clear()
            sizes.clear()
            _, headers = whole(plan, len(data), run)
            last = headers[-1]
            counts = (last.decoded, last.compared, last.hashed, last.aggregated)
            assert all(counts[:2])
            works = [counted.work for counted in apu.counted]
            assert tuple(map(sum, zip(*(work.queries for work in works), strict=True))) == counts
            assert [work.bytes for work in works] == sizes
            assert all(work == Work(bytes=work.bytes, queries=work.queries) for work in works)
            expected = 7 * len(works) + sum(
                count * cycle // 1000 for count, cycle in zip(counts, cycles, strict=True)
            )
            moved = sum(-(-work.bytes // 4) for work in works)
            spent = sum(map(Price(profile), works))
            assert abs(spent - expected - moved) <= len(works)
            read = sum(item.length for counted in apu.counted for item in counted.reads)
            first = apu.counted[0].work.queries
            run(request(plan, len(data)))  # begins it anew
            assert apu.counted[-1].work.queries == first
            assert last.read <= read


# Compute namespaces


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
            workers: list[int] = []
            while len(workers) < 2:
                for tag in [begin(start) for start in starts]:
                    end(tag)
                found = children(engines.fork_server())
                workers = [pid for pid in found if name(pid) == "potash-engine"]
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


def test_a_query_whose_ranges_make_no_sense_is_refused(engines: EngineBoard) -> None:
    file, handle = engines.memory(b"no table")
    with closing(file):
        place = (handle, 0, PAGE)
        assert engines.execute(DeviceProgram.QUERY, place, place) == (Outcome.REFUSED, 0)
        assert "3 ranges are needed" in engines.texts()[-1]
        asked = request(CHEAP, PAGE)
        assert engines.execute(DeviceProgram.QUERY, place, place, data=asked)[0] is Outcome.REFUSED
        assert "neither a Parquet file nor an Arrow file" in engines.texts()[-1]

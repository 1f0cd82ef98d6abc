"""Queries of tables on accelerators, in a real APU process."""

from __future__ import annotations

import datetime
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
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
from potash_device.cores import CODECS, CoreProfile, Price, Work
from potash_firmware.apu import commands, queries
from potash_firmware.apu.commands import Context
from potash_firmware.apu.config import AcceleratorConfig, NamespaceConfig
from potash_firmware.apu.jobs import Jobs
from potash_firmware.apu.model import Subsystem
from potash_firmware.mailbox.messages import NEXT_HOST
from potash_firmware.mailbox.messages import Request as Command
from support.apu import CONFIG, Board, board, program
from support.bpf import exit_, mov
from support.engines import PAGE
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

MEDIA, OTHER = 256 * PAGE, 128 * PAGE
BLOCK = 512
OUTPUT = 32 * 1024

SEVEN = program(mov(0, 7), exit_)


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


def test_hours_of_a_time_zone_are_known_to_a_confined_worker(apu: Board) -> None:
    winter = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    times = pa.array([winter, winter + datetime.timedelta(days=180)])
    data = parquet(pa.table({"t": times.cast(pa.timestamp("us", "Europe/Berlin"))}))
    scatter(apu, data, [(1, 0, 8)])
    plan = Plan(select=(Field("hour", Call("hour", (Column("t"),))),))
    made = rows(job(apu, request(plan, len(data)))[Piece.RECORD.size :])
    assert made == [{"hour": 13}, {"hour": 14}]


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
        lambda: kill_workers(apu),  # not last: the next job may be given to the lost worker
        lambda: apu.control(Operation.STOP),
        lambda: apu.control(Operation.RESET),
        apu.reset_controller,
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


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_time_of_a_query_is_that_of_its_counters(codec: str) -> None:
    cycles = (1000, 20_000, 300_000, 4_000_000, 0, 0, 50_000, 0, 0)
    profile = CoreProfile(dispatch_ns=7, clock_hz=1_000_000_000, query_cycles=cycles)
    with board(replace(CONFIG, processor=profile, namespaces=(NamespaceConfig(1, MEDIA),))) as apu:
        assert apu.enable() == 0
        data = parquet(sales(), row_group_size=500, compression=codec)
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
            by_codec = [last.decoded * (each == codec) for each in CODECS]
            counts = (last.decoded, last.compared, last.hashed, last.aggregated, *by_codec)
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

"""Execute Chain: several executions by one command, with the test in the engine's place."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from csd_spec import chains
from csd_spec.chains import ChainRange, ChainStep, StepFlag
from csd_spec.opcodes import ChainOpcode
from potash_device.cores import Work
from potash_firmware.mailbox.messages import Outcome
from support.compute import COMPUTE, MEMORY, PRP2, SMALL, ComputeHost, compute_host
from support.modelled_time import PRICE, SECOND, with_core
from support.nvme_host import DATA, PAGE, Queue

INVALID_FIELD, INTERNAL_ERROR, INVALID_SET, INVALID_INDEX = 0x002, 0x006, 0x18C, 0x18F
ABORTED, DELETED, NOT_ACTIVATED = 0x007, 0x008, 0x198

FIRST, SECOND_HALF = ChainRange(MEMORY, PAGE, 0), ChainRange(MEMORY, PAGE, PAGE)
STEPS = (
    ChainStep(0, 0, 1, 2, (FIRST, SECOND_HALF)),
    ChainStep(1, StepFlag.PREVIOUS, 99, 3, (SECOND_HALF,)),
    ChainStep(0, 0, 5, 6, ()),
)


@pytest.fixture
def host() -> Iterator[ComputeHost]:
    with compute_host() as host:
        yield host


@pytest.fixture
def queue(host: ComputeHost) -> Queue:
    return host.create_io_queue()


def begin(host: ComputeHost, queue: Queue, data: bytes, cid: int = 1) -> None:
    host.put(data)
    dwords = len(data) // 4
    host.place(
        queue, ChainOpcode.EXECUTE_CHAIN, cid, nsid=COMPUTE, cdws=(dwords,), prp1=DATA, prp2=PRP2
    )
    host.ring(queue)
    host.service()


def test_steps_run_one_after_another_and_the_last_value_is_the_result(
    host: ComputeHost, queue: Queue
) -> None:
    begin(host, queue, chains.encode(STEPS))
    seen = []
    for value in (0x1_0000_0002, 77, 0xFEDC_BA98_7654_3210):
        (asked,) = host.engine.asked
        places = [(one.offset, one.length) for one in asked.ranges]
        seen.append((asked.program, asked.parameters, places))
        assert host.reap(queue) == []
        host.engine.end(value=value)
        host.service()
    assert seen == [
        (0, (1, 2), [(0, PAGE), (PAGE, PAGE)]),
        (1, (0x1_0000_0002, 3), [(PAGE, PAGE)]),
        (0, (5, 6), []),
    ]
    (done,) = host.reap(queue)
    assert (done.status, done.dw0, done.dw1) == (0, 0x7654_3210, 0xFEDC_BA98)


@pytest.mark.parametrize("failing", range(3))
@pytest.mark.parametrize(
    ("outcome", "status"), [(Outcome.FAULTED, INTERNAL_ERROR), (Outcome.LOST, INTERNAL_ERROR)]
)
def test_no_step_begins_after_one_that_fails(
    host: ComputeHost, queue: Queue, failing: int, outcome: Outcome, status: int
) -> None:
    begin(host, queue, chains.encode(STEPS))
    for _ in range(failing):
        host.engine.end(value=0)
        host.service()
    host.engine.end(outcome=outcome)
    ((cid, found, _),) = host.answers(queue)
    assert (cid, found) == (1, status)
    assert not host.engine.asked
    state = host.rpu.controller.compute.of(COMPUTE)
    assert not state.runs.running, "the units are free"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", INVALID_FIELD),
        (bytes(8), INVALID_FIELD),
        (chains.encode(STEPS)[:-4], INVALID_FIELD),
        (b"\2" + chains.encode(STEPS)[1:], INVALID_FIELD),
        (chains.encode([*STEPS, ChainStep(0, 2)]), INVALID_FIELD),
        (chains.encode([*STEPS, ChainStep(999)]), INVALID_INDEX),
        (chains.encode([*STEPS, ChainStep(0, ranges=(ChainRange(MEMORY, 5, 0),))]), INVALID_SET),
    ],
)
def test_a_chain_that_cannot_be_is_refused_before_anything_runs(
    host: ComputeHost, queue: Queue, data: bytes, status: int
) -> None:
    begin(host, queue, data)
    ((_, found, dnr),) = host.answers(queue)
    assert (found, dnr) == (status, True)
    assert not host.engine.asked


@pytest.mark.parametrize("ended", range(3))
@pytest.mark.parametrize("how", ["abort", "deletion", "reset"])
def test_a_chain_can_be_stopped_at_every_step(
    host: ComputeHost, queue: Queue, ended: int, how: str
) -> None:
    begin(host, queue, chains.encode(STEPS), cid=9)
    for _ in range(ended):
        host.engine.end(value=0)
        host.service()
    (asked,) = host.engine.asked
    if how == "abort":
        host.place(host.admin, 0x08, 99, cdws=(9 << 16 | queue.qid,))
    elif how == "deletion":
        host.place(host.admin, 0x00, 99, cdws=(queue.qid,))
    if how == "reset":
        host.disable()
    else:
        host.ring(host.admin)
    host.service()
    assert asked.cancelled
    host.engine.end_cancelled()
    host.service()
    assert not host.engine.asked, "no further step has begun"
    assert not host.rpu.controller.compute.of(COMPUTE).runs.running


def test_steps_take_their_modelled_time_one_after_another() -> None:
    with compute_host(replace(SMALL, units=4), with_core()) as host:
        host.now = 1.0
        queue = host.create_io_queue()
        begin(host, queue, chains.encode(STEPS))
        end, works = SECOND, [Work((count,) + (0,) * 7) for count in (1000, 2000, 3000)]
        for work in works:
            host.engine.end(value=0, work=work)
            end += PRICE(work)
            host.now = (end - 1) / SECOND
            host.service()
            assert host.reap(queue) == []
            host.now = end / SECOND
            host.service()
        assert [one.status for one in host.reap(queue)] == [0]

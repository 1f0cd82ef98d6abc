"""Execute Chain: several executions by one command, with the test in the engine's place."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from csd_spec import chains
from csd_spec.chains import ChainRange, ChainStep, StepFlag
from csd_spec.opcodes import ChainOpcode
from potash_device.cores import Work
from potash_firmware.mailbox.messages import Outcome
from potash_firmware.rpu.compute.runs import RUN_LIMIT
from support.compute import ACTIVATION, COMPUTE, MEMORY, PRP2, SMALL, ComputeHost, compute_host
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
    host.service()
    (done,) = host.reap(queue)
    assert (done.cid, done.status, done.dw0) == (1, status, failing)
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


class Mixed:
    """Chains and single executions on a few units, whose engine ends when the test says so."""

    def __init__(self, random: Random, host: ComputeHost) -> None:
        self.random, self.host = random, host
        host.now = 1.0
        self.others = [host.create_io_queue(qid) for qid in range(1, 4)]
        self.queue = self.others.pop()
        self.cids = iter(range(1, 1 << 16))
        self.steps: dict[int, int] = {}
        """Steps of each command that has not completed, by its identifier."""
        self.begun: dict[int, int] = {}
        """Steps that the engine has been asked for."""
        self.returned: dict[int, int] = {}

    def submit(self) -> None:
        if len(self.steps) > 8:
            return
        cid, count = next(self.cids), self.random.randint(1, 5)
        self.steps[cid], self.begun[cid], self.returned[cid] = count, 0, 0
        flags = [StepFlag(0), StepFlag.PREVIOUS]
        steps = [
            ChainStep(at % 2, self.random.choice(flags), 0, cid << 16 | at, (FIRST, SECOND_HALF))
            for at in range(count)
        ]
        begin(self.host, self.queue, chains.encode(steps), cid)

    def end(self) -> None:
        """Have an execution end, which may have been cancelled."""
        if not self.host.engine.asked:
            return
        asked = self.random.choice(self.host.engine.asked)
        cid = asked.parameters[1] >> 16
        outcome = self.random.choice([Outcome.RETURNED] * 8 + [Outcome.FAULTED, Outcome.LOST])
        if asked.cancelled:
            outcome = self.random.choice([outcome, Outcome.CANCELLED, Outcome.CANCELLED])
        work = Work((self.random.randrange(2000),) + (0,) * 7)
        if outcome in (Outcome.LOST, Outcome.CANCELLED):
            work = None  # type: ignore[assignment]  # its counts are lost with its worker
        if cid in self.steps and outcome is Outcome.RETURNED:
            self.returned[cid] += 1
        self.host.engine.end(asked, outcome=outcome, work=work)

    def admin(self, opcode: int, dword: int, nsid: int = 0) -> None:
        cid = next(self.cids)
        self.host.place(self.host.admin, opcode, cid, nsid=nsid, cdws=(dword,))
        self.host.ring(self.host.admin)
        self.host.service()

    def abort(self) -> None:
        if self.steps:
            self.admin(0x08, self.random.choice(list(self.steps)) << 16 | self.queue.qid)

    def delete_queue(self) -> None:
        if self.others:
            self.admin(0x00, self.queue.qid)
            self.settle_engine()
            self.steps.clear()
            self.queue = self.others.pop()

    def deactivate(self) -> None:
        """Deactivate a program for a moment, if no step runs it."""
        self.admin(ACTIVATION, 1, COMPUTE)
        self.admin(ACTIVATION, 1 | 1 << 16, COMPUTE)

    def advance(self) -> None:
        self.host.now += self.random.choice([1e-7, 1e-6, 1e-5])

    def settle_engine(self) -> None:
        for _ in range(10):
            self.host.engine.end_cancelled()
            self.host.service()

    def check(self) -> None:
        self.host.service()
        for asked in self.host.engine.asked:
            cid, step = asked.parameters[1] >> 16, asked.parameters[1] & 0xFFFF
            if step == self.begun[cid]:
                assert cid in self.steps, "a step has begun after its chain's end"
                assert self.returned[cid] == step, "a step has not waited for the one before"
                self.begun[cid] += 1
            assert step == self.begun[cid] - 1, "a step runs twice, or two run at once"
        for done in self.host.reap(self.queue):
            steps = self.steps.pop(done.cid)  # of a command that has not completed
            assert done.status or self.returned[done.cid] == steps
        self.host.reap(self.host.admin)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("is_modelled", [False, True], ids=["plain", "modelled"])
def test_nothing_is_lost_or_leaked_whatever_happens(seed: int, is_modelled: bool) -> None:
    random, time = Random(seed), with_core() if is_modelled else None
    units = random.randint(1, 3)
    with compute_host(replace(SMALL, units=units), time) as host:
        mixed = Mixed(random, host)
        events: list[tuple[Callable[[], None], int]] = [
            (mixed.submit, 6), (mixed.end, 8), (mixed.abort, 2), (mixed.advance, 8),
            (mixed.deactivate, 1), (mixed.delete_queue, 1),
        ]  # fmt: skip
        actions, weights = zip(*events, strict=True)
        for action in random.choices(actions, weights, k=80):
            action()
            mixed.check()
        for _ in range(1000):
            mixed.end()
            host.now += 1e-3
            mixed.check()
        assert not mixed.steps, "a command has no completion"
        # All places with the engine, and all units, are free: four executions take their turns.
        began, work = host.now, Work((1000,) + (0,) * 7)
        for cid in range(RUN_LIMIT):
            begin(host, mixed.queue, chains.encode(STEPS[:1]), 0x1_0000 - RUN_LIMIT + cid)
        assert len(host.engine.asked) == RUN_LIMIT
        for _ in range(RUN_LIMIT):
            host.engine.end(work=work)
        host.service()
        if is_modelled:
            host.now = began + (-(-RUN_LIMIT // units) * PRICE(work) + 1) / SECOND
            host.service()
        assert [done.status for done in host.reap(mixed.queue)] == [0] * RUN_LIMIT

"""What was acknowledged is there after a loss of power, at whatever point it comes.

A host writes, flushes and writes with FUA, some of it at the same time; the media executor works in
any order. Then the media's log is cut at each of its lines, and what each block may hold there is
compared with what the host was promised by then.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import chain

import pytest

from potash_device.media.shapes import NamespaceShape
from support.nvme_host import DATA, PAGE, Host, Queue
from support.recording import Life, Line, RecordingMedia, Step, may_remain

FLUSH, WRITE = 0, 1
FUA = 1 << 30
BLOCKS = 8
ROUNDS = 40


class Promises:
    """A host that keeps book of what it was told. `play` does something at random."""

    def __init__(self, host: Host, media: RecordingMedia, seed: int) -> None:
        self.host = host
        self.media = media
        self.random = random.Random(seed)
        self.lives: dict[int, list[Life]] = {block: [] for block in range(BLOCKS)}
        self.unanswered: dict[int, tuple[int, bool, list[Life]]] = {}
        """By identifier: when it was submitted, whether it makes things durable, what it writes."""
        self.cid = 0
        host.board.trace.sink = self.trace

    def trace(self, point: str, known: Mapping[str, object]) -> None:
        """The firmware answers: from here on the host may rely on it."""
        if point != "rpu.complete" or known["qid"] != 1:
            return
        cid = known["cid"]
        assert isinstance(cid, int) and known["status"] == 0
        at = self.media.note(("answered", cid))
        submitted, durable, lives = self.unanswered.pop(cid)
        for life in lives:
            life.ended = at
            life.durable = at if durable else None
        if durable and not lives:  # a flush: all that was answered before it was asked for
            for life in chain.from_iterable(self.lives.values()):
                if life.ended is not None and life.ended < submitted and life.durable is None:
                    life.durable = at

    def submit(self, queue: Queue) -> None:
        """A write of one to three blocks, with or without FUA, or a flush."""
        self.cid += 1
        at = self.media.note(("submitted", self.cid))
        size = self.media.block_size
        if self.random.random() < 0.25:
            self.unanswered[self.cid] = (at, True, [])
            self.host.place(queue, FLUSH, self.cid, nsid=1)
            return
        count = self.random.randint(1, 3)
        first = self.random.randrange(BLOCKS - count + 1)
        fua = self.random.random() < 0.3
        page = DATA + self.cid % 32 * 4 * PAGE
        lives = []
        for index in range(count):
            content = self.random.randbytes(8) * (size // 8)
            self.host.put(content, page + index * size)
            lives.append(Life(content, at))
            self.lives[first + index].append(lives[-1])
        self.unanswered[self.cid] = (at, fua, lives)
        prps = page + 3 * PAGE
        self.host.put(b"".join((page + n * PAGE).to_bytes(8, "little") for n in (1, 2)), prps)
        prp2 = prps if count * size > 2 * PAGE else page + PAGE
        self.host.place(
            queue, WRITE, self.cid, nsid=1, prp1=page, prp2=prp2,
            cdws=(first, 0, count - 1 | FUA * fua),
        )  # fmt: skip

    def play(self, queue: Queue) -> None:
        for _ in range(ROUNDS):
            for _ in range(self.random.randint(0, 3)):
                if len(self.unanswered) < 12:
                    self.submit(queue)
            self.host.ring(queue)
            self.host.service()
            waiting = self.host.executor.waiting
            for _ in range(self.random.randint(0, len(waiting))):
                self.host.executor.run_next(self.random.randrange(len(waiting)))
            self.host.service()
            self.host.reap(queue)
        while self.unanswered:
            self.host.executor.run_all()
            self.host.service()
            self.host.reap(queue)

    def check(self) -> None:
        """Cut the log at every line. Raises AssertionError for the first broken promise."""
        zeroes = Life(bytes(self.media.block_size), -1, -1, -1)
        for cut in range(len(self.media.log) + 1):
            for block, lives in self.lives.items():
                found = self.media.after_power_loss(block, cut)
                assert found <= may_remain([zeroes, *lives], cut), (cut, block)


def recorded(kind: type[RecordingMedia], seed: int, block_size: int = 4096) -> Promises:
    media = kind.with_blocks(BLOCKS * block_size, block_size)
    shapes = {1: NamespaceShape(media.size, block_size)}
    with Host({1: media}, shapes=shapes) as host:
        host.enable()
        queue = host.create_io_queue()
        promises = Promises(host, media, seed)
        promises.play(queue)
        host.board.trace.sink = None
    return promises


@pytest.mark.parametrize("block_size", [512, 4096])
@pytest.mark.parametrize("seed", range(6))
def test_a_loss_of_power_at_any_point_breaks_no_promise(seed: int, block_size: int) -> None:
    promises = recorded(RecordingMedia, seed, block_size)
    steps = {line.step for line in promises.media.log}
    assert steps == set(Step)
    promises.check()


class FlushesNothing(RecordingMedia):
    """Says that it has flushed."""

    def flush(self) -> None:
        pass


class FlushesFirst(RecordingMedia):
    """Mixes up the order of a durable write."""

    def write_from(self, views: Sequence[memoryview], offset: int) -> None:
        super().flush()
        super().write_from(views, offset)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("kind", [FlushesNothing, FlushesFirst])
def test_media_that_lie_are_found_out(kind: type[RecordingMedia]) -> None:
    promises = recorded(kind, 1)
    with pytest.raises(AssertionError):
        promises.check()


def test_a_part_of_a_block_is_never_written_alone() -> None:
    media = RecordingMedia.create(1 << 16)
    with pytest.raises(ValueError, match="whole blocks"):
        media.write_from([memoryview(bytes(512))], 4096)
    media.close()


def test_the_order_of_a_durable_write_is_write_then_flush_then_answer() -> None:
    media = RecordingMedia.create(1 << 16)
    with Host({1: media}) as host:
        host.enable()
        queue = host.create_io_queue()

        def trace(point: str, known: Mapping[str, object]) -> None:
            if point == "rpu.complete" and known["qid"]:
                media.note("answer")

        host.board.trace.sink = trace
        assert host.command(queue, WRITE, nsid=1, cdws=(1, 0, FUA)).status == 0
        host.board.trace.sink = None
    assert media.log[:5] == [
        Line(Step.WRITE_BEGUN, (4096, 4096)),
        Line(Step.WRITE_ENDED, (4096, 4096)),
        Line(Step.FLUSH_BEGUN),
        Line(Step.FLUSH_ENDED),
        Line(Step.NOTED, "answer"),
    ]


def test_what_is_written_without_a_flush_may_be_lost_and_with_one_may_not() -> None:
    media = RecordingMedia.create(1 << 16)
    old, new = bytes(4096), b"n" * 4096
    media.write_from([memoryview(new)], 0)
    assert media.after_power_loss(0, len(media.log)) == {old, new}
    media.flush()
    assert media.after_power_loss(0, len(media.log) - 1) == {old, new}
    assert media.after_power_loss(0, len(media.log)) == {new}
    assert media.after_power_loss(0, 0) == {old}
    media.close()

"""Everything that a host can do to blocks, against a dictionary.

Up to three namespaces, of blocks of 512 or of 4096 bytes, through real queues. Commands that touch
different blocks are under way together and end in whatever order the media likes; at any moment a
reset may come, or the process may be killed and begin anew with the files that it had. What was not
acknowledged by then is old or new, block by block; all else is what the dictionary says.

Namespaces are formatted, made, taken away, attached, detached and sanitized, and a reset or a kill
may come there, too: after a reset it is done all the same, after a kill wholly or not at all.
"""

import struct
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from support.blocks_model import (
    AD,
    BAD,
    BLOCKS,
    COMPARE,
    COPY,
    DEAC,
    DSM,
    ERASE,
    FLUSH,
    FORMATS,
    FUA,
    HOLE,
    INSUFFICIENT_CAPACITY,
    MOST,
    OVERWRITE,
    READ,
    SIZE,
    UNCORRECTABLE,
    VERIFY,
    WRITE,
    ZEROES,
    Block,
    Change,
    HostOfBlocks,
)
from support.namespaces import ATTACH, FORMAT, MANAGE, SANITIZE, begin, finish, namespace, nsids
from support.nvme_host import PAGE

which = st.integers(0, MOST - 1)
"""One of the namespaces that are attached, or that there are."""
ends = st.sampled_from(["well", "well", "reset", "kill"])
lbas = st.integers(0, BLOCKS - 1)
contents = st.integers(1, 3)


class Blocks(HostOfBlocks):
    """The host's and the media's steps."""

    # The host.

    @rule(
        one=which, lba=lbas, count=st.integers(1, 2), content=contents,
        flags=st.sampled_from([0, 0, FUA]), qid=st.sampled_from([1, 2]),
    )  # fmt: skip
    def write(self, one: int, lba: int, count: int, content: int, flags: int, qid: int) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        count = min(count, BLOCKS - lba)
        span = self.span(nsid, lba, count)
        data = bytes([content]) * (count * self.sizes[nsid])
        change: Change = dict.fromkeys(span, content)
        cdws = (lba, 0, count - 1 | flags)
        self.send(WRITE, nsid, span, cdws, 0, change=change, data=data, qid=qid)

    @rule(one=which, lba=lbas, count=st.integers(1, 2), flags=st.sampled_from([0, FUA]))
    def read(self, one: int, lba: int, count: int, flags: int) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.settle()
        count = min(count, BLOCKS - lba)
        self.send(
            READ, nsid, self.span(nsid, lba, count), (lba, 0, count - 1 | flags),
            self.reading(nsid, lba, count), expected=self.bytes_of(nsid, lba, count),
        )  # fmt: skip

    @rule(one=which, lba=lbas, count=st.integers(1, BLOCKS))
    def verify(self, one: int, lba: int, count: int) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.settle()
        count = min(count, BLOCKS - lba)
        status = self.reading(nsid, lba, count)
        self.send(VERIFY, nsid, self.span(nsid, lba, count), (lba, 0, count - 1), status)

    @rule(one=which, lba=lbas, wrong=st.booleans())
    def compare(self, one: int, lba: int, wrong: bool) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.settle()
        status = self.reading(nsid, lba, 1) or (0x285 if wrong else 0)
        data = self.bytes_of(nsid, lba, 1)
        data = data[:-1] + bytes([data[-1] ^ wrong])
        self.send(COMPARE, nsid, self.span(nsid, lba, 1), (lba, 0, 0), status, data=data)

    @rule(one=which, lba=lbas, wrong=st.booleans(), content=contents, late=st.booleans())
    def compare_and_write(self, one: int, lba: int, wrong: bool, content: int, late: bool) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.settle()
        status = self.reading(nsid, lba, 1) or (0x285 if wrong else 0)
        span = self.span(nsid, lba, 1)
        data = self.bytes_of(nsid, lba, 1)
        data = bytes([data[0] ^ wrong]) + data[1:]
        self.send(COMPARE, nsid, span, (lba, 0, 0), status, data=data, flags=1)
        if late:
            self.ring()
        change: Change = dict.fromkeys(span, content)
        data = bytes([content]) * self.sizes[nsid]
        second = 0x009 if status else 0
        self.send(WRITE, nsid, span, (lba, 0, 0), second, change=change, data=data, flags=2)

    @rule(one=which, lba=lbas, count=st.integers(1, BLOCKS), flags=st.sampled_from([0, DEAC, FUA]))
    def write_zeroes(self, one: int, lba: int, count: int, flags: int) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        count = min(count, BLOCKS - lba)
        span = self.span(nsid, lba, count)
        change: Change = dict.fromkeys(span, HOLE if flags == DEAC else 0)
        self.send(ZEROES, nsid, span, (lba, 0, count - 1 | flags), 0, change=change)

    @rule(one=which, ranges=st.lists(st.tuples(lbas, st.integers(0, 9)), min_size=1, max_size=4))
    def trim(self, one: int, ranges: list[tuple[int, int]]) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.settle()
        cut = [(lba, min(count, BLOCKS - lba)) for lba, count in ranges]
        span = set[tuple[int, int]]().union(*(self.span(nsid, *each) for each in cut))
        change: Change = {block: HOLE for block in span if self.blocks[block] != BAD}
        data = b"".join(struct.pack("<IIQ", 0, count, lba) for lba, count in cut)
        self.send(DSM, nsid, span, (len(cut) - 1, AD), 0, change=change, data=data)

    @rule(one=which, lba=lbas, count=st.integers(1, 5))
    def write_uncorrectable(self, one: int, lba: int, count: int) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        count = min(count, BLOCKS - lba)
        span = self.span(nsid, lba, count)
        change: Change = dict.fromkeys(span, BAD)
        self.send(UNCORRECTABLE, nsid, span, (lba, 0, count - 1), 0, change=change)

    @rule(
        one=which,
        to=lbas,
        ranges=st.lists(st.tuples(lbas, st.integers(1, 5)), min_size=1, max_size=4),
    )
    def copy(self, one: int, to: int, ranges: list[tuple[int, int]]) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.settle()
        cut = [(lba, min(count, BLOCKS - lba)) for lba, count in ranges]
        moved = [self.blocks[nsid, n] for lba, count in cut for n in range(lba, lba + count)]
        status = max(
            (self.reading(nsid, *each) for each in cut), key=lambda each: (each == 0x281, each)
        )
        if to + len(moved) > SIZE // self.sizes[nsid]:
            status = 0x080
        target = [(nsid, to + n) for n in range(len(moved))]
        change: Change = {
            block: held if held != HOLE else 0
            for block, held in zip(target, moved, strict=True)
            if block in self.blocks
        }
        span = set(target).union(*(self.span(nsid, *each) for each in cut))
        data = b"".join(struct.pack("<8xQH14x", lba, count - 1) for lba, count in cut)
        self.send(COPY, nsid, span, (to, 0, len(cut) - 1), status, change=change, data=data)

    @rule(one=which, everything=st.booleans())
    def flush(self, one: int, everything: bool) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return
        self.send(FLUSH, 0xFFFFFFFF if everything else nsid, set(), (), 0)

    @rule(on=st.booleans())
    def switch_dulbe(self, on: bool) -> None:
        self.set_dulbe(on)

    # What becomes of whole namespaces.

    @rule(
        one=which,
        lbaf=st.sampled_from([0, 1]),
        ses=st.sampled_from([0, 1]),
        end=ends,
        data=st.data(),
    )
    def format(self, one: int, lbaf: int, ses: int, end: str, data: st.DataObject) -> None:
        if not (nsid := self.one_of(self.attached, one)):
            return

        def done() -> None:
            if self.sizes[nsid] != FORMATS[lbaf]:
                self.dulbe.discard(nsid)
            self.sizes[nsid] = FORMATS[lbaf]
            self.fill(nsid, HOLE)

        self.change(FORMAT, nsid, (lbaf | ses << 9,), done, end, data)

    @rule(lbaf=st.sampled_from([0, 1]), end=ends, data=st.data())
    def create(self, lbaf: int, end: str, data: st.DataObject) -> None:
        nsid = next(number for number in range(1, MOST + 2) if number not in self.sizes)
        if nsid > MOST:
            page = struct.pack("<QQ10xB", 1, 1, 0).ljust(PAGE, b"\0")
            self.settle()
            self.host.put(page)
            refused = self.host.command(self.host.admin, MANAGE)
            assert refused.status == INSUFFICIENT_CAPACITY
            return
        blocks = SIZE // FORMATS[lbaf]

        def done() -> None:
            self.sizes[nsid] = FORMATS[lbaf]
            self.fill(nsid, HOLE)

        page = struct.pack("<QQ10xB", blocks, blocks, lbaf).ljust(PAGE, b"\0")
        self.change(MANAGE, 0, (0,), done, end, data, page=page)

    @rule(one=which, end=ends, data=st.data())
    def delete(self, one: int, end: str, data: st.DataObject) -> None:
        if not (nsid := self.one_of(set(self.sizes), one)):
            return

        def done() -> None:
            del self.sizes[nsid]
            self.attached.discard(nsid)
            self.dulbe.discard(nsid)
            self.blocks = {block: held for block, held in self.blocks.items() if block[0] != nsid}

        self.change(MANAGE, nsid, (1,), done, end, data)

    @rule(one=which, end=ends, data=st.data())
    def attach_or_detach(self, one: int, end: str, data: st.DataObject) -> None:
        if nsid := self.one_of(set(self.sizes), one):
            detach = nsid in self.attached
            page = struct.pack("<HH", 1, 0).ljust(PAGE, b"\0")
            done = self.attached.discard if detach else self.attached.add
            self.change(ATTACH, nsid, (detach,), lambda: done(nsid), end, data, page=page)

    @rule(cdws=st.sampled_from([ERASE, OVERWRITE]), end=ends, data=st.data())
    def sanitize(self, cdws: tuple[int, int], end: str, data: st.DataObject) -> None:
        def done() -> None:
            for nsid in self.sizes:
                self.fill(nsid, HOLE if cdws == ERASE else 1)

        self.change(SANITIZE, 0, cdws, done, end, data)

    def fill(self, nsid: int, held: Block) -> None:
        self.blocks.update(dict.fromkeys(self.span(nsid, 0, BLOCKS), held))

    def change(
        self,
        opcode: int,
        nsid: int,
        cdws: tuple[int, ...],
        done: Callable[[], object],
        end: str,
        data: st.DataObject,
        *,
        page: bytes = b"",
    ) -> None:
        """Give an Admin command, and cut it anywhere, or not; `done` has the dictionary say so."""
        self.settle()
        finish(self.host)
        self.host.put(page)
        before = (dict(self.sizes), set(self.attached), dict(self.blocks))
        begin(self.host, self.host.admin, opcode, nsid=nsid, cdws=cdws)
        steps = data.draw(st.integers(0, 12)) if end != "well" else 1000
        while steps and self.host.goes_on():
            self.host.executor.run_all()
            self.host.service()
            steps -= 1
        answered = [one.status for one in self.host.reap(self.host.admin)]
        assert answered in ([0], []), (hex(opcode), [hex(one) for one in answered])
        assert answered or end != "well"
        if end == "reset":
            self.host.disable()
            self.begin_session()
        elif end == "kill":
            self.end()
        done()
        after = (dict(self.sizes), set(self.attached), dict(self.blocks))
        choices = [before, after] if end == "kill" and not answered else [after]
        if end == "kill":
            self.open()
        if end != "well":
            self.host.executor.waiting.extend(self.left)
        finish(self.host)
        self.check_namespaces(choices)

    def check_namespaces(self, choices: list[tuple[dict[int, int], set[int], Change]]) -> None:
        """There is what one of the choices says, whole; the dictionary says the same then."""
        attached = set(nsids(self.host, 0x02))
        found = {one: namespace(self.host, one) for one in nsids(self.host, 0x10)}
        sizes = {nsid: FORMATS[one.format] for nsid, one in found.items() if one is not None}
        left = [one for one in choices if one[:2] == (sizes, attached)]
        assert left, (sizes, attached, choices)
        self.sizes, self.attached = sizes, attached
        for nsid in sizes:
            if nsid not in attached:
                self.set_attached(nsid, True)
        self.attached = set(sizes)
        dulbe = self.dulbe & self.attached
        self.blocks = dict.fromkeys(left[0][2], HOLE)
        self.find_out({block: {one[2][block] for one in left} for block in self.blocks})
        assert any(self.same(one[2]) for one in left), (self.blocks, left)
        self.attached = attached
        for nsid in sizes:
            if nsid not in attached:
                self.set_attached(nsid, False)
        self.dulbe = set()
        if dulbe & attached == {nsid for nsid in attached if sizes[nsid] == 4096}:
            self.set_dulbe(bool(dulbe))

    def same(self, blocks: Change) -> bool:
        """Small blocks that are deallocated look as if they held zeroes."""

        def seen(block: tuple[int, int], held: Block) -> Block:
            return 0 if held == HOLE and self.sizes[block[0]] == 512 else held

        return all(seen(one, held) == seen(one, self.blocks[one]) for one, held in blocks.items())

    # The drive, the media, and what comes over them.

    @rule(data=st.data(), steps=st.integers(1, 4))
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """Some of the media's work is done, in any order."""
        self.ring()
        for _ in range(steps):
            waiting = len(self.host.executor.waiting)
            if not waiting:
                break
            self.host.executor.run_next(data.draw(st.integers(0, waiting - 1)))
            self.host.service()
            self.reap()

    @rule(kind=st.sampled_from(["reset", "kill"]), rung=st.booleans())
    def interrupt(self, kind: str, rung: bool) -> None:
        """A reset, or the end of the process, whatever is under way."""
        if rung:
            self.ring()
        possible = {one: {held} for one, held in self.blocks.items()}
        for asked in self.asked.values():
            for one, held in asked.change.items():
                possible[one].add(held)
        self.asked.clear()
        if kind == "reset":
            self.host.disable()
            self.begin_session()
        else:
            self.end()
            self.open()
        self.find_out(possible)
        self.host.executor.waiting.extend(self.left)

    @rule()
    def look_at_everything(self) -> None:
        self.settle()
        dulbe = bool(self.dulbe)
        self.find_out({one: {held} for one, held in self.blocks.items()})
        self.set_dulbe(dulbe)

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        """`reap` knows every identifier once; here that none was invented."""
        if hasattr(self, "host"):
            self.reap()


class BlocksByMessages(Blocks):
    by_messages = True


TestBlocks = Blocks.TestCase
TestBlocksByMessages = BlocksByMessages.TestCase
TestBlocksByMessages.settings = settings(max_examples=10, stateful_step_count=40)
TestBlocks.settings = settings(max_examples=20, stateful_step_count=40)


@pytest.mark.slow
def test_blocks_for_minutes() -> None:
    many = settings(max_examples=2000, stateful_step_count=80, deadline=None)
    run_state_machine_as_test(Blocks, settings=many)

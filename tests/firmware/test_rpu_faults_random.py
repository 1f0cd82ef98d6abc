"""Random commands on a drive with random faults: each is answered once at most, and truthfully."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from csd_spec.faults import ANY, Fault, FaultFlags, FaultKind
from potash_device.media.store import MemoryMedia
from support.nvme_host import DATA, PAGE, Host

WRITE, READ = 1, 2
BLOCKS = 8

counted = {"times": st.integers(0, 3), "after": st.integers(0, 2)}
where = st.sampled_from([(0, 0), (0, 3), (2, 4), (7, 1)])
faults = st.one_of(
    st.builds(
        lambda kind, opcode, queue, blocks, **rest: Fault(
            kind,
            opcode=opcode,
            queue=queue,
            lba=blocks[0],
            blocks=blocks[1],
            status=0x281 if kind is FaultKind.STATUS else 0,
            delay=1000 if kind is FaultKind.DELAY else 0,
            **rest,
        ),
        st.sampled_from([FaultKind.STATUS, FaultKind.DELAY, FaultKind.LOST]),
        st.sampled_from([ANY, READ, WRITE]),
        st.sampled_from([ANY, 1, 2]),
        where,
        **counted,
    ),
    st.builds(
        lambda flags, blocks, **rest: Fault(
            FaultKind.MEDIA_ERROR, flags, lba=blocks[0], blocks=blocks[1], **rest
        ),
        st.sampled_from(
            [FaultFlags.READS, FaultFlags.WRITES, FaultFlags.READS | FaultFlags.WRITES]
        ),
        where,
        **counted,
    ),
    st.builds(
        lambda queue, **rest: Fault(FaultKind.INTERRUPT, queue=queue, **rest),
        st.sampled_from([ANY, 1, 2]),
        **counted,
    ),
)
commands = st.tuples(
    st.sampled_from([1, 2]), st.sampled_from([READ, WRITE]), st.integers(0, BLOCKS - 1)
)
steps = st.lists(
    st.one_of(faults, commands, commands, commands, st.sampled_from(["clear", "reset"])),
    max_size=30,
)


@given(steps)
def test_an_answer_comes_once_and_is_true(script: list[Any]) -> None:
    with Host({1: MemoryMedia.create(BLOCKS * PAGE)}) as host:
        host.enable()
        queues = {qid: host.create_io_queue(qid) for qid in (1, 2)}
        content = [bytes(PAGE)] * BLOCKS
        armed = host.rpu.controller.faults
        for number, step in enumerate(script):
            if isinstance(step, Fault):
                armed.add(step)
            elif step == "clear":
                armed.clear()
            elif step == "reset":
                host.disable()
                host.enable()
                queues = {qid: host.create_io_queue(qid) for qid in (1, 2)}
            else:
                qid, opcode, block = step
                queue, address = queues[qid], DATA + number * PAGE
                record = bytes([number + 1]) * PAGE
                host.put(record if opcode == WRITE else bytes([0xEE]) * PAGE, address)
                host.place(queue, opcode, number, nsid=1, prp1=address, cdws=(block, 0, 0))
                host.ring(queue)
                host.service()
                while host.goes_on():
                    host.executor.run_all()
                    host.service()
                answers = host.reap(queue)
                assert [one.cid for one in answers] in ([], [number]), "once, and its own"
                good = bool(answers) and answers[0].status == 0
                if opcode == WRITE and good:
                    content[block] = record
                if opcode == READ and good:
                    assert host.data(PAGE, address) == content[block]
                if opcode == READ and not good:
                    assert host.data(PAGE, address) == bytes([0xEE]) * PAGE, "nothing was moved"
        armed.clear()
        host.disable()
        host.enable()
        queue = host.create_io_queue(1)
        for block in range(BLOCKS):
            answer = host.command(queue, READ, block, nsid=1, cdws=(block, 0, 0))
            assert answer.status == 0
            assert host.data(PAGE) == content[block], "what failed has changed nothing"

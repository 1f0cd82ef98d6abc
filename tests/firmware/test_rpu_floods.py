"""A host that sends more than is sensible: what it costs stays bounded, and nobody else pays."""

from collections.abc import Iterator

import pytest

from support.nvme_host import Host

FUA = 1 << 30


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as host:
        host.enable()
        yield host


def test_writes_that_the_media_cannot_keep_up_with_wait_in_their_queues(host: Host) -> None:
    """Each holds a buffer: 65536 identifiers in 64 queues would be more than any machine has."""
    queues = [host.create_io_queue(qid, size=256) for qid in (1, 2)]
    for queue in queues:
        for cid in range(250):
            host.place(queue, 0x01, cid, nsid=1, cdws=(0, 0, FUA))
        host.ring(queue)
    host.service()
    assert len(host.executor.waiting) <= 64
    assert host.command(host.admin, 0x06, cdws=(1,)).status == 0
    answered: dict[int, set[int]] = {1: set(), 2: set()}
    for _ in range(100):
        host.executor.run_all()
        host.service()
        for queue in queues:
            answered[queue.qid] |= {one.cid for one in host.reap(queue)}
        assert abs(len(answered[1]) - len(answered[2])) <= 64
        if len(answered[1]) + len(answered[2]) == 500:
            return
    raise AssertionError("not every write was answered")

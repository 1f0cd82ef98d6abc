"""A Dask cluster in this process, on the loopback interface."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def dask_cluster(threads: int) -> Iterator[str]:
    """One worker with so many threads; the scheduler's address. Skips where there is no Dask."""
    distributed = pytest.importorskip("distributed", reason="the extra `fleet` is not installed")
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=threads,
        dashboard_address=None,
        processes=False,
        protocol="tcp://",
        host="127.0.0.1",
    ) as cluster:
        yield cluster.scheduler_address

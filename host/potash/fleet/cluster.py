"""The way to a Dask cluster: the user's, or one within this process.

What is within this process has no socket that another user could connect to: scheduler, worker and
client pass objects to each other (Dask's `inproc` transport).
"""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from potash.sdk.errors import PotashError

Client = Any
"""A `distributed.Client`, which is imported when one is needed."""

CONNECT_LIMIT = "10s"
"""Time that a scheduler may take to answer."""


@contextmanager
def connected(address: str) -> Iterator[Client]:
    """A client of the scheduler at `address`; where that needs TLS, Dask's configuration has it.
    Raises PotashError where there is no such scheduler, or no Dask."""
    distributed = _distributed("--scheduler needs")
    try:
        # A client that fails for one of these reasons stays in the way until the process ends.
        how = distributed.Security().get_connection_args("client")
        if address.startswith("tls://") and how["ssl_context"] is None:
            raise ValueError("it needs a certificate: distributed.comm.tls in Dask's configuration")
        if how["require_encryption"] and not address.startswith("tls://"):
            raise ValueError("Dask's configuration allows tls:// only")
        client = distributed.Client(address, timeout=CONNECT_LIMIT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PotashError(f"no Dask scheduler answers at {address}: {said}") from None
    with client:
        yield client


@contextmanager
def within(threads: int) -> Iterator[Client]:
    """A client of a cluster in this process, whose worker does `threads` tasks at once. Raises
    PotashError where there is no Dask."""
    distributed = _distributed("a fleet needs")
    import dask

    # HTTP servers cannot be left out. They get loopback, and nothing to show: a LocalCluster would
    # have dashboards where Bokeh is installed.
    how = {"protocol": "inproc://", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    worker = {"cls": distributed.Worker, "options": {**how, "nthreads": threads}}
    routes: dict[str, list[str]] = {
        f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")
    }
    with (
        tempfile.TemporaryDirectory(prefix="potash-") as folder,
        dask.config.set({**routes, "temporary-directory": folder}),
        distributed.SpecCluster(
            scheduler={"cls": distributed.Scheduler, "options": how},
            workers={0: worker},
            silence_logs=logging.CRITICAL,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def completed(client: Client, futures: Sequence[Any]) -> Generator[tuple[int, Any], None, None]:
    """The number of each future with the future, as they are done or cancelled.

    It is released when the next one is asked for; those that are left when the iterator is closed
    are cancelled.
    """
    distributed: Any = importlib.import_module("distributed")
    numbers = {future.key: at for at, future in enumerate(futures)}
    try:
        for future in distributed.as_completed(futures, loop=client.loop):
            yield numbers[future.key], future
            future.release()
    finally:
        cancel(client, futures)


def cancel(client: Client, futures: Sequence[Any]) -> None:
    """Cancel those that have not been released: Dask's scheduler drops a client that cancels what
    it does not want any more, but others need (distributed 2026.8, `stimulus_cancel`)."""

    async def wanted() -> None:  # In the client's loop, where nothing is released meanwhile.
        if there := [one for one in futures if one.key in client.futures]:
            await client.cancel(there, asynchronous=True)

    client.sync(wanted)


def _distributed(who: str) -> Any:
    """The package, which says nothing on the terminal. Raises PotashError without it."""
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        raise PotashError(
            f"{who} the Python package distributed: pip install 'potash[fleet]'"
        ) from None
    for name in ("distributed", "distributed.client"):  # which have levels of their own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed

"""Queries of tables where they are stored: a plan goes to the drive, and the result comes back.

    import potash.sdk
    from potash.columns import OnAccelerator, Request, StoredFile, query

    with potash.sdk.open("/dev/nvme0n1") as device:
        engine = OnAccelerator(device.accelerator())
        request = Request("count(), sum(price)", where='region == "EU"', by="product")
        result = query(request, StoredFile("/mnt/sales.parquet", device), engine)
        print(result.to_pydict(), result.moved, result.held)

It also runs in guests, so it needs only the standard library: the drive has the engine.
"""

from potash.columns.answer import Answer, QueryEngine, Result, Stored, run
from potash.columns.engines import InComputeNamespace, OnAccelerator
from potash.columns.errors import InvalidQuery
from potash.columns.query import Request, explained, query
from potash.columns.stored import StoredBlocks, StoredFile

__all__ = [
    "Answer",
    "InComputeNamespace",
    "InvalidQuery",
    "OnAccelerator",
    "QueryEngine",
    "Request",
    "Result",
    "Stored",
    "StoredBlocks",
    "StoredFile",
    "explained",
    "query",
    "run",
]

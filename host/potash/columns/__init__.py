"""Queries on Arrow files where they are stored: a filter and aggregates become an eBPF program.

    import potash.sdk
    from potash.columns import OnAccelerator, Request, StoredFile, query

    with potash.sdk.open("/dev/nvme0n1") as device:
        engine = OnAccelerator(device.accelerator())
        request = Request("count(), sum(price)", where='region == "EU"', by="product")
        result = query(request, StoredFile("/mnt/sales.arrow", device), engine)
        print(result.to_pydict(), result.moved, result.held)

It also runs in guests, so it needs only the standard library: it reads the metadata of Arrow files
itself, and writes eBPF without a compiler.
"""

from potash.columns.answer import Answer, run
from potash.columns.engines import InComputeNamespace, OnAccelerator
from potash.columns.errors import InvalidFile, InvalidQuery
from potash.columns.query import Request, Result, merged, query
from potash.columns.stored import StoredBlocks, StoredFile

__all__ = [
    "Answer",
    "InComputeNamespace",
    "InvalidFile",
    "InvalidQuery",
    "OnAccelerator",
    "Request",
    "Result",
    "StoredBlocks",
    "StoredFile",
    "merged",
    "query",
    "run",
]

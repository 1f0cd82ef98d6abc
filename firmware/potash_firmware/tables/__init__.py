"""Queries of tables: the engine that a worker runs, which is Arrow's.

A query reads a Parquet or an Arrow file at random from a `ByteSource`, and gives its result in
pieces. The plan and the headers are those of `csd_spec.table_plans`. There are no files and no
sockets here, so that a confined process can run it, and nothing runs in parallel: Arrow reads the
footer of an Arrow file in a thread of its own, while the caller waits.
"""

import os

# Limits of memory hold for the system's allocator; Arrow reads this when it is loaded.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from potash_firmware.tables.errors import Refused
from potash_firmware.tables.execution import Execution, begin
from potash_firmware.tables.files import ByteSource

__all__ = ["ByteSource", "Execution", "Refused", "begin"]

"""Queries of a table: TPC-H's query 6 on a drive, and on a host that reads the file from it.

The host reaches the drive over its socket, or is a Linux guest with a file system on the drive; a
guest only reads the file, as it has no library that computes the same.

The table has columns of TPC-H's LINEITEM, with the distributions of the TPC Benchmark H standard
specification, section 4.2.3. The query's dates are chosen for a share of the rows; its other
conditions hold for all of them.
"""

import io
import json
import random
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import potash.sdk
from csd_spec.opcodes import PAGE_SIZE
from potash.bench.report import Result, Settings, alone, paired
from potash.columns import OnAccelerator, Request, StoredBlocks, query
from potash.configuration import Configuration
from potash.devices import serving
from potash.namespace_sections import NamespaceSection
from potash.sdk import Device
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.sections import MEBI
from potash.vm import images
from potash.vm.guest import Guest
from potash.vm.images import GuestImages

ROWS = 1_000_000
SHARES = {"q6-1%": 0.01, "q6-10%": 0.1, "q6-100%": 1.0}
NAMES = tuple(SHARES)
WORDS = ("carefully", "final", "deposits", "sleep", "quickly", "above")
FIRST, DAYS = np.datetime64("1992-01-02"), 2526
DRIVE = Configuration(namespaces=(NamespaceSection(128 * MEBI),))
BASELINE = "reading the file"
FILE = "/mnt/lineitem.parquet"
STORE = f"mkfs.ext4 -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt && cat > {FILE} && sync"
READ = ("dd", f"if={FILE}", "of=/dev/null", "bs=1M", "iflag=direct")
SUM = "sum(l_extendedprice * l_discount)"


def lineitem() -> bytes:
    """A Parquet file, the same each time."""
    source = np.random.default_rng(6)
    words = random.Random(6).choices(WORDS, k=4096)
    comments = [" ".join(words[at : at + 4]) for at in range(4092)]
    table = pa.table(
        {
            "l_orderkey": np.arange(ROWS) // 4,
            "l_partkey": source.integers(1, 200_000, ROWS),
            "l_quantity": source.integers(1, 51, ROWS).astype(float),
            "l_extendedprice": source.integers(90_000, 10_500_000, ROWS) / 100,
            "l_discount": source.integers(0, 11, ROWS) / 100,
            "l_tax": source.integers(0, 9, ROWS) / 100,
            "l_shipdate": FIRST + source.integers(0, DAYS, ROWS),
            "l_comment": pa.array(comments).take(pa.array(source.integers(0, 4092, ROWS))),
        }
    )
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=ROWS // 8)
    return stream.getvalue()


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure the named ones of NAMES. Raises PotashError where the results differ."""
    names, pairs = settings.names, settings.pairs
    if settings.guest:
        found = images.prepare(progress, mirror=settings.debian_mirror)
        yield from measure_in_guest(found, names, pairs, progress)
        return
    progress("making a table", None)
    data = lineitem()
    with serving(DRIVE) as served, potash.sdk.open(f"vfio-user:{served.socket}") as device:
        device.write(0, data.ljust(-(-len(data) // PAGE_SIZE) * PAGE_SIZE, b"\0"))
        for index, name in enumerate(names):
            progress(name, index / len(names))
            yield from _query(name, device, len(data), pairs)


def measure_in_guest(
    found: GuestImages, names: Sequence[str], pairs: int, progress: Progress
) -> Iterator[Result]:
    """Measure commands in a guest: `potash query`, and `dd` of the file past the page cache.
    Raises PotashError where the guest does not start, or a command fails."""
    progress("making a table", None)
    data = lineitem()
    with serving(DRIVE) as served, Guest(found, served.socket) as guest:
        _timed(guest, ("sh", "-c", STORE), data)
        for index, name in enumerate(names):
            progress(name, index / len(names))
            ask = ("potash", "query", FILE, SUM, "--where", _where(_end(name)), "--json")
            times = []
            for pair in range(pairs):
                taken = {argv: _timed(guest, argv) for argv in ((ask, READ), (READ, ask))[pair % 2]}
                times.append((taken[ask][0], taken[READ][0]))
            result = json.loads(taken[ask][1])
            yield paired(name, "time", "ms", BASELINE, times)
            yield paired(name, "moved", "bytes", BASELINE, [(result["moved"], len(data))])
            yield alone(name, "read by the drive", "bytes", [result["read"]])
            starts = [_timed(guest, (*ask, "--explain"))[0] for _ in range(pairs)]
            yield alone(name, "time without a query", "ms", starts)


def _timed(guest: Guest, argv: Sequence[str], stdin: bytes | None = None) -> tuple[float, bytes]:
    """The milliseconds that a command in a guest takes, and its output."""
    began = time.perf_counter()
    done = guest.capture(argv, stdin)
    ended = time.perf_counter()
    if done.code:
        said = done.stderr.decode(errors="replace").strip()
        raise PotashError(f"{argv[0]} fails in the guest: {said}")
    return (ended - began) * 1e3, done.stdout


def _end(name: str) -> np.datetime64:
    """The day before which the rows of a query were shipped."""
    return FIRST + int(SHARES[name] * DAYS)


def _where(end: np.datetime64) -> str:
    return (
        f'l_shipdate >= "{FIRST}" and l_shipdate < "{end}" and l_quantity < 51'
        " and 0 <= l_discount <= 0.1"
    )


def _query(name: str, device: Device, size: int, pairs: int) -> Iterator[Result]:
    end = _end(name)
    request, stored = Request(SUM, _where(end)), StoredBlocks(device.namespace(), 0, size)
    engine = OnAccelerator(device.accelerator())
    times, moved = [], []
    for warm in (True, *(False for _ in range(pairs))):
        began = time.perf_counter()
        result = query(request, stored, engine)
        between = time.perf_counter()
        total = _on_host(device, size, end)
        ended = time.perf_counter()
        (found,) = result.to_pydict()[SUM]
        if abs(found / total - 1) > 1e-9:
            raise PotashError(f"{name}: the drive gives {found}, and the host {total}")
        if not warm:
            times.append(((between - began) * 1e3, (ended - between) * 1e3))
            moved.append((result.moved, size))
    yield paired(name, "time", "ms", BASELINE, times)
    yield paired(name, "moved", "bytes", BASELINE, moved)
    yield alone(name, "read by the drive", "bytes", [result.read])


def _on_host(device: Device, size: int, end: np.datetime64) -> float:
    """The same of a file that is read from the drive, by the same library."""
    data = device.read(0, -(-size // device.block_size))[:size]
    columns = ["l_extendedprice", "l_discount", "l_shipdate", "l_quantity"]
    table = pq.read_table(pa.BufferReader(data), columns=columns, use_threads=False)
    kept = table.filter(
        (pc.field("l_shipdate") < pa.scalar(end.item()))
        & (pc.field("l_quantity") < 51)
        & (pc.field("l_discount") <= 0.1)
    )
    total: float = pc.sum(pc.multiply(kept["l_extendedprice"], kept["l_discount"])).as_py()
    return total

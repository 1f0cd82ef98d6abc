"""Compute namespaces, over the drive's socket: executions of a program that returns immediately."""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nvme_spec import computational
from nvme_spec.queues import SubmissionEntry
from potash.bench.generator import MEMORY, PAGE, WITH_MEMORY, Command, generating
from potash.bench.report import Result, Settings, alone
from potash.programs.compiler import compiled
from potash.sdk.memory_namespace import Bytes
from potash.sdk.progress import Progress
from potash.sections import ComputeSection

COMPUTE = 3
"""The compute namespace."""
EMPTY = "int prog(void)\n{\n\treturn 0;\n}\n"
INDEX = 15
"""The program index that it has, behind those of the device-defined programs."""
WORKERS = 4
"""The executions that a compute namespace runs at once."""
WARM_UP = 1.0
"""Seconds in which each worker gets ready."""
RANGES = (Bytes(MEMORY, 0, PAGE), Bytes(MEMORY, PAGE, PAGE))


class Load(NamedTuple):
    """`depth` executions at a time, with `ranges` by a memory range set or with none."""

    name: str
    depth: int
    ranges: bool = False


LOADS = (
    Load("execute-qd1", 1),
    Load("execute-ranges-qd1", 1, ranges=True),
    Load("execute-qd8", 8),
    Load("execute-qd32", 32),
)
NAMES = tuple(load.name for load in LOADS)


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named, on one device. Raises PotashError where this does not start, hangs, or
    fails a command, or there is no compiler for BPF."""
    times, seconds = settings.pairs, settings.seconds
    chosen = [load for load in LOADS if load.name in settings.names]
    with tempfile.TemporaryDirectory(prefix="potash-bench-") as folder:
        source = Path(folder) / "empty.c"
        source.write_text(EMPTY)
        image = compiled(source)
    with generating(1, replace(WITH_MEMORY, compute=ComputeSection(1))) as generator:
        compute = generator.device.compute_namespace(COMPUTE)
        compute.load(INDEX, image)
        rsid = compute.create_ranges(RANGES)
        for index, load in enumerate(chosen):
            generator.fill(1, _execution(rsid if load.ranges else 0))
            generator.run_singly(0)  # the first one has the program compiled
            if not index:
                generator.warm_up(WORKERS, WARM_UP)
            runs = []
            for repetition in range(times):
                progress(load.name, (index + repetition / times) / len(chosen))
                if load.depth == 1:
                    runs.append(generator.run_singly(seconds))
                else:
                    runs.append(generator.run(load.depth, seconds))
            if load.depth == 1:
                latencies = [statistics.median(run.latencies) * 1e6 for run in runs]
                yield alone(load.name, "latency", "µs", latencies)
            yield alone(load.name, "iops", "1/s", [run.rate for run in runs])
            yield alone(load.name, "device time", "µs/io", [run.cost * 1e6 for run in runs])


def _execution(rsid: int) -> Command:
    opcode, fields = (
        computational.ComputeOpcode.EXECUTE_PROGRAM,
        computational.Execute(INDEX, rsid).fields(),
    )
    entry = SubmissionEntry(opcode, nsid=COMPUTE, **fields)
    return lambda _: (entry, b"")

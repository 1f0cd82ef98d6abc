"""Tasks of Dask: a job on a drive, and moving a file to or from it.

Each runs on the worker that has the drive, while nothing else uses the drive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distributed import get_worker

from csd_spec.opcodes import PAGE_SIZE
from csd_spec.table_plans import Plan
from potash.columns import OnAccelerator, StoredBlocks, run
from potash.fleet import combining
from potash.fleet.datasets import Result
from potash.fleet.directory import FIRST_PAGE, Directory, File, require_name
from potash.fleet.serving import ServedDrive, drives_of
from potash.sdk.accelerator import INPUT_LENGTH, Argument
from potash.sdk.accelerator_commands import AcceleratorCommands, argument_bytes
from potash.sdk.errors import DeviceGone, JobFailed, PotashError
from potash.sdk.progress import Progress
from potash.sdk.targets import PagesSource, Range, Reporter, Sink, room_for, use_output


class NotWanted(Exception):
    """The client has cancelled the task, or is gone."""


class Job(NamedTuple):
    """A job for every shard; `keep` names the data set that the outputs become, if any."""

    args: Sequence[Argument] = ()
    keep: str | None = None
    timeout: float | None = None


class StoredSink(Sink):
    """A new file on the drive for a job's output, with as much room as the input has."""

    def __init__(self, directory: Directory, file: File, nsid: int) -> None:
        self._directory = directory
        self._file = file
        self._nsid = nsid
        self._range = Range(0, 0)

    def prepare(self, accelerator: AcceleratorCommands, input_size: int) -> None:
        require_name(self._file.name)
        room = room_for(accelerator, None, input_size)
        self._range = self._directory.reserve(room * PAGE_SIZE)

    def attach(self, accelerator: AcceleratorCommands, reporter: Reporter) -> None:
        use_output(accelerator, [self._range], self._nsid, reporter)

    def collect(self, accelerator: AcceleratorCommands, produced: int, reporter: Reporter) -> bytes:
        page = self._range.page if produced else FIRST_PAGE
        self._directory.add(self._file._replace(page=page, size=produced))
        return b""


def run_job(drive: str, file: File, image: bytes, job: Job) -> Result:
    """Run a program on a file. Raises what is worth a retry: the drive's device has died."""
    served, progress = _begun(drive, file)
    nsid = served.device.nsid
    sink = Sink()
    if job.keep is not None:
        name = f"{job.keep}/{file.name.partition('/')[2]}"
        sink = StoredSink(served.directory, file._replace(name=name), nsid)
    found = Result(file.name, file.shard, drive, held=file.size, worker=get_worker().address)
    began = time.monotonic()
    try:
        result = served.accelerator.run(
            image,
            PagesSource([file.range], file.size, nsid),
            args=job.args,
            output=sink,
            timeout=job.timeout,
            progress=progress,
        )
    except DeviceGone:
        served.start()
        raise
    except PotashError as error:
        printed = error.printed if isinstance(error, JobFailed) else ()
        return found._replace(error=str(error), printed=printed)
    values = [file.size if one is INPUT_LENGTH else one for one in job.args]
    given = len(image) + sum(len(argument_bytes(one)) for one in values)
    return found._replace(
        output=result.output,
        produced=result.status.produced,
        return_value=result.status.return_value,
        printed=result.printed,
        seconds=time.monotonic() - began,
        moved=given + len(result.output),
        modelled_ns=result.status.modelled_ns,
        traffic=result.traffic,
    )


def run_query(drive: str, file: File, plan: Plan, timeout: float | None) -> combining.Part | str:
    """Query a file, which is a table; or why that cannot be. Raises what is worth a retry."""
    served, progress = _begun(drive, file)
    namespace = served.device.namespace()
    stored = StoredBlocks(namespace, file.page * PAGE_SIZE // namespace.block_size, file.size)
    engine = OnAccelerator(served.accelerator, timeout=timeout, progress=progress)
    try:
        return combining.Part.of(run(plan, stored, engine))
    except DeviceGone:
        served.start()
        raise
    except PotashError as error:
        return f"{file.name}: {error}"


class Part(NamedTuple):
    """Several outputs as one, and the bytes that they have moved."""

    output: bytes
    moved: int


def combined(combine: Callable[[list[bytes]], bytes], parts: Sequence[Result | Part]) -> Part:
    """Outputs as one. Raises PotashError for a job that failed."""
    for one in parts:
        if isinstance(one, Result) and one.error:
            raise PotashError(one.error)
    return Part(combine([one.output for one in parts]), sum(one.moved for one in parts))


def put_file(drive: str, file: File, data: bytes) -> None:
    """Store a file, whose page is not known yet. Raises PotashError."""
    directory = _served(drive).directory
    pages = directory.reserve(len(data))
    directory.write(pages, data)
    directory.add(file._replace(page=pages.page, size=len(data)))


def get_file(drive: str, file: File) -> bytes:
    """The bytes of a file."""
    return _served(drive).directory.read(file)


def remove_files(drive: str, dataset: str) -> int:
    """Remove a data set from a drive; how many files that were."""
    return _served(drive).directory.remove(dataset)


def _served(drive: str) -> ServedDrive:
    served = drives_of(get_worker()).get(drive)
    if served is None:
        raise PotashError(f"drive {drive} is not served here any more")
    return served


def _begun(drive: str, file: File) -> tuple[ServedDrive, Progress]:
    """The drive of a file that is on it, and what ends a job that is not wanted any more: Dask does
    not interrupt one."""
    served = _served(drive)
    if served.directory.files.get(file.name) != file:
        raise PotashError(f"{file.name} is not on drive {drive} any more")
    worker = get_worker()
    key = worker.get_current_task()

    def progress(_label: str, _fraction: float | None) -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            raise NotWanted

    return served, progress

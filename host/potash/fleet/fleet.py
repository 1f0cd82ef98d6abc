"""A fleet as a program uses it.

from potash.fleet import Fleet, read_fleet

with Fleet(read_fleet(path).drives) as fleet:
    fleet.put("logs", paths)
    for result in fleet.map(program, "logs", [INPUT_LENGTH, b"timed out"]):
        print(result.name, result.output)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from csd_spec.table_plans import Output, Plan
from potash.columns import Request
from potash.columns import Result as Answer
from potash.columns.query import ALL
from potash.fleet import cluster, combining
from potash.fleet.datasets import Dataset, Result, Totals, dataset_of, missing, numbered
from potash.fleet.directory import MOST_SHARDS, File, require_name
from potash.fleet.drives import Drive, require_distinct
from potash.fleet.placement import Placement
from potash.sdk.accelerator import Argument
from potash.sdk.errors import InvalidRequest, PotashError, restated
from potash.sdk.progress import Progress, silent
from potash.sdk.targets import Content, content_of

if TYPE_CHECKING:
    from potash.fleet.serving import Seen

PATIENCE = 10.0
"""Seconds in which a drive may come back on another worker."""
RETRIES = 3
"""Number of times that a job is run again because its drive's device has died; Dask counts dead
workers itself."""
FAN_IN = 16
"""Outputs that one task of `reduce` combines."""

Combine = Callable[[list[bytes]], bytes]
"""Makes one output of several, in the order of their shards; it is associative."""


class Fleet:
    """Drives on the workers of a Dask cluster, while a `with` block lasts.

    Drives that are served already are used as they are. Those that this fleet has had served end
    with it.

    Args:
        drives: its drives.
        scheduler: the address of a Dask scheduler; without one, the drives are processes of this
            machine, and the cluster is within this process.
        patience: seconds in which a drive may come back on another worker.

    Raises, when the block begins, PotashError where no drive can be served.
    """

    def __init__(
        self, drives: Sequence[Drive], *, scheduler: str | None = None, patience: float = PATIENCE
    ) -> None:
        with restated(ValueError, to=InvalidRequest):
            require_distinct(drives)
        if scheduler is not None:
            for drive in drives:
                if drive.media is not None and drive.worker is None and not drive.shared:
                    raise InvalidRequest(
                        f"drive {drive.name} has media, and nobody knows where: say which worker"
                        ' has them (worker = "NAME"), or that all reach them (shared = true)'
                    )
        self._drives = drives
        self._scheduler = scheduler
        self._patience = patience
        self._owned = ExitStack()
        self._client: cluster.Client = None
        self._placement: Placement | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._client = stack.enter_context(
                cluster.within(len(self._drives) + 1)
                if self._scheduler is None
                else cluster.connected(self._scheduler)
            )
            self._placement = Placement(self._client, self._drives, self._patience)
            stack.callback(self._placement.close)
            self._placement.open()
            self._owned = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the drives that this fleet has had served, and leave the cluster."""
        self._owned.close()

    @property
    def placement(self) -> Placement:
        """The workers that serve the drives."""
        if self._placement is None:
            raise InvalidRequest("the fleet is not open; use it in a with block")
        return self._placement

    def seen(self) -> Mapping[str, Seen]:
        """The drives that are served, and what is on them."""
        from potash.fleet.serving import about

        places = self.placement.places
        found = self._client.run(about, on_error="ignore")
        return {
            name: one
            for worker in found.values()
            for name, one in worker.drives.items()
            if name in places
        }

    def datasets(self) -> list[Dataset]:
        """All data sets, by name."""
        files = self._files()
        return [dataset_of(name, files) for name in sorted({file.dataset for _, file in files})]

    def dataset(self, name: str) -> Dataset:
        """A data set. Raises PotashError where no drive has any of it."""
        return dataset_of(name, self._files())

    def _files(self) -> list[tuple[str, File]]:
        return [(name, file) for name, one in self.seen().items() for file in one.files]

    def put(
        self, dataset: str, paths: Iterable[str | Path], *, progress: Progress = silent
    ) -> Dataset:
        """Copy files to the drives, in turn, as the shards of a data set; an older one of that name
        is removed. Raises PotashError where a drive is missing or has no room, and OSError for
        files that cannot be read."""
        files = [Path(path) for path in paths]
        names = [f"{dataset}/{path.name}" for path in files]
        for name in names:
            require_name(name)
        if not 1 <= len(files) <= MOST_SHARDS or len(set(names)) < len(names):
            raise InvalidRequest(f"a data set is 1 to {MOST_SHARDS} files, each with another name")
        for path in files:
            if not path.stat().st_size:
                raise InvalidRequest(f"{path} is empty, and a job needs at least one byte")
        for place in self.placement.places.values():
            if place.worker is None:
                raise PotashError(
                    place.reason or f"drive {place.drive.name} is being moved; try again"
                )
        self.remove(dataset)
        from potash.fleet import work

        drives = list(self.placement.places)
        for start in range(0, len(files), len(drives)):
            batch = range(start, min(start + len(drives), len(files)))
            futures = []
            for at in batch:
                drive = drives[at % len(drives)]
                data = files[at].read_bytes()
                file = File(names[at], 0, len(data), at, len(files))
                home = self.placement.places[drive].worker
                (sent,) = self._client.scatter([data], workers=home, hash=False)
                futures.append(self._submit(drive, work.put_file, file, sent))
            for number, future in cluster.completed(self._client, futures):
                self._value(future)
                progress("copying files to drives", (start + number + 1) / len(files))
        return self.dataset(dataset)

    def get(self, dataset: str, folder: str | Path, *, progress: Progress = silent) -> Dataset:
        """Copy the files of a data set to a folder. Raises PotashError where shards are missing,
        and OSError where they cannot be written."""
        from potash.fleet import work

        found = self.complete(dataset)
        futures = [self._submit(drive, work.get_file, file) for drive, file in found.shards]
        for done, (at, future) in enumerate(cluster.completed(self._client, futures), 1):
            file = found.shards[at][1]
            (Path(folder) / file.name.partition("/")[2]).write_bytes(self._value(future))
            progress("copying files from drives", done / len(futures))
        return found

    def remove(self, dataset: str) -> int:
        """Remove a data set from the drives; how many files that were."""
        from potash.fleet import work

        having = {drive for drive, file in self._files() if file.dataset == dataset}
        futures = [self._submit(drive, work.remove_files, dataset) for drive in having]
        return sum(self._value(future) for _, future in cluster.completed(self._client, futures))

    def map(
        self,
        program: Content,
        dataset: str | Dataset,
        args: Sequence[Argument] = (),
        *,
        keep: str | None = None,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> Generator[Result, None, None]:
        """Run a program on every shard, on the drive that has it; results in any order.

        What the death of a worker or a device interrupts is run again. Closing the iterator stops
        the jobs that run.

        Args:
            program: an object file: its bytes or its path.
            dataset: a data set, or its name.
            args: the program's arguments; INPUT_LENGTH becomes the shard's length.
            keep: leave outputs on the drives, as shards of a data set of this name; an older one
                is removed.
            timeout: seconds after which a job is stopped.
            progress: called with the share of shards that are done.

        Raises PotashError where there is no such data set.
        """
        found = self._found(dataset)
        if keep is not None:
            require_name(f"{keep}/x")
            if keep == found.name:
                raise InvalidRequest("the outputs would replace their inputs; use another name")
            self.remove(keep)
        with self._running(program, found, args, keep, timeout) as futures:
            count = len(found.shards) + len(found.missing)
            done = 0
            for index in found.missing:
                done += 1
                yield missing(found, index)
            for at, future in cluster.completed(self._client, futures):
                drive, file = found.shards[at]
                done += 1
                result = self._result(drive, file, future)
                progress(f"{done} of {count} shards done", done / count)
                yield result

    def reduce(
        self,
        program: Content,
        dataset: str | Dataset,
        combine: Combine,
        args: Sequence[Argument] = (),
        *,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> tuple[bytes, Totals]:
        """Run a program on every shard, and combine the outputs on the workers, as a tree.

        Only the last output comes here. Arguments are as of `map`. Raises PotashError for a shard
        that fails or is missing: of some shards, it would be another result.
        """
        from potash.fleet.work import Part, combined

        found = self.complete(dataset)
        with self._running(program, found, args, None, timeout) as futures:
            tasks, level = list(futures), futures
            while len(level) > 1 or level is futures:
                groups = [level[at : at + FAN_IN] for at in range(0, len(level), FAN_IN)]
                level = [
                    self._client.submit(combined, combine, group, pure=False) for group in groups
                ]
                tasks += level
            part = Part(b"", 0)
            for done, (at, future) in enumerate(cluster.completed(self._client, tasks), 1):
                if future.status == "cancelled":
                    lost = map(self.placement.missing, (drive for drive, _ in found.shards))
                    raise PotashError(next(filter(None, lost), "it was cancelled"))
                if future.status != "finished" or at == len(tasks) - 1:
                    part = self._value(future)
                progress(f"{done} of {len(tasks)} tasks done", done / len(tasks))
        return part.output, Totals(done=len(futures), held=found.held, moved=part.moved)

    def query(
        self,
        dataset: str | Dataset,
        request: Request,
        *,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> Answer:
        """Query every shard, each a table of the same columns, and combine the results. Raises
        PotashError for a shard that is missing, or that cannot be queried."""
        plan = request.plan(Output.NONE, ALL)
        with self.run_plan(dataset, plan, timeout=timeout, progress=progress) as answer:
            answer.read()
            return answer.result()

    def run_plan(
        self,
        dataset: str | Dataset,
        plan: Plan,
        *,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> combining.Combined:
        """Run a plan on every shard, as `query` does; the answer has the plan's output. Raises
        InvalidQuery for aggregates that cannot be combined, and what `query` raises."""
        combining.require_engine()
        drives, host = combining.split(plan)
        parts = self.run_shards(self.complete(dataset), drives, timeout=timeout, progress=progress)
        return combining.Combined(host, parts)

    def run_shards(
        self,
        found: Dataset,
        plan: Plan,
        *,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> list[combining.Part]:
        """The results of a plan on each shard that there is, which are not combined. Raises
        PotashError for a shard that cannot be queried."""
        from potash.fleet import work

        futures = [
            self._submit(drive, work.run_query, file, plan, timeout) for drive, file in found.shards
        ]
        parts: dict[int, combining.Part] = {}
        with closing(cluster.completed(self._client, futures)) as finished:
            for done, (at, future) in enumerate(finished, 1):
                part: combining.Part | str = self._value(future)
                if isinstance(part, str):
                    raise PotashError(part)
                parts[at] = part
                progress(f"{done} of {len(futures)} shards queried", done / len(futures))
        return [parts[at] for at in range(len(futures))]

    def _found(self, dataset: str | Dataset) -> Dataset:
        return self.dataset(dataset) if isinstance(dataset, str) else dataset

    def complete(self, dataset: str | Dataset) -> Dataset:
        """A data set all of whose shards are there. Raises PotashError where some are missing."""
        found = self._found(dataset)
        if found.missing:
            raise PotashError(f"shards of {found.name} are missing: {numbered(found.missing)}")
        return found

    @contextmanager
    def _running(
        self,
        program: Content,
        found: Dataset,
        args: Sequence[Argument],
        keep: str | None,
        timeout: float | None,
    ) -> Iterator[list[Any]]:
        """A future for each shard, which are cancelled when the block ends."""
        from potash.fleet import work

        image = bytes(content_of(program))
        if not image:
            raise InvalidRequest("the program is an empty file; build it first")
        # As a task's result, and not as data: what a dead worker had of it is made again.
        sent = self._client.submit(bytes, image, pure=False)
        job = work.Job(tuple(args), keep, timeout)
        futures = [
            self._submit(drive, work.run_job, file, sent, job) for drive, file in found.shards
        ]
        try:
            yield futures
        finally:
            cluster.cancel(self._client, futures)
            sent.release()

    def _submit(self, drive: str, function: Callable[..., Any], *args: Any) -> Any:
        """A task on a drive, which is cancelled when the drive is lost for good."""
        from potash.fleet.serving import resource

        future = self._client.submit(
            function,
            drive,
            *args,
            key=f"potash-{function.__name__}-{drive}-{secrets.token_hex(8)}",
            resources={resource(drive): 1},
            retries=RETRIES,
            pure=False,
        )
        self.placement.wait_for(drive, future)
        return future

    def _value(self, future: Any) -> Any:
        """The result of a task. Raises PotashError if it failed."""
        if future.status == "cancelled":
            if self._client.status != "running":
                raise PotashError("the Dask scheduler is gone")
            raise PotashError("a drive was lost meanwhile; see potash fleet status")
        try:
            return future.result()
        except PotashError:
            raise
        except Exception as error:  # whatever went wrong over there
            raise PotashError(f"a worker has failed: {type(error).__name__}: {error}") from error

    def _result(self, drive: str, file: File, future: Any) -> Result:
        try:
            result: Result = self._value(future)
            return result
        except PotashError as error:
            lost = self.placement.missing(drive)
            one = Result(file.name, file.shard, drive, held=file.size, error=lost or str(error))
            return one._replace(missing=bool(lost))

"""Drives in a Dask worker: each is a device process, and a resource of the worker.

What begins with `dask_worker` is run in the worker's event loop, by `Client.run`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from distributed import Worker
from distributed.core import Status
from distributed.diagnostics.plugin import WorkerPlugin

import potash
import potash.sdk
from potash.devices import serving
from potash.fleet.directory import Directory, File
from potash.fleet.drives import Drive
from potash.sdk.accelerator import Accelerator
from potash.sdk.errors import PotashError

PLUGIN = "potash-drives"


def resource(drive: str) -> str:
    """The Dask resource that a job on a drive takes, so that a drive has one job at a time."""
    return f"potash:{drive}"


class Seen(NamedTuple):
    """A drive that is served, and what is on it."""

    drive: Drive
    files: Sequence[File]
    room: int


class About(NamedTuple):
    """A worker, and the drives that it serves."""

    name: str
    version: str
    drives: Mapping[str, Seen]


class ServedDrive:
    """A device process with a client, until `stop`; only jobs of the drive's resource use it.

    `owner` is who has had it served. `ended` is one that does not come back.
    """

    device: potash.sdk.Device
    accelerator: Accelerator
    directory: Directory

    def __init__(self, drive: Drive, owner: str) -> None:
        self.drive = drive
        self.owner = owner
        self.ready = False
        self.ended = False
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a device, or another one after it has died. Raises PotashError where there is no
        such drive."""
        known = threading.Event()
        errors: list[Exception] = []

        # A device ends with the thread that has started it, so that has to stay.
        def serve() -> None:
            try:
                with (
                    TemporaryDirectory(prefix="potash-") as folder,
                    serving(self.drive.configuration(Path(folder))) as served,
                    potash.sdk.open(f"vfio-user:{served.socket}") as device,
                ):
                    self.device, self.accelerator = device, device.accelerator()
                    self.directory = Directory(device.namespace())
                    self.ready = True
                    known.set()
                    self._over.wait()
            except (PotashError, OSError) as error:
                errors.append(error)
            finally:
                self.ready = False
                known.set()

        with self._changing:
            self._end()
            self._over.clear()
            if self.ended:
                raise PotashError("it was ended")
            self._thread = threading.Thread(target=serve, name=self.drive.name, daemon=True)
            self._thread.start()
            known.wait()
            if not self.ready:
                self.ended = True
                raise PotashError(str(errors[0]) if errors else "it was ended")

    def stop(self) -> None:
        """End the device process for good; what was written stays on its media."""
        self.ended = True  # first: a job that finds the device gone is not to start another one
        self._over.set()
        with self._changing:
            self._end()

    def _end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def seen(self) -> Seen:
        """The known contents of the drive, without a command to it."""
        return Seen(self.drive, tuple(self.directory.files.values()), self.directory.room)


class Drives(WorkerPlugin):
    """The drives of a worker, which end with it; also those that are starting."""

    def __init__(self) -> None:
        self.drives: dict[str, ServedDrive] = {}

    async def teardown(self, worker: Worker) -> None:
        await asyncio.gather(*(asyncio.to_thread(one.stop) for one in self.drives.values()))


def _known(dask_worker: Worker) -> dict[str, ServedDrive]:
    """The drives of a worker, also those that are starting or have ended."""
    plugin = dask_worker.plugins.get(PLUGIN)
    return plugin.drives if isinstance(plugin, Drives) else {}


def drives_of(dask_worker: Worker) -> dict[str, ServedDrive]:
    """The drives that a worker serves."""
    return {name: drive for name, drive in _known(dask_worker).items() if drive.ready}


def version() -> str:
    """The version of Potash."""
    return potash.__version__


async def about(dask_worker: Worker) -> About:
    """Name and version of the worker, and the drives that it serves."""
    seen = {name: drive.seen() for name, drive in drives_of(dask_worker).items()}
    return About(str(dask_worker.name), potash.__version__, seen)


async def open_drives(
    wanted: Mapping[str, Sequence[Drive]], owner: str, dask_worker: Worker
) -> Mapping[str, str]:
    """Serve the drives that are wanted of this worker; of each, why it cannot, or nothing."""
    if PLUGIN not in dask_worker.plugins:
        await dask_worker.plugin_add(Drives(), name=PLUGIN)
    drives = _known(dask_worker)
    reasons: dict[str, str] = {}

    async def open_one(drive: Drive) -> None:
        there = drives.get(drive.name)
        if there is not None and not there.ended:
            reasons[drive.name] = "another client has had it started"
            return
        opened = drives[drive.name] = ServedDrive(drive, owner)
        try:
            await asyncio.to_thread(opened.start)
            reasons[drive.name] = ""
        except PotashError as error:
            reasons[drive.name] = str(error)
            if drives.get(drive.name) is opened:
                del drives[drive.name]

    await asyncio.gather(*map(open_one, wanted.get(dask_worker.address, ())))
    served = [name for name, reason in reasons.items() if not reason and name in drives]
    await dask_worker.set_resources(**{resource(name): 1 for name in served})
    # Dask looks at jobs again that no worker could do when a worker comes or resumes, and not when
    # one has got what they need.
    if dask_worker.status == Status.running:
        dask_worker.status = Status.paused
        dask_worker.status = Status.running
    return reasons


async def close_drives(owner: str, dask_worker: Worker) -> None:
    """End the drives that this owner has had this worker serve, or start."""
    drives = _known(dask_worker)
    mine = [name for name, one in drives.items() if one.owner == owner]
    if mine:
        ending = [drives.pop(name).stop for name in mine]
        await dask_worker.set_resources(**{resource(name): 0 for name in mine})
        await asyncio.gather(*map(asyncio.to_thread, ending))

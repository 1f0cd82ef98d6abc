"""Drives in a Dask worker: each is a device process, and a resource of the worker.

What begins with `dask_worker` is run in the worker's event loop, by `Client.run`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distributed import Worker
from distributed.core import Status
from distributed.diagnostics.plugin import WorkerPlugin

import potash
import potash.sdk
from csd_spec.opcodes import PAGE_SIZE
from potash.fleet.directory import Directory, File
from potash.fleet.drives import Drive
from potash.sdk.accelerator import Accelerator
from potash.sdk.errors import PotashError
from potash.vm.drive import serving

PLUGIN = "potash-drives"


def resource(drive: str) -> str:
    """What a job on this drive takes of its worker: one, so that a drive has one job at a time."""
    return f"potash:{drive}"


class Seen(NamedTuple):
    """A drive that is served, and what is on it."""

    drive: Drive
    files: Sequence[File]
    room: int
    capacity: int


class About(NamedTuple):
    """A worker, and the drives that it serves."""

    name: str
    version: str
    drives: Mapping[str, Seen]


class ServedDrive:
    """A device process with a client, until `stop`; only jobs of the drive's resource use it."""

    device: potash.sdk.Device
    accelerator: Accelerator
    directory: Directory

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.ready = False
        self._ended = False
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises PotashError where there is no such drive."""
        with self._changing:
            self._start()

    def _start(self) -> None:
        if self._ended:
            raise PotashError("it was ended")
        known = threading.Event()
        errors: list[Exception] = []

        # A device ends with the thread that has started it, so that has to stay.
        def serve() -> None:
            try:
                with (
                    serving(*self.drive.words()) as socket,
                    potash.sdk.open(f"vfio-user:{socket}") as device,
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

        self._thread = threading.Thread(target=serve, name=self.drive.name, daemon=True)
        self._thread.start()
        known.wait()
        if not self.ready:
            raise PotashError(str(errors[0]) if errors else "it was ended")

    def stop(self) -> None:
        """End the device process for good; what was written stays on its media."""
        self._ended = True  # first: a job that finds the device gone is not to start another one
        self._over.set()
        with self._changing:
            self._end()

    def _end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def again(self) -> None:
        """After a device that has died. Raises PotashError where it does not start."""
        with self._changing:
            self._end()
            self._over.clear()
            self._start()

    def seen(self) -> Seen:
        """What is on it, without asking it."""
        files = tuple(self.directory.files.values())
        capacity = self.directory.pages * PAGE_SIZE
        return Seen(self.drive, files, self.directory.room, capacity)


class Drives(WorkerPlugin):
    """The drives of a worker, which end with it; also those that are starting."""

    def __init__(self) -> None:
        self.drives: dict[str, ServedDrive] = {}

    async def teardown(self, worker: Worker) -> None:
        await asyncio.gather(*(asyncio.to_thread(one.stop) for one in self.drives.values()))


def drives_of(dask_worker: Worker) -> dict[str, ServedDrive]:
    """The drives that a worker serves."""
    plugin = dask_worker.plugins.get(PLUGIN)
    drives = plugin.drives if isinstance(plugin, Drives) else {}
    return {name: drive for name, drive in drives.items() if drive.ready}


def version() -> str:
    """The version of Potash."""
    return potash.__version__


async def about(dask_worker: Worker) -> About:
    """What the worker is and serves."""
    seen = {name: drive.seen() for name, drive in drives_of(dask_worker).items()}
    return About(str(dask_worker.name), potash.__version__, seen)


async def open_drives(
    wanted: Mapping[str, Sequence[Drive]], dask_worker: Worker
) -> Mapping[str, str]:
    """Serve the drives that are wanted of this worker; the reasons of those that it cannot."""
    plugin = dask_worker.plugins.get(PLUGIN)
    if not isinstance(plugin, Drives):
        plugin = Drives()
        await dask_worker.plugin_add(plugin, name=PLUGIN)
    drives = plugin.drives
    mine = [
        ServedDrive(one) for one in wanted.get(dask_worker.address, ()) if one.name not in drives
    ]
    drives |= {one.drive.name: one for one in mine}
    reasons: dict[str, str] = {}

    async def open_one(opened: ServedDrive) -> None:
        try:
            await asyncio.to_thread(opened.start)
        except PotashError as error:
            reasons[opened.drive.name] = str(error)
            if drives.get(opened.drive.name) is opened:
                del drives[opened.drive.name]

    await asyncio.gather(*map(open_one, mine))
    served = [one.drive.name for one in mine if drives.get(one.drive.name) is one]
    await dask_worker.set_resources(**{resource(name): 1 for name in served})
    # Dask looks at jobs again that no worker could do when a worker comes or resumes, and not when
    # one has got what they need.
    if dask_worker.status == Status.running:
        dask_worker.status = Status.paused
        dask_worker.status = Status.running
    return reasons


async def close_drives(names: Sequence[str], dask_worker: Worker) -> None:
    """End the drives of these names that this worker serves, or is starting."""
    plugin = dask_worker.plugins.get(PLUGIN)
    if not isinstance(plugin, Drives):
        return
    mine = [plugin.drives.pop(name) for name in names if name in plugin.drives]
    if mine:
        await dask_worker.set_resources(**{resource(one.drive.name): 0 for one in mine})
        await asyncio.gather(*(asyncio.to_thread(one.stop) for one in mine))

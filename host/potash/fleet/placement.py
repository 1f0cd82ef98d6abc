"""Assignment of drives to workers, also of drives whose worker has died."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import potash
from potash.fleet.cluster import Client, cancel
from potash.fleet.drives import Drive
from potash.sdk.errors import PotashError

INTERVAL = 0.5
"""Seconds between two polls for the cluster's workers."""
ROUNDS = 10
"""Looks after which the workers are asked what they serve: a drive may have been ended by whoever
had it served."""


@dataclass
class Place:
    """Place of a drive: the address of its worker, or the reason why it is not served."""

    drive: Drive
    worker: str | None = None
    reason: str = ""
    since: float = field(default_factory=time.monotonic)
    """Time since which the drive has no worker."""
    opened: int = 0
    """Number of times that a worker began to serve the drive, or was found to serve it."""
    gone: bool = False
    """True if the drive is not waited for any more."""


class Placement:
    """Keeps drives served while it is open, from a thread of its own."""

    def __init__(self, client: Client, drives: Sequence[Drive], patience: float) -> None:
        self._client = client
        self._patience = patience
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._rounds = 0
        self._owner = secrets.token_hex(8)
        self._waiting: dict[str, weakref.WeakSet[Any]] = {}
        self.places = {drive.name: Place(drive) for drive in drives}
        self._thread = threading.Thread(target=self._tend_on, name="placement", daemon=True)

    def open(self) -> None:
        """Have every drive served that can be. Raises PotashError where none can."""
        _require_potash(self._client)
        while not self._settled():
            self._tend()
            if not self._settled():
                time.sleep(INTERVAL)
        if not any(one.worker for one in self.places.values()):
            raise PotashError(next(iter(self.places.values())).reason)
        self._thread.start()

    def close(self) -> None:
        """End the drives that were started here."""
        from potash.fleet.serving import close_drives

        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError, RuntimeError):  # the scheduler has gone
            self._client.run(close_drives, self._owner, on_error="ignore")

    @property
    def moves(self) -> int:
        """Number of times that drives came back on another worker."""
        return sum(max(0, one.opened - 1) for one in self.places.values())

    def missing(self, drive: str) -> str:
        """The reason not to wait for a drive; empty if it is served, or may be soon."""
        place = self.places[drive]
        return place.reason if place.gone else ""

    def wait_for(self, drive: str, future: Any) -> None:
        """Cancel this one when the drive is lost for good."""
        with self._lock:
            self._waiting.setdefault(drive, weakref.WeakSet()).add(future)

    def _settled(self) -> bool:
        return all(one.worker or one.gone for one in self.places.values())

    def _tend_on(self) -> None:
        while not self._over.wait(INTERVAL):
            try:
                self._tend()
            except (OSError, RuntimeError) as error:  # the scheduler has gone
                for place in self.places.values():
                    place.worker, place.gone = None, True
                    place.reason = f"the Dask scheduler is gone: {error}"
                self._cancel()
                return

    def _tend(self) -> None:
        from potash.fleet.serving import About

        alive: Mapping[str, Any] = self._client.nthreads()
        self._rounds = (self._rounds + 1) % ROUNDS
        seen = {} if self._rounds else _seen(self._client)
        for place in self.places.values():
            if place.worker is None:
                continue
            known = seen.get(place.worker)
            ended = isinstance(known, About) and place.drive.name not in known.drives
            if ended or place.worker not in alive:
                place.worker, place.since, place.reason = None, time.monotonic(), ""
        homeless = [one for one in self.places.values() if one.worker is None and not one.gone]
        if homeless:
            self._settle(homeless)
        self._cancel()

    def _settle(self, homeless: Sequence[Place]) -> None:
        from potash.fleet.serving import About, open_drives

        seen = {at: one for at, one in _seen(self._client).items() if isinstance(one, About)}
        load: Counter[str] = Counter({at: len(one.drives) for at, one in seen.items()})
        wanted: dict[str, list[Drive]] = {}
        for place in homeless:
            drive = place.drive
            serving = next((at for at, one in seen.items() if drive.name in one.drives), None)
            allowed = [at for at, one in seen.items() if _may(drive, at, one.name)]
            if serving is not None and seen[serving].drives[drive.name].drive != drive:
                self._lost(place, "it is served with other settings")
            elif serving is not None:
                place.worker = serving
                place.opened += 1
            elif place.opened and drive.media is None:
                self._lost(place, "it was in the memory of a worker that is gone")
            elif allowed:
                home = min(allowed, key=lambda at: load[at])
                load[home] += 1
                wanted.setdefault(home, []).append(drive)
            elif not place.reason:
                place.reason = (
                    "there is no worker that serves it"
                    if drive.worker is None
                    else f"worker {drive.worker}, which alone has its media, is not there"
                )
        opened: Mapping[str, Any] = {}
        if wanted:
            opened = self._client.run(
                open_drives, wanted, self._owner, workers=list(wanted), on_error="return"
            )
        for home, drives in wanted.items():
            reasons = opened.get(home, "it is gone")
            for place in (self.places[drive.name] for drive in drives):
                if isinstance(reasons, Mapping) and not reasons[place.drive.name]:
                    place.worker = home
                    place.opened += 1
                elif isinstance(reasons, Mapping):
                    place.reason = reasons[place.drive.name]
                else:
                    place.reason = f"worker {home} has failed: {reasons}"
        for place in homeless:
            if place.worker is None and time.monotonic() - place.since > self._patience:
                self._lost(place, place.reason)

    def _lost(self, place: Place, reason: str) -> None:
        place.gone, place.reason = True, f"drive {place.drive.name} is not served: {reason}"

    def _cancel(self) -> None:
        """Cancel the tasks that wait for drives that are lost for good."""
        with self._lock:
            lost = [
                future
                for name, place in self.places.items()
                if place.gone
                for future in self._waiting.pop(name, ())
            ]
        if lost:
            cancel(self._client, lost)


def _seen(client: Client) -> Mapping[str, Any]:
    """Each worker's report about itself, or its exception."""
    from potash.fleet.serving import about

    found: Mapping[str, Any] = client.run(about, on_error="return")
    return found


def _require_potash(client: Client) -> None:
    """Raises PotashError for no workers, and for a scheduler or workers without this Potash."""
    from potash.fleet.serving import version

    try:
        client.run_on_scheduler(version)
    except Exception as error:
        raise PotashError(
            f"the Dask scheduler cannot import Potash ({error}); install potash[fleet] there, too"
        ) from error
    seen = _seen(client)
    if not seen:
        raise PotashError("the Dask scheduler has no workers; start one")
    for address, one in seen.items():
        if isinstance(one, Exception) and "ModuleNotFoundError" in repr(one):
            raise PotashError(
                f"worker {address} has no Potash that serves drives; install"
                f" potash[fleet] {potash.__version__} there"
            )
        if isinstance(one, Exception):
            raise PotashError(f"worker {address} has failed: {type(one).__name__}: {one}")
        if one.version != potash.__version__:
            raise PotashError(
                f"worker {address} has Potash {one.version}, and this is {potash.__version__};"
                " install the same"
            )


def _may(drive: Drive, address: str, name: str) -> bool:
    """True if a worker can serve a drive."""
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    return drive.worker is None or drive.worker in (name, host, address)

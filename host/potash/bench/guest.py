"""Potash's drive and QEMU's own in one guest: fio runs on both alternately.

Both have as many blocks of 4 KiB in memory, QEMU's in a file there, as it has no memory of its own
for them. Both sit behind root ports of the same machine, and both are driven by the guest's own
NVMe driver. Whoever goes first in a pair goes second in the next one.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from potash.bench.drives import SIZE, WORKLOADS, Workload, filled
from potash.bench.processors import Followed, Meter, process_time, thread_time
from potash.bench.report import Result, Settings, paired
from potash.configuration import Configuration
from potash.devices import serving
from potash.namespace_sections import NamespaceSection
from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress
from potash.vm import images
from potash.vm.defaults import MEMORY
from potash.vm.guest import Guest
from potash.vm.images import GuestImages

BASELINE = "QEMU nvme"
POTASH, QEMU = "/dev/nvme0n1", "/dev/nvme1n1"
PROCESSORS = (1, 2)
LIMIT = 60.0
"""Seconds that a window may take beyond its length before the guest counts as hung."""


class Window(NamedTuple):
    """Work of one drive in one window; processor times are seconds for each command."""

    commands: float
    bytes: float
    vcpu: float
    device: float


def name(workload: Workload, processors: int) -> str:
    return workload.name if processors == 1 else f"{workload.name}-cpu{processors}"


NAMES = tuple(name(workload, processors) for processors in PROCESSORS for workload in WORKLOADS)


def measure(settings: Settings, progress: Progress) -> Iterator[Result]:
    """Measure what is named, in one guest for each number of processors. Raises PotashError where
    there is no memory for the drives, the guest does not start, or fio fails."""
    found = images.prepare(progress, mirror=settings.debian_mirror)
    names, pairs, seconds = settings.names, settings.pairs, settings.seconds
    done = 0
    for processors in PROCESSORS:
        chosen = [one for one in WORKLOADS if name(one, processors) in names]
        if not chosen:
            continue
        with _both(found, processors) as bench:
            for workload in chosen:
                label = name(workload, processors)
                windows = []
                for pair in range(pairs):
                    progress(label, (done + pair / pairs) / len(names))
                    windows.append(bench.pair(workload, seconds, potash_first=pair % 2 == 0))
                done += 1
                yield from _results(label, workload, windows)


class _Bench:
    """A guest with both drives, and the means to see what they cost."""

    def __init__(self, guest: Guest, device: int) -> None:
        self._guest = guest
        self._qemu = guest.machine.pid or 0
        self._device = device
        self._threads = guest.processor_threads()

    def pair(
        self, workload: Workload, seconds: float, *, potash_first: bool
    ) -> tuple[Window, Window]:
        """One window of each drive, Potash's and the baseline's."""
        drives = (POTASH, QEMU) if potash_first else (QEMU, POTASH)
        windows = {drive: self._window(drive, workload, seconds) for drive in drives}
        return windows[POTASH], windows[QEMU]

    def _window(self, drive: str, workload: Workload, seconds: float) -> Window:
        with Followed(self._meters()) as followed:
            done = self._guest.capture(self._fio(drive, workload, seconds), timeout=seconds + LIMIT)
        job = _job(done.stdout, done.stderr)
        side = job["read" if workload.reads else "write"]
        commands = int(side["total_ios"])
        # The guest's clock was set to this machine's when it was woken.
        start = job["job_start"] / 1e3
        used = followed.between(start, start + side["runtime"] / 1e3)
        device = used["qemu"] - used["vcpu"] + used["device"]
        return Window(
            commands=side["iops"],
            bytes=side["bw_bytes"],
            vcpu=used["vcpu"] / commands,
            device=device / commands,
        )

    def _meters(self) -> dict[str, Meter]:
        return {
            "vcpu": lambda: sum(thread_time(self._qemu, thread) for thread in self._threads),
            "qemu": lambda: process_time(self._qemu),
            "device": lambda: process_time(self._device),
        }

    def _fio(self, drive: str, workload: Workload, seconds: float) -> list[str]:
        processors = len(self._threads)
        return [
            *("fio", "--name=bench", f"--filename={drive}", "--direct=1", "--ioengine=io_uring"),
            *(f"--rw={workload.mode}", f"--bs={workload.block}", f"--iodepth={workload.depth}"),
            *("--time_based", f"--runtime={round(seconds * 1e3)}ms", "--output-format=json"),
            *(f"--numjobs={processors}", "--group_reporting", "--randrepeat=0"),
            *(f"--cpus_allowed=0-{processors - 1}", "--cpus_allowed_policy=split"),
        ]


@contextlib.contextmanager
def _both(images: GuestImages, processors: int) -> Iterator[_Bench]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(filled("baseline"))
        config = Configuration(namespaces=(NamespaceSection(SIZE),))
        device = stack.enter_context(serving(config))
        guest = stack.enter_context(Guest(images, device.socket, MEMORY, processors))
        guest.plug_file(folder / "baseline", name="baseline")
        guest.await_drive(QEMU)
        fill = ["fio", "--name=fill", f"--filename={POTASH}", "--rw=write", "--bs=128k"]
        done = guest.capture([*fill, "--direct=1", "--output-format=json"], timeout=LIMIT)
        _job(done.stdout, done.stderr)
        yield _Bench(guest, device.process.pid)


def _job(stdout: bytes, stderr: bytes) -> dict[str, Any]:
    try:
        # What fio has to say beside its report stands before it.
        job = json.loads(stdout[stdout.index(b"{") :])["jobs"][0]
    except (ValueError, LookupError):
        said = (stderr or stdout).decode(errors="replace").strip().splitlines()
        raise PotashError(f"fio fails in the guest: {(said or ['it says nothing'])[-1]}") from None
    if job["error"]:
        raise PotashError(f"fio fails in the guest with error {job['error']}")
    assert isinstance(job, dict)
    return job


def _results(
    label: str, workload: Workload, windows: Sequence[tuple[Window, Window]]
) -> Iterator[Result]:
    if workload.random:
        rates = [(potash.commands, baseline.commands) for potash, baseline in windows]
        yield paired(label, "iops", "1/s", BASELINE, rates)
    else:
        rates = [
            (potash.bytes / (1 << 20), baseline.bytes / (1 << 20)) for potash, baseline in windows
        ]
        yield paired(label, "throughput", "MiB/s", BASELINE, rates)
    vcpu = [(potash.vcpu * 1e6, baseline.vcpu * 1e6) for potash, baseline in windows]
    yield paired(label, "vcpu time", "µs/io", BASELINE, vcpu)
    device = [
        (potash.device * 1e6, max(baseline.device * 1e6, 1e-3)) for potash, baseline in windows
    ]
    yield paired(label, "device time", "µs/io", BASELINE, device)

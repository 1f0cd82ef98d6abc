"""A running Linux guest, with the drive behind a vfio-user socket plugged into it.

    with Guest(images.prepare(), socket) as guest:
        guest.run(["nvme", "list"], stdout=sys.stdout.buffer.write)

Leaving the block ends the machine; no process or file of it is left, however the block ends.
"""

import contextlib
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import tty
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from potash.sdk.errors import PotashError
from potash.sdk.progress import Progress, silent
from potash.vm import snapshot
from potash.vm.channel import Channel, Command, Input, Sink, discard
from potash.vm.defaults import CPUS, MEMORY
from potash.vm.errors import GuestError
from potash.vm.images import GuestImages
from potash.vm.machine import Machine
from potash.vm.qemu import CLIENT, Memory, Shape, monitor_arguments
from potash.vm.terminal import descriptor_sink, follow, restored, size
from potash.vm.unpacking import unpack

RESUME_LIMIT = 60.0
"""Seconds in which a frozen guest must answer again."""
DRIVE_LIMIT = 60.0
"""Seconds in which the guest's driver must have found the drive's namespace."""
FAREWELL_LIMIT = 30.0
DRIVE = "/dev/nvme0n1"
IN_ORDER = """
ordered() {{
    for disk in /sys/block/nvme{number}n*; do
        [ ! -e $disk ] || [ ${{disk##*n}} = "$(cat $disk/nsid)" ] || return 1
    done
}}
again() {{
    function=$(readlink -f /sys/class/nvme/nvme{number}/device)
    echo ${{function##*/}} > /sys/bus/pci/drivers/nvme/unbind
    echo ${{function##*/}} > /sys/bus/pci/drivers/nvme/bind
}}
all() {{ set -- /sys/block/nvme{number}n*; [ $# -ge {namespaces} ]; }}
path() {{
    set -- /sys/class/nvme/nvme{number}/nvme*c{number}n*
    [ -e "$1" ] && [ ! -e /sys/class/nvme-subsystem/nvme-subsys{number}/nvme{number} ]
}}
left=600
until path || {{ [ -b /dev/nvme{number}n1 ] && ordered && {{ all || [ $left = 0 ]; }}; }}; do
    ordered || again
    [ ! -b /dev/nvme{number}n1 ] || left=$((left - 1))
    usleep 10000
done
"""
SHELL = ("sh", "-l")


@dataclass(frozen=True)
class Captured:
    """The exit code and output of a command."""

    code: int
    stdout: bytes
    stderr: bytes


class Guest:
    """A guest; a context manager. It belongs to the thread that enters it.

    Args:
        images: the files that it is started from.
        socket: the vfio-user socket of the drive that is plugged in at `rp0`, or None for none.
        more: sockets of further drives, or of further controllers of a drive, at `rp1` and on, in
            the order of their names in the guest.
        memory: its size in MiB.
        cpus: number of processors.
        backend: the kind of file that holds its memory.
        namespaces: number of namespaces of the drive at `rp0`, if it is known.
        monitors: sockets at which QEMU makes a monitor for each device that stops the guest while
            its own work is behind.
        progress: called when the guest has to be booted first.
        life_limit: seconds without any sign of life after which the guest counts as hung. These,
            as all limits, are of the guest's own time.

    Raises:
        GuestError: on entering: the guest does not boot, or does not find the drive. Its message
            ends with the console's last lines.
    """

    def __init__(
        self,
        images: GuestImages,
        socket: Path | None = None,
        memory: int = MEMORY,
        cpus: int = CPUS,
        *,
        backend: Memory = Memory.MEMFD,
        more: Sequence[Path] = (),
        namespaces: int = 1,
        monitors: Sequence[Path] = (),
        progress: Progress = silent,
        life_limit: float = 60.0,
    ) -> None:
        self.images = images
        self.socket = socket
        self.more = tuple(more)
        self.namespaces = namespaces
        self.monitors = tuple(monitors)
        self.shape = Shape(memory, cpus, backend)
        self._progress = progress
        self._life_limit = life_limit
        self._owned = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.machine = self._resume(stack)
            with self._console():
                if self.socket is not None:
                    self.plug_socket(self.socket)
                    self._await_namespaces(0, self.namespaces)
                # One after the other, so that Linux numbers them in this order.
                for number, socket in enumerate(self.more, start=1):
                    self.plug_socket(socket, name=f"potash{number}", bus=f"rp{number}")
                    self._await_namespaces(number)
            self._owned = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._owned:
            if kind is None:
                self._write_back()

    def plug(
        self, driver: str, properties: Mapping[str, Any], *, name: str, bus: str = "rp0"
    ) -> None:
        """Plug a device of QEMU's into a root port: its driver, identifier and properties, as in
        QEMU's option `-device`."""
        placed = {"driver": driver, "id": name, "bus": bus, **properties}
        with self._console():
            self.machine.qmp.execute("device_add", placed)

    def plug_socket(self, socket: Path, *, name: str = "potash0", bus: str = "rp0") -> None:
        address = {"type": "unix", "path": str(socket.absolute())}
        self.plug(CLIENT, {"socket": address}, name=name, bus=bus)

    def plug_file(self, blocks: Path, *, name: str, bus: str = "rp1") -> None:
        """Plug in QEMU's own NVMe drive over a file with its blocks, for a comparison in the same
        guest; `name` is its identifier and its serial number."""
        node = {"node-name": f"{name}-blocks", "driver": "file", "filename": str(blocks.absolute())}
        with self._console():
            self.machine.qmp.execute("blockdev-add", node)
        sizes = dict.fromkeys(("logical_block_size", "physical_block_size"), 4096)
        self.plug("nvme", {"serial": name, "drive": node["node-name"], **sizes}, name=name, bus=bus)

    def processor_threads(self) -> list[int]:
        """The IDs of QEMU's threads that execute the guest, to measure their processor time."""
        with self._console():
            answer = self.machine.qmp.execute("query-cpus-fast")
        return [int(processor["thread-id"]) for processor in answer]

    def await_drive(self, path: str = DRIVE, limit: float = DRIVE_LIMIT) -> None:
        """Wait until the guest has a block device. Raises GuestError where it has none within
        `limit` seconds."""
        self._await(path, f"until [ -b {path} ]; do usleep 10000; done", limit)

    def _await_namespaces(self, number: int, namespaces: int = 1) -> None:
        """Wait for a drive's first block device, and until all its devices have their names; or
        for a controller to be a path to a device that was there before.

        Linux 6.12 scans namespaces in parallel, and numbers their devices in the order in which the
        scans end: namespace 3 may become ng0n2. The driver repeats the scan then.
        """
        waiting = IN_ORDER.format(number=number, namespaces=namespaces)
        self._await(f"/dev/nvme{number}n1", waiting, DRIVE_LIMIT)

    def _await(self, path: str, waiting: str, limit: float) -> None:
        try:
            self._finish(self.channel.start(["sh", "-c", waiting]), limit)
        except GuestError as error:
            kernel = self.capture(["sh", "-c", "dmesg | tail -n 15"], timeout=DRIVE_LIMIT)
            raise GuestError(
                f"the guest has no {path} after {limit:g} seconds", kernel.stdout.decode().strip()
            ) from error

    def start(
        self,
        argv: Sequence[str],
        *,
        stdin: Input = None,
        stdout: Sink = discard,
        stderr: Sink = discard,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Command:
        """Start a command without waiting for its end; several may run at the same time."""
        return self.channel.start(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd)

    def run(
        self,
        argv: Sequence[str],
        stdin: Input = None,
        stdout: Sink = discard,
        stderr: Sink = discard,
        timeout: float | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> int:
        """Run a command to its end.

        Args:
            argv: the program and its arguments; a shell only when it is named.
            stdin: bytes, or something with a descriptor, or None for no input.
            stdout: called with each piece of its standard output as it comes.
            stderr: likewise.
            timeout: seconds; when they are over the command is killed.

        Returns:
            Its exit code: 127 when there is no such program, 128 + n when signal n ended it.

        Raises:
            GuestTimeout: it took longer, or the guest hangs.
            GuestError: the guest has ended.
        """
        with self._console():
            command = self.start(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd)
            return self._finish(command, timeout)

    def capture(
        self, argv: Sequence[str], stdin: Input = None, timeout: float | None = 60.0
    ) -> Captured:
        """Run a command and keep what it says."""
        stdout, stderr = bytearray(), bytearray()
        code = self.run(argv, stdin, stdout.extend, stderr.extend, timeout)
        return Captured(code, bytes(stdout), bytes(stderr))

    def copy_in(self, source: Path, destination: str) -> None:
        """Copy a file or a folder from the host to a path in the guest; folders above it are made.
        Raises PotashError where it cannot be read, or the guest has no room for it."""
        target = PurePosixPath(destination)
        with tempfile.TemporaryFile() as archive:
            try:
                with tarfile.open(fileobj=archive, mode="w") as tar:
                    tar.add(source.resolve(strict=True), arcname=target.name)
            except (OSError, ValueError) as error:
                raise PotashError(f"{source} cannot be copied into the guest: {error}") from error
            archive.seek(0)
            script = 'mkdir -p "$0" && exec tar -x -o -C "$0"'
            done = self.capture(["sh", "-c", script, str(target.parent)], archive, None)
        if done.code:
            raise PotashError(f"the guest cannot take {source}: {_last_line(done.stderr)}")

    def copy_out(self, source: str, destination: Path) -> None:
        """Copy a file or a folder out of the guest, to a path of the host or into an existing
        folder. Raises PotashError where there is no such thing, or it cannot be written."""
        origin = PurePosixPath(source)
        target = destination / origin.name if destination.is_dir() else destination
        with tempfile.TemporaryFile() as archive, self._beside(target) as place:
            stderr = bytearray()
            argv = ["tar", "-c", "-C", str(origin.parent), origin.name]
            if self.run(argv, None, archive.write, stderr.extend):
                raise PotashError(f"the guest has no {source}: {_last_line(stderr)}")
            archive.seek(0)
            try:
                with tarfile.open(fileobj=archive) as tar:
                    unpack(tar, place)
                if target.is_dir() and not target.is_symlink():
                    shutil.rmtree(target)
                os.replace(place / origin.name, target)
            except (OSError, tarfile.TarError) as error:
                raise PotashError(f"{source} cannot be copied to {target}: {error}") from error

    def shell(self, argv: Sequence[str] = SHELL) -> int:
        """Run a shell at this process's terminal, or with its standard streams if it has none.
        Returns its exit code."""
        standard = sys.stdin
        if not (standard.isatty() and sys.stdout.isatty()):
            return self.run(argv, standard, descriptor_sink(1), descriptor_sink(2))
        with self._console(), restored(standard.fileno()):
            tty.setraw(standard.fileno())  # Every key, Ctrl-C included, is the guest's.
            command = self.channel.start(
                argv,
                stdin=standard,
                stdout=descriptor_sink(1),
                env={"TERM": os.environ.get("TERM", "linux")},
                terminal=size(),
            )
            return _exit_code(follow(self.channel, command))

    def _resume(self, stack: contextlib.ExitStack) -> Machine:
        """Resume the frozen guest; if that fails, boot a new one, once."""
        more = monitor_arguments(self.monitors)
        for attempt in (1, 2):
            state = snapshot.frozen(self.images, self.shape, self._progress)
            with contextlib.ExitStack() as trial:
                try:
                    machine = trial.enter_context(state.machine(self.images.qemu, *more))
                    state.resume(machine)
                    self.channel = Channel(machine.control, self._life_limit, machine.seconds)
                    self.channel.greet(RESUME_LIMIT)
                except GuestError:
                    state.state.unlink(missing_ok=True)
                    if attempt == 2:
                        raise
                    continue
                stack.push(trial.pop_all())
                return machine
        raise AssertionError("both attempts have ended")

    def _write_back(self) -> None:
        """Let the guest write what it still holds in memory for its drives."""
        try:
            self.channel.start(["sync"]).wait(FAREWELL_LIMIT)
        except GuestError as error:
            reason = f"what the guest had not yet written is lost: {error.reason}"
            raise type(error)(reason, self.machine.console()) from error

    def _finish(self, command: Command, timeout: float | None) -> int:
        try:
            return _exit_code(command.wait(timeout))
        except GuestError:
            if command.code is None:
                with contextlib.suppress(GuestError):
                    command.signal(signal.SIGKILL)
            raise

    @contextlib.contextmanager
    def _console(self) -> Iterator[None]:
        """Add the guest's console to errors that the block raises."""
        try:
            yield
        except GuestError as error:
            if error.console:
                raise
            raise type(error)(error.reason, self.machine.console()) from error

    @contextlib.contextmanager
    def _beside(self, target: Path) -> Iterator[Path]:
        """A scratch folder on the target's own file system."""
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(prefix=".potash-", dir=target.parent)
        except OSError as error:
            raise PotashError(f"{target} cannot be written: {error}") from error
        with scratch as name:
            yield Path(name)


def _exit_code(code: int) -> int:
    """The exit code as a shell reports it."""
    return 128 - code if code < 0 else code


def _last_line(said: bytes | bytearray) -> str:
    return (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]

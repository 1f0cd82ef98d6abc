"""Context managers that start drives, and guests with drives, for tests."""

import difflib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypedDict, Unpack

from potash.sdk import VFIO_USER_SCHEME
from potash.sdk import faults as sdk_faults
from potash.sdk.commands import DEFAULT_TIMEOUT
from potash.sdk.device import Device
from potash.sdk.faults import Fault
from potash.sdk.transport import Transport
from potash.sdk.vfio_user import open_vfio_user
from potash.vm import images
from potash.vm.drive import device_process, serving_guest
from potash.vm.guest import Guest
from potash.vm.qemu import CPUS, MEMORY


class DriveOptions(TypedDict, total=False):
    """Options of a drive; each is an option of `potash serve`."""

    size: int | str
    """Bytes of its one namespace, or text like "64M" (which is the default without media)."""
    namespaces: Sequence[str]
    """Several namespaces instead, each "SIZE" or "SIZE:BLOCK"."""
    media: Path
    """Where its blocks are kept (default: in memory)."""
    accelerators: Sequence[str]
    """Sizes of each one's buffers, "SIZE" or "INPUT:OUTPUT" (default: one of 64M)."""
    faults: Sequence[str | Fault]
    """Faults that are armed from the start."""
    serial: str
    profile: str
    engine: str
    options: Sequence[str]
    """Further options of `potash serve`, as on its command line."""


DEFAULT_SIZE = "64M"


def drive_options(wanted: DriveOptions) -> list[str]:
    """The command line of a drive, which takes further faults by command.

    Raises TypeError for an option that does not exist.
    """
    options = DriveOptions.__annotations__
    if unknown := next((name for name in wanted if name not in options), None):
        near = difflib.get_close_matches(unknown, options, 1)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(options)}"
        raise TypeError(f"a drive got an unexpected keyword argument {unknown!r}; {meant}")
    words = ["--allow-faults"]
    if "size" in wanted:
        words += ["--size", str(wanted["size"])]
    elif not wanted.get("namespaces") and "media" not in wanted:
        words += ["--size", DEFAULT_SIZE]
    for namespace in wanted.get("namespaces", ()):
        words += ["--namespace", namespace]
    for accelerator in wanted.get("accelerators", ()):
        words += ["--accelerator", accelerator]
    for fault in wanted.get("faults", ()):
        words += ["--fault", fault if isinstance(fault, str) else sdk_faults.describe(fault)]
    if "media" in wanted:
        words += ["--media", str(wanted["media"])]
    for name, value in (
        ("--serial", wanted.get("serial")),
        ("--profile", wanted.get("profile")),
        ("--engine", wanted.get("engine")),
    ):
        words += [name, value] if value is not None else []
    return [*words, *wanted.get("options", ())]


class BootedDevice(Device):
    """A drive in a separate process, as an SDK `Device`.

    Attributes:
        socket: path of its socket. This object is its only client.
        process: the drive's process.
    """

    def __init__(
        self,
        transport: Transport,
        socket: Path,
        process: subprocess.Popen[bytes],
        owned: ExitStack,
        *,
        timeout: float,
    ) -> None:
        super().__init__(transport, timeout=timeout)
        self.target = f"{VFIO_USER_SCHEME}{socket}"
        self.socket = socket
        self.process = process
        self._owned = owned

    def close(self) -> None:
        """Disconnect from the drive and end it, as Ctrl-C does."""
        with self._owned:
            super().close()

    def kill(self) -> None:
        """Kill the drive; flushed data is on its media."""
        self.process.kill()
        self.process.wait()

    def add_fault(self, fault: str | Fault) -> int:
        """Inject a fault from now on; the number with which it is cleared."""
        return sdk_faults.add(self, fault)

    def faults(self) -> list[Fault]:
        """The drive's faults, and how often each was triggered."""
        return sdk_faults.listed(self)

    def clear_faults(self) -> None:
        """Clear all faults."""
        sdk_faults.clear(self)


def booted_device(
    *, timeout: float = DEFAULT_TIMEOUT, verbose: bool = False, **wanted: Unpack[DriveOptions]
) -> BootedDevice:
    """A drive until the end of the block, or its `close`.

    Args:
        timeout: seconds that a command may take.
        verbose: show the drive's log on standard error.
        wanted: options of the drive.

    Raises:
        TypeError: there is no such option.
        PotashError: the drive does not start; the text is the reason.
    """
    with ExitStack() as stack:
        # A test's own folder may be too deep for the name of a socket.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="potash-"))
        socket = Path(folder) / "drive"
        options = drive_options(wanted)
        process = stack.enter_context(device_process(socket, *options, verbose=verbose))
        transport = open_vfio_user(str(socket), timeout=timeout)
        return BootedDevice(transport, socket, process, stack.pop_all(), timeout=timeout)


@contextmanager
def booted_guest(
    *,
    more: Sequence[DriveOptions] = (),
    memory: int = MEMORY,
    cpus: int = CPUS,
    mirror: str | None = None,
    verbose: bool = False,
    **wanted: Unpack[DriveOptions],
) -> Iterator[Guest]:
    """A Linux guest with a drive at /dev/nvme0n1, until the end of the block.

    Args:
        more: further drives, at /dev/nvme1n1 and on; each with a different serial number.
        memory: in MiB.
        cpus: number of processors.
        mirror: the Debian archive's address (default: the one that apt is configured with).
        verbose: show the drives' logs on standard error.
        wanted: options of the drive.

    Raises:
        TypeError: there is no such option of a drive.
        PackagesUnavailable: the guest's packages cannot be downloaded.
        PotashError: the guest or a drive does not start; the text is the reason.
    """
    drives = [drive_options(one) for one in (wanted, *more)]
    found = images.prepare(mirror=mirror)
    with (
        serving_guest(drives, verbose=verbose) as ((first, *others), monitors),
        Guest(found, first, memory, cpus, more=others, monitors=monitors) as guest,
    ):
        yield guest

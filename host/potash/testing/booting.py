"""Context managers that start drives, and guests with drives, for tests."""

import difflib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from potash import options
from potash.configuration import Configuration
from potash.control import change_access
from potash.devices import serving, serving_guest
from potash.namespace_sections import NamespaceSection
from potash.sdk import VFIO_USER_SCHEME
from potash.sdk import faults as sdk_faults
from potash.sdk.commands import DEFAULT_TIMEOUT
from potash.sdk.device import Device
from potash.sdk.faults import Fault
from potash.sdk.transport import HostClock, Transport
from potash.sdk.vfio_user import open_vfio_user
from potash.vm import images
from potash.vm.defaults import CPUS, MEMORY
from potash.vm.guest import Guest

DEFAULT_SIZE = 64 << 20
"""Bytes of the namespace of a drive without media."""


def drive_options() -> list[str]:
    """The names of a drive's options."""
    return [*(option.name or "" for option in options.device_options(guest=False)), "options"]


def drive_configuration(wanted: Mapping[str, Any]) -> Configuration:
    """The configuration of a drive, which takes further faults by command. Raises TypeError for an
    option that there is not, and PotashError for a value that an option does not have."""
    names = drive_options()
    if unknown := next((name for name in wanted if name not in names), None):
        near = difflib.get_close_matches(unknown, names, 1)
        meant = f"did you mean {near[0]!r}?" if near else "potash serve --help lists them"
        raise TypeError(f"a drive got an unexpected keyword argument {unknown!r}; {meant}")
    values = dict(wanted)
    found = options.parse(values.pop("options", ()), {"allow_faults": True, **values})
    if found.namespaces or found.device.media is not None:
        return found
    return replace(found, namespaces=(NamespaceSection(DEFAULT_SIZE),))


class BootedDevice(Device):
    """A drive in a separate process, as an SDK `Device`.

    Attributes:
        socket: path of its socket. This object is its only client.
        sockets: paths of the sockets of all its controllers.
        process: the drive's process.
        controllers: a client of each controller of the drive; the first is this object.
    """

    def __init__(
        self,
        transport: Transport,
        socket: Path,
        process: subprocess.Popen[bytes],
        owned: ExitStack,
        *,
        timeout: float,
        others: Sequence[Device] = (),
        sockets: Sequence[Path] = (),
    ) -> None:
        super().__init__(transport, timeout=timeout)
        self.controllers: tuple[Device, ...] = (self, *others)
        self.target = f"{VFIO_USER_SCHEME}{socket}"
        self.socket = socket
        self.sockets = tuple(sockets) or (socket,)
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

    def change_access(
        self, state: str, *, group: int = 1, controller: int = 0, transition: float = 0.0
    ) -> None:
        """Change the state of a controller's access to an ANA group: "optimized", "non-optimized",
        "inaccessible" or "persistent-loss", after `transition` seconds in the Change state. Raises
        PotashError."""
        change_access(self.sockets[controller], state, group=group, transition=transition)

    def clear_faults(self) -> None:
        """Clear all faults."""
        sdk_faults.clear(self)


def booted_device(
    *,
    timeout: float = DEFAULT_TIMEOUT,
    verbose: bool = False,
    queue_depth: int = 1,
    host_clock: HostClock | None = None,
    controllers: int = 1,
    **wanted: Any,
) -> BootedDevice:
    """A drive until the end of the block, or its `close`.

    Args:
        controllers: number of its controllers, of which each has a client (`controllers` of the
            result).
        timeout: seconds that a command may take.
        verbose: show the drive's log on standard error.
        queue_depth: commands that can be in flight at once.
        host_clock: the host's clock, for a drive with `clock="stepped"`.
        wanted: options of `potash serve`, by their names with underscores: `size="64M"`,
            `read_only=True`, `time="modelled"`. One that may be repeated has a list and is named in
            the plural: `namespaces`, `accelerators`, `faults`. `options` is a list of further
            options, as on the command line. Without `media`, the drive has 64 MiB in memory.

    Raises:
        TypeError: there is no such option.
        PotashError: the drive does not start; the text is the reason.
    """
    with ExitStack() as stack:
        config = drive_configuration(wanted)
        served = stack.enter_context(serving(config, controllers=controllers, verbose=verbose))
        transport, *more = (
            open_vfio_user(str(socket), timeout=timeout, queue_depth=queue_depth, clock=host_clock)
            for socket in served.sockets
        )
        others = [stack.enter_context(Device(each, timeout=timeout)) for each in more]
        owned = stack.pop_all()
    return BootedDevice(
        transport,
        served.socket,
        served.process,
        owned,
        timeout=timeout,
        others=others,
        sockets=served.sockets,
    )


@contextmanager
def booted_guest(
    *,
    more: Sequence[Mapping[str, Any]] = (),
    memory: int = MEMORY,
    cpus: int = CPUS,
    mirror: str | None = None,
    verbose: bool = False,
    **wanted: Any,
) -> Iterator[Guest]:
    """A Linux guest with a drive at /dev/nvme0n1, until the end of the block.

    Args:
        more: further drives, at /dev/nvme1n1 and on; each with a different serial number.
        memory: in MiB.
        cpus: number of processors.
        mirror: the Debian archive's address (default: the one that apt is configured with).
        verbose: show the drives' logs on standard error.
        wanted: options of the drive, as `booted_device` takes them.

    Raises:
        TypeError: there is no such option of a drive.
        PackagesUnavailable: the guest's packages cannot be downloaded.
        PotashError: the guest or a drive does not start; the text is the reason.
    """
    drives = [drive_configuration(one) for one in (wanted, *more)]
    found = images.prepare(mirror=mirror)
    with (
        serving_guest(drives, verbose=verbose) as ((first, *others), monitors),
        Guest(found, first, memory, cpus, more=others, monitors=monitors) as guest,
    ):
        yield guest

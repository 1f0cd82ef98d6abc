"""A custom system with the drive: the user's own kernel, disks and console.

Potash runs no agent in it, so it is not frozen, and there are no commands to copy files or run
programs: QEMU boots the system with the drives plugged in, and its serial port is this process's
terminal.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from potash.sdk.errors import PotashError
from potash.vm.parent_death import dies_with_parent
from potash.vm.qemu import (
    CLIENT,
    Accelerator,
    Qemu,
    Shape,
    bare_machine,
    monitor_arguments,
    root_ports,
)
from potash.vm.terminal import restored

APPEND = "console=ttyS0"
"""The kernel's command line when none is given: its console is the serial port."""

_QCOW2_MAGIC = b"QFI\xfb"


class Disk(NamedTuple):
    """A file as a virtio disk, raw or qcow2; its blocks change only if it is `writable`."""

    path: Path
    writable: bool = False


@dataclass(frozen=True)
class System:
    """A system to boot: from a kernel, or from the boot loader of the first disk where there is no
    kernel."""

    kernel: Path | None = None
    initrd: Path | None = None
    append: str = APPEND
    disks: tuple[Disk, ...] = ()

    def arguments(
        self,
        accelerator: Accelerator,
        shape: Shape,
        sockets: Sequence[Path],
        monitors: Sequence[Path] = (),
    ) -> list[str]:
        """QEMU's options for it: sockets of its drives in order, and paths at which QEMU makes a
        monitor for each device that stops the guest while its own work is behind. Raises OSError
        where a disk cannot be read."""
        options = bare_machine(accelerator, shape)
        if self.kernel is not None:
            options += ["-kernel", str(self.kernel), "-append", self.append]
        if self.initrd is not None:
            options += ["-initrd", str(self.initrd)]
        for number, disk in enumerate(self.disks):
            options += _disk(f"disk{number}", disk)
        options += root_ports()
        options += monitor_arguments(monitors)
        for number, socket in enumerate(sockets):
            address = {"type": "unix", "path": str(socket.absolute())}
            drive = {"driver": CLIENT, "id": f"potash{number}", "bus": f"rp{number}"}
            options += ["-device", _json({**drive, "socket": address})]
        # The monitor shares the terminal: Ctrl-A C reaches it, Ctrl-A X ends QEMU.
        options += ["-chardev", "stdio,id=console,mux=on,signal=off", "-serial", "chardev:console"]
        return [*options, "-mon", "chardev=console,mode=readline"]


def run(qemu: Qemu, arguments: Sequence[str]) -> None:
    """Run a system at this process's terminal until it ends. Raises PotashError where QEMU does not
    take it; what it said is the reason."""
    # QEMU does not restore the terminal if it is killed.
    terminal = restored(sys.stdin.fileno()) if sys.stdin.isatty() else contextlib.nullcontext()
    with tempfile.TemporaryFile() as said, terminal:
        process = subprocess.Popen(dies_with_parent([*qemu.command, *arguments]), stderr=said)
        try:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"it ended with {code} and said nothing"
            raise PotashError(f"QEMU does not run the system: {reason}")


def _disk(name: str, disk: Disk) -> list[str]:
    with disk.path.open("rb") as stream:
        image_format = "qcow2" if stream.read(len(_QCOW2_MAGIC)) == _QCOW2_MAGIC else "raw"
    file = {"driver": "file", "filename": str(disk.path.absolute())}
    node = {"driver": image_format, "node-name": name, "read-only": not disk.writable, "file": file}
    return ["-blockdev", _json(node), "-device", f"virtio-blk-pci,drive={name}"]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))

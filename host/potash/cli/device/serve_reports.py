"""What `potash serve` reports of its device."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from csd_spec.reporting import Count, Form, Positive
from potash.cli.drive.common import say
from potash.units import human
from potash_device.media.drive import Drive


class Namespace(NamedTuple):
    """A namespace of the drive."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    size: Annotated[Count, "Size in bytes."]
    block_size: Annotated[int, Form(enum=[512, 4096]), "Size of a block in bytes."]
    read_only: Annotated[bool, "Whether it is read-only."]


class Serving(NamedTuple):
    """A running device; printed as soon as clients can connect."""

    socket: Annotated[str, "Absolute path of the UNIX socket."]
    media: Annotated[
        str | None, "The directory or file that stores the drive; null if it is in memory."
    ]
    size: Annotated[Count, "Total size of all namespaces in bytes."]
    capacity: Annotated[Count, "Maximum total size of all namespaces in bytes."]
    namespaces: Annotated[Sequence[Namespace], "All namespaces."]
    qemu_device: Annotated[str, "Value of QEMU's -device option that attaches the drive."]
    metrics: Annotated[str | None, "URL of the metrics for Prometheus; null without --metrics."]


def qemu_device(socket: Path) -> str:
    """The `-device` argument that gives QEMU the device behind `socket`."""
    return json.dumps(
        {"driver": "vfio-user-pci", "socket": {"type": "unix", "path": str(socket)}},
        separators=(",", ":"),
    )


def announce(socket: Path, media: Path | None, drive: Drive, metrics: str | None) -> None:
    """Say where the drive is that listens now, and how it is used."""
    device = qemu_device(socket)
    namespaces = [
        Namespace(nsid, drive.shapes[nsid].data_size, drive.block_sizes[nsid], one.read_only)
        for nsid, one in drive.namespaces.items()
    ]
    report = Serving(
        socket=str(socket),
        media=str(media) if media else None,
        size=sum(one.size for one in namespaces),
        capacity=drive.capacity,
        namespaces=namespaces,
        qemu_device=device,
        metrics=metrics,
    )
    where = f"in {media}" if media else "in memory until this command ends"
    what = " and ".join(human(one.size) for one in namespaces) or "no namespace yet"
    if drive.memory_allocated:
        what += f", with {human(drive.memory_allocated)} of memory"
    lines = [
        f"A drive of {what}, {where}, listens at {socket}",
        "Options for QEMU (10.1.1 or later):",
        f"  -device {shlex.quote(device)}",
        "and, for guest memory that can be mapped:",
        "  -object memory-backend-memfd,id=m0,size=1G,share=on -M q35,memory-backend=m0",
    ]
    if metrics is not None:
        lines.append(f"Metrics for Prometheus: {metrics}")
    say(report, [*lines, f"Without QEMU: potash run vfio-user:{socket} PROGRAM INPUT OUTPUT"])

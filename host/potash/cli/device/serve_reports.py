"""What `potash serve` reports as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from potash.schema import Count, Form, Positive


@dataclass(frozen=True)
class Namespace:
    """A namespace of the drive."""

    nsid: Annotated[Positive, "The namespace's identifier."]
    size: Annotated[Count, "Size in bytes."]
    block_size: Annotated[int, Form(enum=[512, 4096]), "Size of a block in bytes."]
    read_only: Annotated[bool, "Whether it is read-only."]


@dataclass(frozen=True)
class Serving:
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

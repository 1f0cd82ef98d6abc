"""Flushes of namespaces whose contents are durable: of blocks, and of keys."""

from collections.abc import Callable, Iterable

from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_firmware.rpu.namespaces.inventory import StoredNamespace

Flushed = tuple[StoredNamespace, MediaError | None]
"""A namespace that was flushed, and the error, if any."""


def flushing(namespaces: Iterable[StoredNamespace]) -> Callable[[], list[Flushed]]:
    """A call for the media executor, which flushes each namespace whatever becomes of the others.

    A namespace that is being formatted is left out: its contents are void, and its files are being
    replaced. The format itself has waited for every flush that began before (`Operations.quiet`).
    """
    flushed = [ns for ns in namespaces if ns.in_flight.closed is not Status.FORMAT_IN_PROGRESS]

    def flush() -> list[Flushed]:
        ended: list[Flushed] = []
        for namespace in flushed:
            try:
                namespace.media.flush()
            except MediaError as error:
                ended.append((namespace, error))
            else:
                ended.append((namespace, None))
        return ended

    return flush


def require_not_formatting(namespace: StoredNamespace) -> None:
    """Raise NvmeError while the namespace is being formatted."""
    if namespace.in_flight.closed is Status.FORMAT_IN_PROGRESS:
        raise NvmeError(
            Status.FORMAT_IN_PROGRESS, f"namespace {namespace.nsid} is being formatted", dnr=False
        )

"""Format NVM: an LBA format and empty blocks for one namespace, or for all that are attached.

The drive's list records durably that a namespace is to be erased before the erase begins; a device
that ends during it erases the namespace at its next start.

Source: NVM Express Base Specification 2.0, section 5.14 (Format NVM).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from nvme_spec.logs import SelfTestResult
from nvme_spec.persistent_events import FormatCompleted, FormatStarted
from nvme_spec.queues import BROADCAST_NSID
from nvme_spec.status import NvmeError, Status
from potash_device.media.errors import MediaError
from potash_device.media.shapes import FORMATS, Metadata, NamespaceShape
from potash_device.storage import Storage
from potash_firmware.rpu.media_work import MediaFailures
from potash_firmware.rpu.namespaces.inventory import Namespaces, StoredNamespace
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.namespace import Namespace
from potash_firmware.rpu.namespaces.uncorrectable import UncorrectableBlocks
from potash_firmware.rpu.namespaces.uncorrectable_record import UncorrectableRecord
from potash_firmware.rpu.operations.operations import Operations
from potash_firmware.rpu.operations.sanitize import Sanitizing
from potash_firmware.rpu.operations.self_tests import SelfTests
from potash_firmware.rpu.reports import DriveReports
from potash_firmware.rpu.scheduler import Signal, Steps

ERASED_PIECE = 1 << 30
"""Bytes that a format erases in one go."""


@dataclass(eq=False, repr=False)
class Formatting:
    """The formats that commands of one controller begin.

    `erase_accelerators` gives a signal that is sent when the accelerators hold no user data.
    """

    storage: Storage
    namespaces: Namespaces
    uncorrectable: UncorrectableRecord
    operations: Operations
    self_tests: SelfTests
    reports: DriveReports
    sanitizing: Sanitizing
    failures: MediaFailures
    erase_accelerators: Callable[[], Signal]

    def format(
        self, nsid: int, block_size: int, metadata: Metadata, *, erases: bool, dword10: int
    ) -> Steps[list[int]]:
        """Format namespace `nsid`, or all; with `erases`, what jobs have read of it goes too. The
        result is the identifiers of the namespaces that were formatted.

        The persistent event log has how it began and how it ended.
        """
        self.reports.persistent_events.add(FormatStarted(nsid=nsid, cdw10=dword10))
        try:
            nsids = yield from self._format(nsid, block_size, metadata, erases)
        except (NvmeError, MediaError) as error:
            status = error.status if isinstance(error, NvmeError) else Status.INTERNAL_ERROR
            self.reports.persistent_events.add(
                FormatCompleted(nsid=nsid, format_status=1, status=status << 1)
            )
            raise
        self.reports.persistent_events.add(FormatCompleted(nsid=nsid))
        return nsids

    def _format(
        self, nsid: int, block_size: int, metadata: Metadata, erases: bool
    ) -> Steps[list[int]]:
        self.sanitizing.require_none()
        every = nsid == BROADCAST_NSID
        attached = self.namespaces.attached.values() if every else (self.namespaces.active(nsid),)
        namespaces = [ns for ns in attached if isinstance(ns, StoredNamespace)]
        if not namespaces:
            status = Status.INVALID_FIELD if every else Status.INVALID_NAMESPACE
            raise NvmeError(status, "no namespace with formats is attached")
        blocks = [ns for ns in namespaces if isinstance(ns, Namespace)]
        lbaf = NamespaceShape(0, block_size, metadata=metadata).format
        if lbaf.storage_tag and any(ns.format != lbaf for ns in blocks):
            raise NvmeError(  # NVM Command Set 1.0, section 5.2.1.4.2
                Status.INVALID_FORMAT, "only a new namespace can be given a storage tag"
            )
        if metadata.size and any(ns.shape.zone_size for ns in blocks):
            raise NvmeError(Status.INVALID_FORMAT, "zones have no metadata")
        if len(blocks) < len(namespaces) and lbaf != FORMATS[0]:
            raise NvmeError(Status.INVALID_FORMAT, "the only KV format is 0")
        require_writable(namespaces)
        if any(namespace.media.size < block_size for namespace in blocks):
            raise NvmeError(Status.INVALID_FORMAT, "the namespace is smaller than a block")
        nsids = [namespace.nsid for namespace in namespaces]
        self.self_tests.abort(SelfTestResult.ABORTED_BY_FORMAT, nsids)
        before = [namespace.in_flight.closed for namespace in namespaces]
        for namespace in namespaces:
            namespace.in_flight.closed = Status.FORMAT_IN_PROGRESS
        yield from self.operations.quiet(namespaces)
        if erases:  # what jobs have read of the blocks is user data too
            yield self.erase_accelerators()
        # Those that a failure leaves alone are as they were.
        left = dict(zip(namespaces, before, strict=True))
        try:
            for namespace in namespaces:
                if isinstance(namespace, Namespace):
                    yield from self._format_one(namespace, block_size, metadata)
                else:
                    yield from self._erase_values(namespace)
                del left[namespace]
        finally:
            for namespace, closed in left.items():
                namespace.in_flight.closed = (
                    Status.NAMESPACE_NOT_READY if namespace.unformatted else closed
                )
        return nsids

    def _format_one(self, namespace: Namespace, block_size: int, metadata: Metadata) -> Steps[None]:
        drive, media, nsid = self.storage.drive, namespace.media, namespace.nsid
        shape = namespace.shape
        formatted = shape._replace(
            block_size=block_size, metadata=metadata, formats=shape.formats + 1
        )
        yield partial(drive.reshape, nsid, formatted._replace(erase=True))
        # From here on it has the new format, whatever happens; what it holds is erased before
        # anybody may read it, at the next start if not now.
        changed = block_size != namespace.block_size
        namespace.reshape(formatted)
        namespace.unformatted = 100
        self.namespaces.inventory.version += changed
        namespace.uncorrectable = UncorrectableBlocks()
        namespace.erased()
        if changed:  # What was said of blocks of another size is said of none.
            self.namespaces.inventory.features.forget_namespace(nsid)
            self.namespaces.inventory.features.put_saved()
        self.reports.namespace_changed(nsid)
        try:
            yield partial(drive.lay_out, nsid)
            for at in range(0, media.size, ERASED_PIECE):
                yield partial(media.punch, at, min(ERASED_PIECE, media.size - at))
                namespace.unformatted = 100 - 99 * at // media.size
            yield media.flush
            yield from self.uncorrectable.saving()
        except MediaError as error:
            raise self.failures.writing(nsid, media, error, namespace.lba_of(error)) from None
        yield from self._end(namespace, formatted)
        return None

    def _erase_values(self, namespace: KeyValueNamespace) -> Steps[None]:
        drive, nsid = self.storage.drive, namespace.nsid
        formatted = namespace.shape._replace(formats=namespace.shape.formats + 1)
        yield partial(drive.reshape, nsid, formatted._replace(erase=True))
        namespace.shape, namespace.unformatted = formatted, 100
        self.reports.namespace_changed(nsid)
        try:
            yield namespace.media.erase
        except MediaError as error:
            raise self.failures.values(nsid, namespace.media, error, writes=True) from None
        namespace.erased()
        yield from self._end(namespace, formatted)
        return None

    def _end(self, namespace: StoredNamespace, formatted: NamespaceShape) -> Steps[None]:
        """All has been erased: commands may use the namespace again."""
        yield partial(self.storage.drive.reshape, namespace.nsid, formatted)
        namespace.unformatted = 0
        namespace.in_flight.closed = None
        self.reports.namespace_changed(namespace.nsid)
        return None


def require_writable(namespaces: Iterable[StoredNamespace]) -> None:
    """Raise NvmeError for a namespace that takes no writes."""
    for namespace in namespaces:
        if not namespace.media.writable:
            raise NvmeError(
                Status.NAMESPACE_WRITE_PROTECTED, f"namespace {namespace.nsid} takes no writes"
            )

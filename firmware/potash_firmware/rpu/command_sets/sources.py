"""Source ranges in memory, which copies of the NVM and of the memory command set share."""

from nvme_spec.ranges import FAST_COPY_ONLY
from nvme_spec.status import NvmeError, Status
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.namespaces.memory import MemoryNamespace


def source_memory(controller: Controller, nsid: int, snsid: int, options: int) -> MemoryNamespace:
    """The memory namespace that a source range of a copy to `nsid` names. Raises NvmeError."""
    namespace = controller.namespaces.attached.get(snsid)
    if not isinstance(namespace, MemoryNamespace):
        raise NvmeError(Status.INVALID_NAMESPACE, f"namespace {snsid:#x} is no memory")
    require_copyable(controller, nsid, snsid, options)
    return namespace


def require_copyable(controller: Controller, nsid: int, snsid: int, options: int) -> None:
    """Refuse a copy between namespaces that do not reach each other, and fast copies only."""
    controller.reachability.require(nsid, snsid)
    if options & FAST_COPY_ONLY:
        raise NvmeError(Status.FAST_COPY_NOT_POSSIBLE, "no copy is a fast one here")

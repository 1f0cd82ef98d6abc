"""The contents of memory namespaces, of which the next host must find nothing.

They begin with zeroes again when another host may be next. A memory that a host has mapped (a BAR)
is cleared then, and once more when the next session begins if work of the old one was still under
way: it may have written after the first time.
"""

from concurrent.futures import Future
from functools import partial

from nvme_spec.status import NvmeError
from potash_device.media.executor import MediaExecutor
from potash_firmware.rpu.compute.engine import Execution
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.media_work import MediaWork
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.part import Part


class Memories(Part):
    """The memory namespaces of one controller."""

    def __init__(
        self,
        namespaces: Namespaces,
        compute: Compute,
        media_work: MediaWork,
        executor: MediaExecutor,
    ) -> None:
        self._namespaces = namespaces
        self._compute = compute
        self._media_work = media_work
        self._executor = executor
        self._unused = True
        """No host has been served since the memory namespaces have begun with zeroes."""
        self._may_change = False
        """Work that was begun before a reset may still write to memory that a host has mapped."""

    def stop_programs(self, error: NvmeError) -> set[Future[Execution]]:
        """End the programs of the controller, with `error`; what is to be waited for."""
        return self._compute.stop_all(error)

    def renew(self, *, bar_alone: bool = False) -> None:
        """Give memory namespaces other memory; that of before is freed where it may take time."""
        for namespace in self._every():
            if (namespace.bar or not bar_alone) and (before := namespace.renew()):
                self._compute.forget(before.handle)
                self._executor.submit(partial(len, before.bytes))

    def reset(self, *, next_host: bool = False) -> None:
        if next_host:
            # A host may reset as often as it likes; what is in a BAR it changes without a command.
            self.renew(bar_alone=self._unused)
            self._unused = True
            self._may_change = bool(self._compute.executions or self._media_work.unfinished)

    def begin_session(self) -> None:
        """A host is served from now on, when nothing of before is still at work."""
        self._unused = False
        if self._may_change:
            self._may_change = False
            for namespace in self._every():
                if namespace.bar:
                    namespace.clear()

    def _every(self) -> list[MemoryNamespace]:
        namespaces = self._namespaces
        return [
            ns
            for ns in namespaces.every.values()
            if isinstance(ns, MemoryNamespace)
            and namespaces.inventory.owner(ns) == namespaces.number
        ]

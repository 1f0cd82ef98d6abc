"""A device: its commands, its namespaces and its accelerators.

NVM Express Base Specification 2.0, and the Alkali CSD platform documentation, section 4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from csd_spec import fields
from csd_spec.descriptors import DescriptorError, IdentifyData, dwords, identify_length
from csd_spec.opcodes import DWORD_SIZE, AdminOpcode
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.status import Status
from potash.sdk.accelerator import Accelerator
from potash.sdk.commands import DEFAULT_TIMEOUT, Commands, encoded
from potash.sdk.errors import CommandFailed, DeviceMisbehaved, DeviceNotFound
from potash.sdk.namespace import Namespace
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import Buffer, Transport

if TYPE_CHECKING:
    from potash.sdk.compute_namespace import ComputeNamespace
    from potash.sdk.kv_namespace import KeyValueNamespace
    from potash.sdk.memory_namespace import MemoryNamespace
    from potash.sdk.reservations import Reservations

IDENTIFY_HEADER_DWORDS = 4


class Device(Commands):
    """One controller; closes its transport when a `with` block ends.

    `read`, `write`, `flush`, `block_size` and `capacity` are those of its first namespace, or of
    the one that was opened. Every method that sends a command raises CommandFailed, CommandTimeout
    or DeviceGone, and InvalidRequest for what cannot be sent.
    """

    def __init__(self, transport: Transport, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(transport, timeout=timeout)
        self._namespace: Namespace | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the device; a second call does nothing."""
        self.transport.close()

    def reset(self) -> None:
        """Reset the controller, and read its properties again."""
        self._namespace = None
        super().reset()

    def namespaces(self) -> list[Namespace]:
        """The active namespaces, by ascending identifier."""
        return [Namespace(self, nsid) for nsid in self.active_namespaces()]

    def namespace(self, nsid: int | None = None) -> Namespace:
        """The namespace with an identifier; without one the device's own, see `nsid`."""
        if nsid is not None:
            return Namespace(self, nsid)
        if self._namespace is None:
            self._namespace = Namespace(self, self.nsid)
        return self._namespace

    def memory_namespace(self, nsid: int | None = None) -> MemoryNamespace:
        """The memory namespace with an identifier, or the first. Raises DeviceNotFound."""
        from potash.sdk.memory_namespace import MemoryNamespace

        return MemoryNamespace(self, self._first_of(CommandSet.MEMORY, nsid))

    def compute_namespace(self, nsid: int | None = None) -> ComputeNamespace:
        """The compute namespace with an identifier, or the first. Raises DeviceNotFound."""
        from potash.sdk.compute_namespace import ComputeNamespace

        return ComputeNamespace(self, self._first_of(CommandSet.COMPUTE, nsid))

    def kv_namespace(self, nsid: int | None = None) -> KeyValueNamespace:
        """The key value namespace with an identifier, or the first: a mapping of bytes to bytes.
        Raises DeviceNotFound."""
        from potash.sdk.kv_namespace import KeyValueNamespace

        return KeyValueNamespace(self, self._first_of(CommandSet.KEY_VALUE, nsid))

    def reservations(self, nsid: int | None = None) -> Reservations:
        """The reservations of the namespace with an identifier; without one of the device's own."""
        from potash.sdk.reservations import Reservations

        return Reservations(self, self.nsid if nsid is None else nsid)

    def set_host_identifier(self, identifier: bytes) -> None:
        """Say by 8 or 16 bytes which host uses the controller, until it is reset."""
        from potash.sdk.reservations import set_host_identifier

        set_host_identifier(self, identifier)

    def _first_of(self, csi: CommandSet, nsid: int | None) -> int:
        try:
            found = self.active_namespaces(csi)
        except CommandFailed:  # it does not have the command set
            found = []
        for one in found:
            if nsid in (None, one):
                return one
        kind = "kv" if csi is CommandSet.KEY_VALUE else csi.name.lower()
        which = f"no {kind} namespace" + ("" if nsid is None else f" {nsid}")
        option = f"--{kind}-namespace"
        raise DeviceNotFound(f"the device has {which}; potash serve {option} makes one")

    @property
    def block_size(self) -> int:
        """Bytes of a logical block."""
        return self.namespace().block_size

    @property
    def capacity(self) -> int:
        """Bytes of the namespace."""
        return self.namespace().capacity

    def read(self, lba: int, count: int, *, progress: Progress = silent) -> bytes:
        """Call `Namespace.read` of the namespace."""
        return self.namespace().read(lba, count, progress=progress)

    def write(self, lba: int, data: Buffer, *, progress: Progress = silent) -> None:
        """Call `Namespace.write` of the namespace."""
        self.namespace().write(lba, data, progress=progress)

    def flush(self) -> None:
        """Call `Namespace.flush` of the namespace."""
        self.namespace().flush()

    def accelerators(self) -> list[Accelerator]:
        """The accelerators of this device. Raises CommandFailed (Invalid Command Opcode) if the
        device has no accelerators, and DeviceMisbehaved for invalid data."""
        try:
            length = identify_length(self._identify_accelerators(IDENTIFY_HEADER_DWORDS))
            data = self._identify_accelerators(dwords(min(length, self.max_transfer)))
            described = IdentifyData.decode(data).accelerators
        except DescriptorError as error:
            raise DeviceMisbehaved(f"the device's accelerators are unreadable: {error}") from error
        return [Accelerator(self, item) for item in described]

    def accelerator(self, accelerator_id: int | None = None) -> Accelerator:
        """The accelerator with an ID, or the first. Raises DeviceNotFound."""
        try:
            accelerators = self.accelerators()
        except CommandFailed as error:
            if error.status != Status.INVALID_OPCODE:
                raise
            raise DeviceNotFound(
                "this controller has no accelerators; of a drive with several, open the one that "
                "has them, or have Linux use its path alone (potash ana set)"
            ) from error
        for accelerator in accelerators:
            if accelerator_id in (None, accelerator.id):
                return accelerator
        which = "no accelerator" if accelerator_id is None else f"no accelerator {accelerator_id}"
        raise DeviceNotFound(f"the device has {which}")

    def _identify_accelerators(self, count: int) -> bytes:
        layout = encoded(fields.Identify(count))
        return self.admin(AdminOpcode.IDENTIFY, data_in_length=count * DWORD_SIZE, **layout).data

"""Memory that other drives of the guest share, as commands name it: by address."""

from nvme_spec.status import NvmeError, Status
from potash_device.pcie.peers import Peers
from potash_firmware.rpu.media_work import BlocksInFlight


class PeerMemory:
    """The memory in other drives' BARs, by address."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.in_flight = BlocksInFlight()

    def view(self, address: int, length: int) -> memoryview:
        """Raises NvmeError where no drive has memory that it shares, or has it no more."""
        view = self._peers.find(address, length)
        if view is None:
            raise NvmeError(
                Status.DATA_TRANSFER_ERROR,
                f"{length} bytes at {address:#x} are not in memory that another drive shares",
            )
        return view

"""Settings of a board, for which the board itself need not be loaded."""

from dataclasses import dataclass, field

from potash_device.controller.cmb import CmbSettings
from potash_device.pcie.config_space import PciIdentity
from potash_device.pcie.peers import Peers
from potash_device.vta.config import Config

MAX_QUEUE_PAIRS = 64
"""I/O queue pairs; the admin pair comes on top."""
MOST_CONTROLLERS = 16
"""Controllers of a drive."""


@dataclass(frozen=True)
class BoardSettings:
    identity: PciIdentity = field(default_factory=PciIdentity)
    queue_pairs: int = MAX_QUEUE_PAIRS
    """I/O queue pairs, each of which can have an interrupt vector of its own."""
    ready_timeout: int = 60
    """CAP.TO: how long enabling and disabling may take, in units of 500 ms."""
    vta: Config = field(default_factory=Config.default)
    cmb: CmbSettings | None = None
    """The controller memory buffer, if there is to be one."""
    map_doorbells: bool = False
    """True if a host may map the page of doorbells, which is then polled."""
    peers: Peers | None = None
    """The other drives of the guest, from whose memory in BARs this one may copy."""
    memory_bar: int = 0
    """Bytes of memory that the firmware and the host share through BAR 4; 0 for no such BAR."""

"""The mailbox between RPU and APU: the interface that the firmware of both processors shares."""

from potash_firmware.mailbox.port import ApuPort, RpuPort, pair
from potash_firmware.mailbox.shared import ArenaPlan, MailboxError, SharedBuffers

__all__ = ["ApuPort", "ArenaPlan", "MailboxError", "RpuPort", "SharedBuffers", "pair"]

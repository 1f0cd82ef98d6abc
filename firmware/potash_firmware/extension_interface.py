"""The drive and its commands, as functions of extensions get them (`potash_firmware.extensions`).

`potash_firmware.rpu.extension_drive` implements the drive.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.queues import SubmissionEntry


class Namespace(NamedTuple):
    """A namespace of the drive; `blocks` are a memory namespace's bytes, and 0 in a compute
    namespace."""

    nsid: int
    command_set: CommandSet
    block_size: int
    blocks: int


class Command(SubmissionEntry):
    """A command from the host: its opcode, `nsid`, `cdw2`, `cdw3`, and `cdw10` to `cdw15`."""

    queue: int = 0
    """The identifier of its submission queue; 0 for an Admin command."""
    data: bytes = b""
    """The data that the host has sent, of a command with data="write"."""

    @property
    def lba(self) -> int:
        """The first logical block, where the fields are those of Read: CDW10 and CDW11."""
        return self.cdw11 << 32 | self.cdw10

    @property
    def blocks(self) -> int:
        """The number of logical blocks, where the fields are those of Read: CDW12 15:0, 0's
        based."""
        return (self.cdw12 & 0xFFFF) + 1

    def range(self) -> range:
        """The logical blocks, where the fields are those of Read."""
        return range(self.lba, self.lba + self.blocks)


class Drive(Protocol):
    """The drive, as an extension's functions use it."""

    @property
    def namespaces(self) -> Mapping[int, Namespace]:
        """The attached namespaces, by identifier."""

    def now(self) -> int:
        """Nanoseconds of guest time."""

    def log(self, text: str) -> None:
        """Write a line to the device's log."""

    def notify(self, page: int, info: int = 0) -> bool:
        """Raise a vendor specific asynchronous event, which refers to a log page.

        It is not raised again before the host has read that page. False if it waits already.
        """

    def feature(self, fid: int) -> int | bytes:
        """The current value of a feature of the controller: its dword, or its data."""

    def memory(self, nsid: int) -> memoryview:
        """The bytes of a memory namespace, to read and write in this step. Raises NvmeError."""

    def read(self, nsid: int, lba: int, blocks: int = 1) -> Any:
        """Read blocks, up to MDTS: `data = yield drive.read(1, 0)`. It raises NvmeError."""

    def write(self, nsid: int, lba: int, data: bytes) -> Any:
        """Write blocks, up to MDTS: `yield drive.write(1, 0, data)`. It raises NvmeError."""

    def sleep(self, microseconds: float) -> Any:
        """Let guest time pass: `yield drive.sleep(100)`. With 0 other commands are served."""

    def save(self) -> Any:
        """Have all states be in the drive's file: `yield drive.save()`. They are saved within a
        minute, and when the drive ends or is shut down, anyway."""

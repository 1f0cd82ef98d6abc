"""A job in progress: the message that its worker gets, and what is known of it until its end."""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potash_firmware.apu import blocks
from potash_firmware.apu.channel import RANGES_AT_ONCE, BlocksRead, ChannelError, ExecuteJob
from potash_firmware.apu.config import AcceleratorConfig, NamespaceConfig
from potash_firmware.apu.model import ByteRange
from potash_firmware.apu.work_counter import MOST_READS
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import Executed, ReadChecked
from potash_firmware.mailbox.values import ReadJobValue

MOST_OF_READS = MOST_READS // RANGES_AT_ONCE
"""Messages about the blocks that a job has read: all that an honest worker sends."""


LOST_AT_MOST = 64
"""Unreadable blocks of a job's grants that are found one by one."""


class Step(NamedTuple):
    """A step of a chain: the ID of its firmware, that program, and its argument list."""

    firmware: int
    program: bytes | DeviceProgram
    arguments: bytes


@dataclass(slots=True)
class Job:
    """A job in progress, or a step of a chain."""

    message: ExecuteJob
    program: bytes | DeviceProgram
    arguments: bytes
    handed_over: bool = False
    """The worker has it."""
    checks: dict[int, Sequence[ByteRange]] = field(default_factory=dict)
    """Checks of blocks that the RPU has not answered, by tag: the granted blocks that are checked,
    none for the input."""
    unreadable: list[ByteRange] = field(default_factory=list)
    """Granted blocks that cannot be read."""
    gathered: list[ByteRange] = field(default_factory=list)
    """Blocks that are written when the program returns, besides its output."""
    gathered_bytes: int = 0
    """Their bytes together."""
    writable: blocks.Granted | None = None
    """The blocks that the program may write, once it wants some written."""
    number: int = 0
    """Its number in messages about modelled time; 0 where time is not modelled."""
    reads: list[BlocksRead] = field(default_factory=list)
    """The blocks that it has read, where time is modelled."""
    ending: Executed | None = None
    """The end of its program, until the RPU reports that its modelled time has passed."""
    modelled: int = 0
    """The modelled nanoseconds that it has taken, once it has ended."""

    def exclude(
        self, granted: Sequence[ByteRange], checked: ReadChecked, block_size: int
    ) -> Sequence[ByteRange]:
        """Exclude a block of one namespace that cannot be read; returns the blocks after it.

        A whole range is excluded if there are too many such blocks, and all are if the reason is
        not one block.
        """
        at, nsid = checked.at, granted[0].nsid
        has_it = [0 <= at - item.first < item.length for item in granted]
        if checked.error != errno.EIO or not any(has_it):
            self.unreadable += granted
            return ()
        item, *rest = granted[has_it.index(True) :]
        if len(self.unreadable) >= LOST_AT_MOST:
            self.unreadable.append(item)
            return rest
        self.unreadable.append(ByteRange(nsid, at, block_size))
        if left := item.first + item.length - at - block_size:
            rest = [ByteRange(nsid, at + block_size, left), *rest]
        return rest

    def gather(
        self,
        gathered: Sequence[ByteRange],
        namespaces: Mapping[int, NamespaceConfig],
        room: int,
    ) -> None:
        """Keep ranges that are to be written, all of which the host has granted for writing; they
        have at most `room` bytes. Raises ChannelError."""
        self.writable = self.writable or blocks.Granted(self.message.granted, writing=True)
        for item in gathered:
            if not _may_write(self.writable, item, namespaces):
                raise ChannelError(f"a worker wants to write {item}, which was not granted")
            self.gathered_bytes += item.length
        self.gathered += gathered
        if self.gathered_bytes > room:
            raise ChannelError("a worker wants to write more than there is room for")

    def keep_reads(self, message: BlocksRead, namespaces: Mapping[int, NamespaceConfig]) -> None:
        """Keep the blocks that the job has read, which are those that it may read. Raises
        ChannelError."""
        sizes = {nsid: namespaces[nsid].size for nsid in self.message.namespaces}
        if self.ending is not None or not self.number or len(self.reads) >= MOST_OF_READS:
            raise ChannelError("a worker has sent reads that were not requested")
        if any(item.first + item.length > sizes.get(item.nsid, 0) for item in message.reads):
            raise ChannelError("a worker has sent reads of blocks that its job may not read")
        self.reads.append(message)

    def require_readable(self, message: ReadJobValue, accelerator: AcceleratorConfig) -> None:
        """Raise ChannelError for a request for a value that its program cannot have made."""
        its = message.tag == self.message.tag and message.accelerator == accelerator.id
        room = accelerator.plan.writes_offset
        if self.ending is not None or not its or message.offset + message.room > room:
            raise ChannelError(f"a worker has sent {message}")


def _may_write(
    writable: blocks.Granted, item: ByteRange, namespaces: Mapping[int, NamespaceConfig]
) -> bool:
    namespace = namespaces.get(item.nsid)
    if namespace is None or (item.first | item.length) % namespace.block_size:
        return False
    lba, number = (place // namespace.block_size for place in (item.first, item.length))
    return writable.has(item.nsid, lba, number)

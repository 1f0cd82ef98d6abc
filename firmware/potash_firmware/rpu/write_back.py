"""Writing a job's output to its blocks, which the APU asks for and only the media executor does.

A job counts as done when its output is on the media, so a killed worker or APU tears nothing. What
the APU asks for is checked like anything else that comes from outside. So are the blocks that a job
is to read: the APU reads the media itself, and knows of no block that is uncorrectable.
"""

import errno
import logging
from concurrent.futures import Future

from potash_device.media import MediaError
from potash_firmware.mailbox import MailboxError
from potash_firmware.mailbox.messages import ReadCheck, ReadChecked, WriteBack, WriteBackDone
from potash_firmware.rpu.controller import Controller, Namespace

log = logging.getLogger(__name__)


class WriteBacks:
    """The write-backs in flight for the APU that is running."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._tags: dict[Future[None], tuple[int, Namespace, list[tuple[int, int]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._tags)

    def start(self, message: WriteBack) -> None:
        """Do what `message` asks; it is answered when that has ended, or at once if it is wrong."""
        if self._controller.apu.resetting is not None:
            self._answer(message.tag, errno.ECANCELED)
            return
        namespace = self._controller.namespaces.get(message.nsid)
        try:
            arena = self._controller.apu.buffers.arena(message.accelerator)
        except MailboxError:
            arena = None
        total = sum(length for _, length in message.ranges)
        if (
            namespace is None
            or arena is None
            or message.source + total > len(arena)
            or any(first + length > namespace.size for first, length in message.ranges)
        ):
            log.error("the APU asked for a write-back that cannot be: %s", message)
            self._answer(message.tag, errno.EINVAL)
            return
        if namespace.in_flight.closed is not None:
            log.error("a job's output is lost: the blocks of namespace %d are closed", message.nsid)
            self._answer(message.tag, errno.EBUSY)
            return
        self._controller.sanitizing.data_written()
        media, source, ranges = namespace.media, message.source, message.ranges
        healed = [
            blocks
            for first, length in ranges
            if (blocks := namespace.whole_blocks(first, length))
            and namespace.uncorrectable.first_in(*blocks) is not None
        ]
        durable = bool(healed) or self._controller.features.write_through

        def write() -> None:
            at = source
            for first, length in ranges:
                media.write_from([arena[at : at + length]], first)
                at += length
            if durable:
                media.flush()

        future = self._controller.on_blocks(namespace, ranges, write, writes=True)
        self._tags[future] = (message.tag, namespace, healed)

    def check(self, message: ReadCheck) -> None:
        """Say whether a job may read the blocks of its input, as a host's Read would be told."""
        apu = self._controller.apu
        if apu.port is not None:
            apu.send(ReadChecked(message.tag, *self._readable(message)))

    def _readable(self, message: ReadCheck) -> tuple[int, int]:
        """An errno, and the first byte that cannot be read; 0 and 0 where all can."""
        namespace = self._controller.namespaces.get(message.nsid)
        if namespace is None:
            return errno.ENODEV, message.ranges[0][0]
        if namespace.in_flight.closed is not None:
            return errno.EBUSY, message.ranges[0][0]
        for first, length in message.ranges:
            lba = first // namespace.block_size
            count = -(-(first + length) // namespace.block_size) - lba
            bad = namespace.uncorrectable.first_in(lba, count)
            if bad is not None:
                return errno.EIO, bad * namespace.block_size
        return 0, 0

    def media_finished(self, future: Future[None]) -> bool:
        """True when `future` was a write-back; the APU has been told how it ended."""
        begun = self._tags.pop(future, None)
        if begun is None:
            return False
        tag, namespace, healed = begun
        error = future.exception()
        if isinstance(error, MediaError):
            log.error("a job's output could not be written: %s", error.strerror)
            self._controller.failures.writing(
                namespace.settings.nsid, namespace.media, error, namespace.lba_of(error)
            )
        elif error is None and healed:
            for blocks in healed:
                namespace.uncorrectable.remove(*blocks)
            self._controller.keep_uncorrectable()
        code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        self._answer(tag, code if error is not None else 0)
        return True

    def _answer(self, tag: int, error: int) -> None:
        if self._controller.apu.port is not None:
            self._controller.apu.send(WriteBackDone(tag, error))

"""Files on a file system of the drive, which a job reads and writes in place.

No byte of them passes through the host: the job gets their blocks. The host writes its cached pages
of the input back before the job begins. An output is a new file, whose every block has been written
(a block that is only reserved reads as zeroes, whatever the device wrote there) and is not cached
by the host. The file takes its name when the job is done, so that a job that fails leaves the old
file. The accelerator is reset before that, and before the new file is deleted, since its ranges
would stay the output of the next job.
"""

import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

from csd_spec.opcodes import PAGE_SIZE
from potash.sdk import targets
from potash.sdk.accelerator_commands import AcceleratorCommands
from potash.sdk.commands import Commands
from potash.sdk.errors import DeviceGone, InvalidRequest, PotashError, restated
from potash.sdk.extents import Volume, extents_of, ranges_of, require_usable, volume_of

PIECE = 1 << 20
"""Bytes of zeroes in one write."""


class FileInPlace:
    """A file that is read in place: its pages, and a check whether they have changed. Raises
    InvalidRequest for a file that is not on a file system of the device's namespace."""

    def __init__(self, path: str | os.PathLike[str], device: Commands) -> None:
        self.path = path = Path(path)
        volume = _volume(path, device)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise InvalidRequest(f"{path} is not a file")
            require_usable(str(path), self._fd, volume)
            self._start = volume.start
            self._state, self.ranges = self._look()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        return self._state[0]

    def confirm(self) -> None:
        """Raises PotashError for a file that has changed since it was opened."""
        if (self._state, self.ranges) != self._look():
            raise PotashError(f"{self.path} was changed while it was read; run it again")

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _look(self) -> tuple[tuple[int, int], list[targets.Range]]:
        """Write everything back to the drive; length and time of the last change, and the pages."""
        os.fsync(self._fd)
        found = os.fstat(self._fd)
        ranges = ranges_of(str(self.path), extents_of(self._fd), found.st_size, self._start)
        return (found.st_size, found.st_mtime_ns), ranges


class FileSource(targets.Source):
    """A file on the drive as a job's input, padded with zeroes to a whole page.

    `Accelerator.run` raises InvalidRequest where its blocks cannot be read in place, and
    PotashError where it was changed meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: FileInPlace | None = None

    @property
    def size(self) -> int:
        return 0 if self._file is None else self._file.size

    def prepare(self, accelerator: AcceleratorCommands) -> None:
        self._file = FileInPlace(self.path, accelerator.device)
        targets.require_fit(accelerator, self.size)

    def attach(self, accelerator: AcceleratorCommands, reporter: targets.Reporter) -> None:
        ranges = [] if self._file is None else self._file.ranges
        targets.use_input(accelerator, ranges, None, reporter)

    def confirm(self) -> None:
        if self._file is not None:
            self._file.confirm()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class FileSink(targets.Sink):
    """A file on the drive for a job's output, with room for `size` bytes.

    The file gets the length of the output. The default size is that of the input.
    `Accelerator.run` raises InvalidRequest where there can be no such file on this drive, and
    PotashError where there is no room, or its blocks have moved meanwhile.
    """

    def __init__(self, path: str | os.PathLike[str], *, size: int | None = None) -> None:
        # What a link leads to is what gets the new contents.
        self.path = Path(os.path.realpath(path))
        self._size = size
        self._place = self.path.with_name(f".{self.path.name}.potash-{os.getpid()}")
        self._fd = -1
        self._volume = Volume(0, "", "")
        self._room = 0
        self._ranges: list[targets.Range] = []
        self._attached_to: AcceleratorCommands | None = None

    def prepare(self, accelerator: AcceleratorCommands, input_size: int) -> None:
        self._volume = _volume(self.path.parent, accelerator.device)
        if self.path.is_dir():
            raise InvalidRequest(f"{self.path} is a folder, not a file")
        self._room = targets.room_for(accelerator, self._size, input_size) * PAGE_SIZE

    def attach(self, accelerator: AcceleratorCommands, reporter: targets.Reporter) -> None:
        mode = 0o666
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(self.path).st_mode)
        # Past the host's cache, so that it has no old contents to show, or to write, afterwards.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_DIRECT
        self._fd = os.open(self._place, flags, mode)
        require_usable(str(self.path), self._fd, self._volume)
        self._fill(reporter)
        self._ranges = self._look()
        self._attached_to = accelerator
        targets.use_output(accelerator, self._ranges, None, reporter)

    def collect(
        self, accelerator: AcceleratorCommands, produced: int, reporter: targets.Reporter
    ) -> bytes:
        if self._look() != self._ranges:
            raise PotashError(f"{self.path} was moved on the drive while the job ran; run it again")
        self._take_back()
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.ftruncate(self._fd, min(produced, self._room))
        os.fsync(self._fd)
        os.replace(self._place, self.path)
        reporter.report(f"leave {produced} bytes of output in {self.path}")
        self._release()
        return b""

    def close(self, *, still_written: bool = False) -> None:
        try:
            if self._fd >= 0 and not still_written:
                with suppress(PotashError, OSError):
                    self._take_back()
                    os.unlink(self._place)
        finally:
            self._release()

    def _take_back(self) -> None:
        """Ensure that no job writes to the file's blocks any more. Raises PotashError."""
        if self._attached_to is not None:
            with suppress(DeviceGone):
                self._attached_to.reset()
            self._attached_to = None

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _look(self) -> list[targets.Range]:
        return ranges_of(str(self.path), extents_of(self._fd), self._room, self._volume.start)

    def _fill(self, reporter: targets.Reporter) -> None:
        """Reserve the room in as few extents as possible, and write zeroes to all of it."""
        with restated(OSError, f"there can be no output of {self._room} bytes in {self.path}"):
            os.posix_fallocate(self._fd, 0, self._room)
            with mmap.mmap(-1, PIECE) as zeroes, memoryview(zeroes) as view:
                for at in range(0, self._room, PIECE):
                    size = min(PIECE, self._room - at)
                    if os.pwrite(self._fd, view[:size], at) != size:
                        raise PotashError(f"{self.path} cannot be written as a whole")
                    reporter.progress("making room for the output", (at + size) / self._room)
            os.fsync(self._fd)


def _volume(path: Path, device: Commands) -> Volume:
    found = volume_of(path, device.block_device)
    if found is None:
        raise InvalidRequest(f"{path} is not on a file system of this drive; copy it")
    return found

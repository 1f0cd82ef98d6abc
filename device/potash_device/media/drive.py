"""The storage of a drive: a directory, one file, or memory, opened exclusively.

A folder holds `namespace-1` and so on, `namespaces.toml`, the `sidecar` and the `flash`. One file
is a drive with one namespace, with `NAME.sidecar`, `NAME.flash` and, unless its blocks have 4096
bytes, `NAME.toml` in the same directory. The values of key value namespaces have their own files.
"""

import errno
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from nvme_spec.identify.capabilities import CommandSet
from potash_device.media.errors import MediaError
from potash_device.media.file import FileMedia
from potash_device.media.flash import FLASH_SIZE
from potash_device.media.metadata import Pairs, file_size
from potash_device.media.paths import DrivePaths, make_folder, present, remove
from potash_device.media.shapes import (
    DEFAULT_BLOCK_SIZE,
    MOST_NAMESPACES,
    DriveError,
    Listed,
    NamespaceShape,
    blocks_of,
    read_list,
    stored_of,
    write_list,
)
from potash_device.media.sidecar import SIDECAR_SIZE
from potash_device.media.store import Media, MemoryMedia
from potash_device.media.values import ValueStore, remove_values

log = logging.getLogger(__name__)


class Drive:
    """Open media: `namespaces` and their `shapes` by identifier, `values`, `sidecar`, `flash`.

    `shapes` also has the namespaces without blocks, which are of other command sets than NVM and
    have no media; those with keys have `values`. A context manager that closes them; `open` does
    the work. What changes the namespaces waits for storage, is durable when it returns, and is
    called by one thread at a time; where it raises MediaError, nothing has changed.
    """

    def __init__(self) -> None:
        self.namespaces: dict[int, Media] = {}
        self.shapes: dict[int, NamespaceShape] = {}
        self.values: dict[int, ValueStore] = {}
        self.most = MOST_NAMESPACES
        """Namespaces with blocks that there can be, and the largest identifier of one."""
        self.read_only = False
        self.locked = True
        """No other process may have the files."""
        self.sidecar: Media
        self.flash: Media
        self._capacity: int | None = None
        self._memory_capacity: int | None = None
        self._paths: DrivePaths | None = None
        self._stack = ExitStack()
        self._opened: list[Media] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def time_state(self) -> Path | None:
        """The file with the state of the drive's modelled flash; None if there is none."""
        return None if self._paths is None or self.read_only else self._paths.time

    @property
    def extension_states(self) -> Path | None:
        """The path of the states of extensions; None for a drive in memory."""
        return None if self._paths is None else self._paths.extensions

    @property
    def block_sizes(self) -> dict[int, int]:
        """Bytes of a block, by identifier."""
        return {nsid: shape.block_size for nsid, shape in blocks_of(self.shapes).items()}

    @property
    def allocated(self) -> int:
        """Bytes of non-volatile memory that the namespaces have."""
        return _allocated(self.shapes)

    @property
    def capacity(self) -> int:
        """Bytes of non-volatile memory that all namespaces together may have."""
        return max(self._capacity or 0, self.allocated)

    @property
    def memory_allocated(self) -> int:
        """Bytes that the memory namespaces have."""
        return sum(shape.size for shape in self.shapes.values() if shape.csi == CommandSet.MEMORY)

    @property
    def memory_capacity(self) -> int:
        """Bytes that all memory namespaces together may have."""
        return max(self._memory_capacity or 0, self.memory_allocated)

    @classmethod
    def around(
        cls, media: Mapping[int, Media], shapes: Mapping[int, NamespaceShape] | None = None
    ) -> Self:
        """A drive in memory, but for these namespaces, which stay their owner's to close.

        Namespaces that have no `shapes` are plain blocks.
        """
        drive = cls()
        drive.namespaces = dict(media)
        plain = {nsid: NamespaceShape(one.size) for nsid, one in media.items()}
        drive.shapes = dict(sorted({**plain, **(shapes or {})}.items()))
        return drive

    @classmethod
    def open(
        cls,
        path: Path | None,
        wanted: Sequence[NamespaceShape] = (),
        *,
        capacity: int | None = None,
        memory_capacity: int | None = None,
        read_only: bool = False,
        locked: bool = True,
    ) -> Self:
        """Open the drive at `path`, made where it is not there; in memory without a path.

        One that is not `locked` is another process's still, and has to be there: nothing in it is
        changed before `take`.

        A path that is not there becomes a file, or a folder where several namespaces with blocks
        are wanted. `wanted` is what a new drive gets, and must be what an old one has; but an old
        one without memory and compute namespaces gets those that are wanted. `capacity` is for all
        that a host may make of it, and `memory_capacity` for all its memory namespaces. Raises
        DriveError and MediaError.
        """
        if len(wanted) > MOST_NAMESPACES:
            raise DriveError(f"a drive has at most {MOST_NAMESPACES} namespaces")
        others = [shape for shape in wanted if not shape.has_blocks]
        wanted = [shape for shape in wanted if shape.has_blocks]
        drive = cls()
        drive.read_only = read_only
        drive.locked = locked
        drive._capacity = capacity
        drive._memory_capacity = memory_capacity
        with drive._stack as stack:
            if path is None:
                drive._open_in_memory(wanted or (NamespaceShape(),))
            else:
                drive._open_files(path, wanted)
            drive._open_values(drive.shapes)
            shapes = drive._with_others(others)
            if capacity is not None and capacity < _allocated(shapes):
                raise DriveError(
                    f"the namespaces have {_allocated(shapes)} bytes, more than a capacity of "
                    f"{capacity}"
                )
            drive._add_others(shapes)
            drive._stack = stack.pop_all()
        return drive

    # Another process's drive becomes this one's, and the other way round.

    def let_go(self) -> None:
        """Let another process have the files, which this one does not touch meanwhile."""
        for values in self.values.values():
            values.unlock()
        for media in self._present:
            media.unlock()
        self.locked = False

    def take(self) -> None:
        """Have the files for this process alone. Raises MediaError where another has them, or the
        namespaces are others than when they were opened."""
        taken: list[Media] = []
        try:
            for media in self._present:
                media.lock()
                taken.append(media)
            known = None if self._paths is None else read_list(self._paths.list)
            if known is not None and (known.shapes != self.shapes or known.remove):
                raise DriveError("it has other namespaces by now")
            for values in self.values.values():
                values.lock()
        except (MediaError, DriveError) as error:
            for values in self.values.values():
                values.unlock()
            for media in taken:
                media.unlock()
            why = error.strerror if isinstance(error, MediaError) else error
            raise MediaError(errno.EBUSY, f"the drive cannot be used: {why}") from None
        self.locked = True
        for one in self.namespaces.values():
            if isinstance(one.beside, Pairs):
                one.beside.recover()

    # What a host makes of its drive.

    def create(self, nsid: int, shape: NamespaceShape) -> Media:
        """Make a namespace of zeroes. Raises MediaError."""
        if self._paths is None:
            media: Media = MemoryMedia.create(shape.size)
        else:
            path = self._paths.namespace(nsid)
            remove(path, keep=not self._paths.folder)  # what a crash may have left
            media = FileMedia.open(path, shape.size)
        try:
            self._lay_out(nsid, media, shape)
            self._change({**self.shapes, nsid: shape})
        except MediaError:
            media.close()
            raise
        self.namespaces[nsid] = self._add(media)
        return media

    def lay_out(self, nsid: int) -> None:
        """Have a place for the metadata of a namespace, as its shape says, and none that was there
        before; its blocks are to be erased. Raises MediaError."""
        self._lay_out(nsid, self.namespaces[nsid], self.shapes[nsid])

    def _lay_out(self, nsid: int, media: Media, shape: NamespaceShape) -> None:
        if media.beside is not None:
            media.beside.close()
            media.beside = None
        if self._paths is not None:
            remove(self._paths.metadata(nsid), keep=False)
        if shape.metadata.size:
            size = file_size(shape)
            if self._paths is None:
                file: Media = MemoryMedia.create(size)
            else:
                file = FileMedia.open(self._paths.metadata(nsid), size)
            Pairs(media, self._add(file), shape)

    def remember(self, nsid: int, shape: NamespaceShape) -> None:
        """There is a namespace that has no blocks. Raises MediaError."""
        values = self._values(nsid, shape) if shape.has_values else None
        if values is not None:
            values.erase()
        try:
            self._change({**self.shapes, nsid: shape})
        except MediaError:
            if values is not None:
                values.close()
            raise
        if values is not None:
            self.values[nsid] = values
            self._stack.callback(values.close)

    def delete(self, nsids: Collection[int]) -> None:
        """Take namespaces away, with their blocks. Raises MediaError; then all are still there.

        Whether files of namespaces that are gone could be removed changes nothing for a host; it
        is tried again when the drive is opened.
        """
        left = {nsid: shape for nsid, shape in self.shapes.items() if nsid not in nsids}
        # The others have no file.
        nsids = [nsid for nsid in nsids if nsid in self.namespaces or nsid in self.values]
        self._change(left, remove=nsids)
        for nsid in nsids:
            (self.namespaces if nsid in self.namespaces else self.values).pop(nsid).close()
        if self._paths is not None and nsids:
            try:
                self._remove_all(self._paths, nsids)
                self._change(left)
            except MediaError as error:
                log.error("a deleted namespace is still in the way: %s", error.strerror)

    def reshape(self, nsid: int, shape: NamespaceShape) -> None:
        """Remember something else of a namespace. Raises MediaError."""
        self._change({**self.shapes, nsid: shape})

    def _change(
        self, shapes: Mapping[int, NamespaceShape], *, remove: Collection[int] = ()
    ) -> None:
        # Also if none was ever set: the drive must not shrink.
        capacity = max(self.capacity, _allocated(shapes))
        memory_capacity = self.memory_capacity or None
        if self._paths is not None:
            listed = Listed(dict(shapes), capacity, tuple(remove), memory_capacity)
            write_list(self._paths.list, listed)
        self._capacity, self._memory_capacity = capacity, memory_capacity
        self.shapes = dict(sorted(shapes.items()))

    # Opening.

    def _add(self, media: Media) -> Media:
        self._stack.callback(media.close)
        self._opened.append(media)
        return media

    @property
    def _present(self) -> list[Media]:
        """The media of this drive that are not closed."""
        self._opened = [one for one in self._opened if one.fd >= 0]
        return self._opened

    def _open_in_memory(self, shapes: Sequence[NamespaceShape]) -> None:
        for nsid, shape in enumerate(shapes, 1):
            self.namespaces[nsid] = self._add(MemoryMedia.create(shape.size))
            self.shapes[nsid] = shape
            self.lay_out(nsid)
        self.sidecar = self._add(MemoryMedia.create(SIDECAR_SIZE))
        self.flash = self._add(MemoryMedia.create(FLASH_SIZE))

    def _open_files(self, path: Path, wanted: Sequence[NamespaceShape]) -> None:
        if not self.locked and not path.exists():
            raise DriveError(f"there is no drive at {path} that another device could hand over")
        if len(wanted) > 1 and not path.exists() and not self.read_only:
            make_folder(path)
        self._paths = paths = DrivePaths.of(path)
        if not paths.folder:
            self.most = 1
        if len(wanted) > self.most:
            raise DriveError(f"{path} is one file; several namespaces need a folder")
        known = read_list(paths.list)
        if known is None:
            self._open_new(paths, wanted)
        else:
            self._open_known(paths, wanted, known)
        self.sidecar = self._open_aside(paths.sidecar, SIDECAR_SIZE, read_only=self.read_only)
        self.flash = self._open_aside(paths.flash, FLASH_SIZE, read_only=self.read_only)

    def _open_new(self, paths: DrivePaths, wanted: Sequence[NamespaceShape]) -> None:
        """A drive of which nothing is remembered: a new one, or bare images."""
        shapes = dict(enumerate(wanted, 1)) or {
            nsid: NamespaceShape() for nsid in present(paths) or [1]
        }
        for nsid, shape in shapes.items():
            path = paths.namespace(nsid)
            media = self._add(
                FileMedia.open(path, shape.size, read_only=self.read_only, locked=self.locked)
            )
            if media.size < shape.block_size:
                raise DriveError(
                    f"{path} has {media.size} bytes, fewer than a block; choose another file"
                )
            if wanted and media.size != shape.size:
                raise DriveError(
                    f"{path} has {media.size} bytes already; leave its size out, or choose another"
                )
            self.namespaces[nsid] = media
            self.shapes[nsid] = shape._replace(size=media.size)
            if shape.metadata.size:
                self.lay_out(nsid)
        # A lone image stays one: what every image is taken for needs not be remembered.
        worth_it = self.locked and (
            paths.folder
            or self._capacity
            or self.shapes[1].block_size != DEFAULT_BLOCK_SIZE
            or self.shapes[1].metadata.size
            or self.shapes[1].zone_size
        )
        if worth_it and not any(media.read_only for media in self.namespaces.values()):
            write_list(paths.list, Listed(self.shapes, self._capacity))

    def _open_known(
        self, paths: DrivePaths, asked: Sequence[NamespaceShape], remembered: Listed
    ) -> None:
        """Namespaces that are remembered: a file that is gone or cut is not taken for a new one."""
        shapes = blocks_of(remembered.shapes)
        listed = [shape.description for shape in shapes.values()]
        if asked and [shape.description for shape in asked] != listed:
            has = ", ".join(listed)
            raise DriveError(
                f"{paths.list} remembers other namespaces: {has or 'none'}; leave them out"
            )
        if max(shapes, default=1) > self.most:
            raise DriveError(f"{paths.list} has more namespaces than the one file beside it")
        for nsid, shape in shapes.items():
            path = paths.namespace(nsid)
            media = self._open_whole(path, shape.size)
            self.namespaces[nsid] = media
            if shape.metadata.size and not shape.erase:
                file = self._open_whole(paths.metadata(nsid), file_size(shape))
                pairs = Pairs(media, file, shape)
                if self.locked:
                    pairs.recover()
        self.shapes = remembered.shapes
        self._capacity = self._capacity or remembered.capacity
        self._memory_capacity = self._memory_capacity or remembered.memory_capacity
        self._finish(paths, remembered)

    def _open_whole(self, path: Path, size: int) -> Media:
        """A file that was there before with that many bytes. Raises MediaError."""
        media = self._add(FileMedia.open(path, read_only=self.read_only, locked=self.locked))
        if media.size < size:
            log.warning(
                "%s has %d bytes of %d; the rest cannot be read, and nothing is written",
                path, media.size, size,
            )  # fmt: skip
            present, media.size = media.size, size
            media.truncated(present)
        media.size = size
        return media

    def _finish(self, paths: DrivePaths, known: Listed) -> None:
        """Do what was decided and perhaps not done when the device last ended."""
        unfinished = [nsid for nsid, shape in self.shapes.items() if shape.erase]
        if (unfinished or known.remove) and not self.locked:
            raise DriveError(f"{paths.list} says that namespaces are about to change")
        if (unfinished or known.remove) and self.read_only:
            raise DriveError(
                f"{paths.list} says that blocks are yet to be erased; open the drive for writing"
            )
        for nsid in unfinished:
            log.warning("namespace %d was being formatted, which is finished now", nsid)
            if self.shapes[nsid].has_values:
                self._open_values({nsid: self.shapes[nsid]}, new=True)
                continue
            self.lay_out(nsid)
            self.namespaces[nsid].punch(0, self.namespaces[nsid].size)
            self.namespaces[nsid].flush()
        self._remove_all(paths, known.remove)
        finished = {nsid: shape._replace(erase=False) for nsid, shape in self.shapes.items()}
        resized = (
            not self.read_only
            and self.locked
            and (self._capacity != known.capacity or self._memory_capacity != known.memory_capacity)
        )
        if unfinished or known.remove or resized:
            self._change(finished)

    def _with_others(self, asked: Sequence[NamespaceShape]) -> dict[int, NamespaceShape]:
        """All namespaces; without blocks those that are remembered, or else that are asked for."""
        remembered = [shape for shape in self.shapes.values() if not shape.has_blocks]
        if (
            remembered
            and asked
            and sorted(shape.kind for shape in remembered) != sorted(shape.kind for shape in asked)
        ):
            raise DriveError(
                "the drive remembers other memory and compute namespaces, or others with keys; "
                "leave them out"
            )
        if remembered or not asked:
            return self.shapes
        free = (nsid for nsid in range(1, MOST_NAMESPACES + 1) if nsid not in self.shapes)
        shapes = {**self.shapes, **dict(zip(free, asked, strict=False))}
        if len(shapes) < len(self.shapes) + len(asked):
            raise DriveError(f"a drive has at most {MOST_NAMESPACES} namespaces")
        if not self.locked:
            raise DriveError(
                "the drive has no memory and compute namespaces, or none with keys; leave them out"
            )
        return dict(sorted(shapes.items()))

    def _add_others(self, shapes: dict[int, NamespaceShape]) -> None:
        """Have these namespaces, of which those with blocks are there."""
        self._open_values(shapes, new=True)
        if self.read_only:
            self.shapes = shapes
        elif shapes != self.shapes:
            self._change(shapes)

    def _values(self, nsid: int, shape: NamespaceShape) -> ValueStore:
        path = None if self._paths is None else self._paths.values(nsid)
        return ValueStore(path, shape.size, read_only=self.read_only)

    def _open_values(self, shapes: Mapping[int, NamespaceShape], *, new: bool = False) -> None:
        """Open the values of key value namespaces; `new` ones are made."""
        for nsid, shape in shapes.items():
            if shape.has_values and nsid not in self.values:
                self.values[nsid] = values = self._values(nsid, shape)
                self._stack.callback(values.close)
                if new:
                    values.erase()
                elif self.locked or self._paths is None:
                    values.open()

    def _remove_all(self, paths: DrivePaths, nsids: Collection[int]) -> None:
        """Remove the files of namespaces that are gone. Raises MediaError."""
        for nsid in nsids:
            if nsid <= self.most:
                remove(paths.namespace(nsid), keep=not paths.folder)
                remove(paths.metadata(nsid), keep=False)
            remove_values(paths.values(nsid))

    def _open_aside(self, path: Path, size: int, *, read_only: bool) -> Media:
        """The sidecar or the flash; one that cannot be kept is in memory, and gone at the end."""
        try:
            media: Media = FileMedia.open(path, size, read_only=read_only, locked=self.locked)
        except MediaError as error:
            if not read_only and error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            log.warning("%s cannot be made, so it is kept in memory", path)
            media = MemoryMedia.create(size)
        media.size = size
        return self._add(media)


def _allocated(shapes: Mapping[int, NamespaceShape]) -> int:
    """Bytes of non-volatile memory that the namespaces have."""
    return sum(shape.size for shape in stored_of(shapes).values())

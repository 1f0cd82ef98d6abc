"""An archive that an untrusted guest has packed, unpacked into an empty folder of the host.

tarfile's own filter for such archives came with Python 3.11.4, and Debian 12 has 3.11.2. What is
refused here is what that one refuses, and a little more: no name goes through a symbolic link, and
a link's target goes up only at its beginning, so that names can be judged without looking at files.
"""

import os
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

UP = ".."


def unpack(archive: tarfile.TarFile, place: Path) -> None:
    """Extract files, folders and links inside `place`, which are then this process's user's.

    Raises OSError, and tarfile.TarError when anything in the archive is something else or
    elsewhere; nothing has been extracted then.
    """
    members = archive.getmembers()
    links = {PurePosixPath(member.name) for member in members if member.issym()}
    for member in members:
        _check(member, links)
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    # Where Python has filters, it is not to choose another one.
    archive.extraction_filter = _unchanged
    archive.extractall(place, members)


def _unchanged(member: tarfile.TarInfo, path: str, /) -> tarfile.TarInfo:
    return member


def _check(member: tarfile.TarInfo, links: Collection[PurePosixPath]) -> None:
    name, target = PurePosixPath(member.name), PurePosixPath(member.linkname)
    if not _is_within(name, 0, links):
        raise tarfile.TarError(f"{member.name} is outside the folder")
    if member.issym():
        # Other links in the target's way are no matter, as none of them leads outside.
        if not _is_within(target, len(name.parts) - 1, ()):
            raise tarfile.TarError(f"{member.name} links to {member.linkname}, outside the folder")
    elif member.islnk():
        if not _is_within(target, 0, links) or target in links:
            raise tarfile.TarError(f"{member.name} is a link to {member.linkname}")
    elif not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name} is neither a file nor a folder")


def _is_within(path: PurePosixPath, depth: int, links: Collection[PurePosixPath]) -> bool:
    """Whether a path stays within the folder, seen from `depth` folders below it."""
    ups = 0
    while ups < len(path.parts) and path.parts[ups] == UP:
        ups += 1
    return (
        not path.is_absolute()
        and ups <= depth
        and UP not in path.parts[ups:]
        and not any(parent in links for parent in path.parents)
    )

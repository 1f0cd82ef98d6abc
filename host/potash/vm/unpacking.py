"""Unpacking of an archive from an untrusted guest into an empty folder of the host.

tarfile's own filter for such archives came with Python 3.11.4, and Debian 12 has 3.11.2. This
refuses everything that it refuses, and a little more: no name may go through a symbolic link, and a
link's target may go up only at its beginning, so names can be checked without accessing files.
"""

import os
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath

UP = ".."


def unpack(archive: tarfile.TarFile, place: Path) -> None:
    """Extract files, folders and links inside `place`. They belong to this process's user. Raises
    OSError, and tarfile.TarError when anything in the archive is something else or elsewhere;
    nothing has been extracted then."""
    members = archive.getmembers()
    links = {PurePosixPath(member.name) for member in members if member.issym()}
    for member in members:
        _check(member, links)
        member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    # Where Python has filters, it must not choose another one.
    archive.extraction_filter = lambda member, _: member
    archive.extractall(place, members)


def _check(member: tarfile.TarInfo, links: Collection[PurePosixPath]) -> None:
    name, target = PurePosixPath(member.name), PurePosixPath(member.linkname)
    if not _is_within(name, 0, links):
        raise tarfile.TarError(f"{member.name} is outside the folder")
    if member.issym():
        # Other links in the target's path do not matter, as none of them leads outside.
        if not _is_within(target, len(name.parts) - 1, ()):
            raise tarfile.TarError(f"{member.name} links to {member.linkname}, outside the folder")
    elif member.islnk():
        if not _is_within(target, 0, links) or target in links:
            raise tarfile.TarError(f"{member.name} is a link to {member.linkname}")
    elif not (member.isfile() or member.isdir()):
        raise tarfile.TarError(f"{member.name} is neither a file nor a folder")


def _is_within(path: PurePosixPath, depth: int, links: Collection[PurePosixPath]) -> bool:
    """True for a path that stays within the folder, relative to `depth` folders below it."""
    ups = 0
    while ups < len(path.parts) and path.parts[ups] == UP:
        ups += 1
    return (
        not path.is_absolute()
        and ups <= depth
        and UP not in path.parts[ups:]
        and not any(parent in links for parent in path.parents)
    )

"""Archives that a hostile guest may send: what is in them goes nowhere else."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from potash.vm.unpacking import unpack

FILE, HARD, SYMBOLIC, FOLDER = tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE
Member = tuple[str, bytes, str]
"""Name, type, and a file's contents or a link's target."""


def unpacked(place: Path, *members: Member) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid = kind, 0o6777, 12345
            data = content.encode() if kind == FILE else b""
            member.size, member.linkname = len(data), "" if kind == FILE else content
            archive.addfile(member, io.BytesIO(data))
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        unpack(archive, place)


def test_files_folders_and_links_come_as_they_are(tmp_path: Path) -> None:
    unpacked(
        tmp_path,
        ("top", FOLDER, ""),
        ("top/deep/file", FILE, "text"),
        ("top/hard", HARD, "top/deep/file"),
        ("top/deep/up", SYMBOLIC, "../hard"),
        ("top/dangling", SYMBOLIC, "nowhere"),
    )
    assert (tmp_path / "top/deep/up").read_text() == "text"
    assert os.readlink(tmp_path / "top/dangling") == "nowhere"
    stat = (tmp_path / "top/hard").stat()
    assert (stat.st_nlink, stat.st_mode & 0o7777, stat.st_uid) == (2, 0o755, os.getuid())


HOSTILE: dict[str, list[Member]] = {
    "absolute": [("/tmp/outside", FILE, "")],
    "above": [("top/../../outside", FILE, "")],
    "absolute target": [("link", SYMBOLIC, "/etc")],
    "target above": [("top/link", SYMBOLIC, "../../outside")],
    "target above, below a name": [("link", SYMBOLIC, "top/../../outside")],
    "through a link": [("link", SYMBOLIC, "."), ("link/link/file", FILE, "")],
    "links in a row": [("s", SYMBOLIC, "."), ("s/s/x", SYMBOLIC, "../.."), ("s/s/x/y", FILE, "")],
    "a link later": [("top/file", FILE, ""), ("top", SYMBOLIC, ".")],
    "hard link above": [("hard", HARD, "../outside")],
    "hard link, absolute": [("hard", HARD, "/etc/passwd")],
    "hard link through a link": [("s", SYMBOLIC, "."), ("hard", HARD, "s/file")],
    "hard link to a link": [("s", SYMBOLIC, "file"), ("hard", HARD, "s")],
    "device": [("null", tarfile.CHRTYPE, "")],
    "pipe": [("pipe", tarfile.FIFOTYPE, "")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE)
def test_what_leads_elsewhere_is_refused_before_anything_is_there(
    tmp_path: Path, members: list[Member]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(tarfile.TarError):
        unpacked(place, ("first", FILE, ""), *members)
    assert os.listdir(place) == []
    assert os.listdir(tmp_path) == ["place"]

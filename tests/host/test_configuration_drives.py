"""`potash.toml` with several drives of a guest."""

from pathlib import Path

import pytest

from potash import configuration
from potash.toml_kinds import ConfigurationError
from support.docs import blocks

DRIVES = """
[device]
capacity = "64M"
[time]
mode = "modelled"
[drive.1.time]
drive = "qlc"
[drive.2.time]
mode = "fast"
[drive.2.namespace.1]
size = "16M"
"""


def test_a_file_describes_several_drives(tmp_path: Path) -> None:
    path = tmp_path / "drives.toml"
    path.write_text(DRIVES)
    first, second = configuration.read_drives(path)
    assert (first.time.mode, first.time.drive, first.namespaces) == ("modelled", "qlc", ())
    assert (second.time.mode, second.time.drive) == ("fast", "tlc")
    assert [item.size for item in second.namespaces] == [16 << 20]
    assert {drive.device.capacity for drive in (first, second)} == {64 << 20}
    with pytest.raises(ConfigurationError, match="has 2 drives, which are for potash guest"):
        configuration.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[drive.2.time]", r"\[drive.1.SECTION\] and on are numbered without a gap"),
        ("drive = 3", "numbered without a gap"),
        ("[drive]\n1 = 3", r"\[drive.1\]: it has no section"),
        ("[drive.1.time]\nfactor = 0", r"\[drive.1\]: factor in \[time\] is 0"),
        ("[drive.1.times]", r"\[drive.1\]: there is no section \[times\]; did you mean time"),
    ],
)
def test_drives_of_a_file_that_cannot_be_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "drives.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        configuration.read_drives(path)


def test_the_page_shows_several_drives(tmp_path: Path) -> None:
    path = tmp_path / "drives.toml"
    path.write_text(blocks("config.md", "toml")[1])
    assert [drive.time.drive for drive in configuration.read_drives(path)] == ["tlc", "qlc"]

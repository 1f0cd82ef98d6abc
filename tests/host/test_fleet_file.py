"""The file that describes a fleet."""

from pathlib import Path

import pytest

from potash.fleet import Drive, read_fleet
from potash.namespace_sections import NamespaceSection
from potash.sdk.errors import PotashError
from potash.sections import AcceleratorSection

DESCRIBED = """
scheduler = "tls://10.0.0.1:8786"
[[drive]]
name = "a"
media = "a.img"
size = "1G"
shared = true
options = ["--accelerator", "1M"]
extensions = ["mine.py", "installed"]
[[drive]]
name = "b"
media = "/srv/b"
worker = "node1"
"""


def test_a_file_describes_a_fleet(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(DESCRIBED)
    (tmp_path / "mine.py").write_text("MINE = 1\n")
    found = read_fleet(path)
    extensions = (("mine.py", "MINE = 1\n"), ("installed", ""))
    assert found.scheduler == "tls://10.0.0.1:8786"
    assert found.drives == (
        Drive("a", str(tmp_path / "a.img"), "1G", None, True, ("--accelerator", "1M"), extensions),
        Drive("b", "/srv/b", worker="node1"),
    )
    folder = tmp_path / "on the worker"
    folder.mkdir()
    config = found.drives[0].configuration(folder)
    assert config.device.extensions == (str(folder / "0" / "mine.py"), "installed")
    assert (folder / "0" / "mine.py").read_text() == "MINE = 1\n"
    assert config.device.media == tmp_path / "a.img"
    assert config.namespaces == (NamespaceSection(1 << 30),)
    assert config.accelerators == (AcceleratorSection(1 << 20, 1 << 20),)
    with pytest.raises(PotashError, match="'1X' is not a size"):
        _ = Drive("c", options=("--size", "1X")).configuration(Path())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("drive = 1", r"drives are \[\[drive\]\] tables"),
        ("", "a fleet has 1 to 10000 drives, not 0"),
        ("[[drive]]\nname = 'a'", "drive a has no media"),
        ("[[drive]]\nname = 'a/b'\nmedia = 'x'", "'a/b' is not a valid drive name"),
        ("extensions = ['x.py']", "a fleet has no 'extensions'; it belongs in a"),
        ("[[drive]]\nname = 'a'\nmedium = 'x'", "a drive has no 'medium'; it has name, media"),
        ("[[drive]]\nname = 'a'\nmedia = 'x'\n[[drive]]\nname = 'a'\nmedia = 'y'", "the same name"),
        ("[[drive]]\nname = 'a'\nmedia = 'x'\n[[drive]]\nname = 'b'\nmedia = 'x'", "the same media"),
        ("[[drive]]\nname = 'a'\nmedia = 3", "media of a drive must be a string"),
        ("[[drive]]\nname = 'a'\nshared = 1", "shared of drive a must be true or false"),
        ("[[drive]]\nname = 'a'\nshared = true\nworker = 'w'", "is of one worker and shared"),
        ("[[drive]]\nname = 'a'\noptions = 'x'", "options of drive a must be a list of strings"),
        ("[[drive]]\nname = 'a'\nextensions = ['no.py']", "the extension no.py cannot be read"),
        ("scheduler = 1", "scheduler must be a string"),
        ("[", "is not TOML"),
        ("x = '\xff'", "is not TOML"),
    ],
)  # fmt: skip
def test_mistakes_in_a_file_are_sentences(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PotashError, match=said):
        read_fleet(path)

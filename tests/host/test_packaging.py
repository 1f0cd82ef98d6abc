"""The wheel: what is in it, and that it works where there is no checkout."""

import email
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

import potash
import potash_firmware
from potash_firmware.rpu.settings import Identity
from support.docs import ROOT
from support.vm import guest_images

PACKAGES = {
    "csd_spec": "device",
    "nvme_spec": "device",
    "potash": "host",
    "potash_device": "device",
    "potash_firmware": "firmware",
    "potash_wire": "device",
    "pyvfio_user": "device",
}
LEFT_BEHIND = ("examples/add/output.bin", "examples/add/drive.img", "host/potash/x.pyc")
"""What running things leaves in a checkout, which git does not see."""


def tracked(*folders: str) -> set[str]:
    """The files that belong to the project."""
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows which files belong to the project, and this is no checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the project in which somebody has run things."""
    tree = tmp_path_factory.mktemp("tree")
    for name in tracked("pyproject.toml", ".gitignore", "README.md", "LICENSE", "examples",
                        "device", "firmware", "host"):  # fmt: skip
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    for name in LEFT_BEHIND:
        (tree / name).write_bytes(b"left behind")
    folder = tmp_path_factory.mktemp("dist")
    (built,) = WheelBuilder(str(tree)).build(directory=str(folder), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Iterator[email.message.Message]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        yield email.message_from_bytes(archive.read(name))


def test_every_file_of_the_packages_and_examples_is_in_the_wheel(names: set[str]) -> None:
    wanted = {name.partition("/")[2] for name in tracked("device", "firmware", "host")}
    wanted |= {f"potash/{name}" for name in tracked("examples")}
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == wanted, "and nothing else, whatever lies beside it"
    assert {"potash/examples/add/program.o", "potash/examples/include/potash.h"} <= inside


def test_objects_of_examples_name_no_folder() -> None:
    """Debug information would have the paths of the machine that compiled them."""
    objects = sorted((ROOT / "examples").glob("*/*.o"))
    assert len(objects) > 5
    for path in objects:
        assert not re.search(rb"\0/[a-z]+/", path.read_bytes()), path


def test_every_package_is_typed(names: set[str]) -> None:
    assert {f"{name}/py.typed" for name in PACKAGES} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)


def test_the_metadata_says_whose_it_is_and_under_which_licence(
    wheel: Path, metadata: email.message.Message
) -> None:
    assert metadata["Name"] == "potash"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "The Potash developers"
    assert metadata["Requires-Python"] == ">=3.11"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
        text = archive.read(name).decode()
    assert text == (ROOT / "LICENSE").read_text()
    assert [line.strip() for line in text.splitlines()[1:4]] == [
        "Apache License",
        "Version 2.0, January 2004",
        "http://www.apache.org/licenses/",
    ]


def test_every_version_is_the_same(metadata: email.message.Message) -> None:
    version = potash_firmware.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert metadata["Version"] == version
    assert potash.__version__ == version
    assert Identity().firmware_revision == version
    assert len(version) <= 8, "FR of Identify Controller has no more"
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    shown = ElementTree.parse(ROOT / "docs" / "pictures" / "terminal.svg").getroot()
    assert re.search(rf"fr\s+:\s{re.escape(version)}\s", "".join(shown.itertext())), (
        "record it again"
    )
    assert f'"{version}"' not in (ROOT / "pyproject.toml").read_text()


GUARD = """
import os, sys
CHECKOUT, VENV = {checkout!r}, {venv!r}

def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(CHECKOUT) and not path.startswith(VENV):
            raise PermissionError("taken from the checkout: " + path)

sys.addaudithook(refuse)
"""
"""A module that keeps every process of an environment away from the checkout. A `.pth` file has
it imported, as Debian's Python has a `sitecustomize` of its own."""


class Installed:
    """The wheel in an environment of its own; what it depends on is that of this interpreter."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        installing = [sys.executable, "-m", "pip", "--python", str(self.python), "install"]
        installing += ["--no-deps", "--no-index", "--quiet", "--no-compile", str(wheel)]
        subprocess.run(installing, check=True, capture_output=True, timeout=60)
        (self.site,) = (folder / "venv").glob("lib/python*/site-packages")
        ours = {"_potash.pth", *PACKAGES}
        for found in pip_folder().iterdir():
            if found.name not in ours and not found.name.startswith(("potash-", "__editable__")):
                target = self.site / found.name
                if not target.exists():
                    target.symlink_to(found)
        guard = GUARD.format(checkout=f"{ROOT}/", venv=f"{sys.prefix}/")
        (self.site / "kept_from_checkout.py").write_text(guard)
        (self.site / "kept_from_checkout.pth").write_text("import kept_from_checkout\n")
        self.environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def command(self, *arguments: object) -> list[str]:
        return [str(self.folder / "venv" / "bin" / "potash"), *map(str, arguments)]

    def potash(self, *arguments: object) -> str:
        """What the installed command prints."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def serving(self, socket: Path) -> Iterator[None]:
        """A device of it, until the block ends."""
        with subprocess.Popen(
            self.command("serve", "--json", "--size", "16M", "--socket", socket),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
        ) as served:
            try:
                assert served.stdout is not None and served.stdout.readline()
                yield
            finally:
                served.terminate()
        assert served.returncode == 0 and not socket.exists()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


def test_the_installed_command_runs_an_example_far_from_any_checkout(installed: Installed) -> None:
    assert installed.potash("--version") == f"potash, version {potash_firmware.__version__}\n"
    assert installed.potash("demo", "--embedded").splitlines()[-1] == "equal"


def test_the_installed_command_is_kept_from_the_checkout(installed: Installed) -> None:
    """The test of the tests here: nothing of the checkout can be opened, or comes from it."""
    code = "import potash, potash_firmware; print(potash.__file__, potash_firmware.__file__)"
    done = subprocess.run(
        [installed.python, "-c", f"{code}; open({str(ROOT / 'pyproject.toml')!r})"],
        env=installed.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert all(Path(path).is_relative_to(installed.site) for path in done.stdout.split())
    assert len(done.stdout.split()) == 2
    assert done.stderr.endswith(f"taken from the checkout: {ROOT}/pyproject.toml\n")


def test_an_installed_device_serves_installed_programs_and_guests(installed: Installed) -> None:
    socket, folder = installed.folder / "s", installed.folder / "add"
    installed.potash("demo", "write", "add", folder)
    job = ["program.o", "input.bin", "output.bin"]
    lengths = (folder / "arguments").read_text().split()
    with installed.serving(socket):
        installed.potash("run", f"vfio-user:{socket}", *(folder / name for name in job), *lengths)
        assert (folder / "output.bin").read_bytes() == (folder / "expected.bin").read_bytes()
        images = guest_images()
        if isinstance(images, str):
            pytest.skip(images)
        listed = installed.potash("guest", "--socket", socket, "--", "nvme", "list")
    assert "/dev/nvme0n1" in listed


def pip_folder() -> Path:
    """Where this interpreter's packages are."""
    return Path(pytest.__file__).parents[1]


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "potash.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.endswith(f"version {potash_firmware.__version__}\n")

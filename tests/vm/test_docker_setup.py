"""`docker/setup.sh`, run where no container engine is: in a Debian 13 that is made in a folder.

    pytest -m slow tests/vm/test_docker_setup.py

Some minutes, some 300 MB from the Debian archive, and root: a tree is entered with chroot. What is
mounted in it is mounted in namespaces that end with each command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.vm import packages
from potash.vm.errors import PackagesUnavailable
from potash.vm.packages import RELEASE, Apt, find_keyring, source_lines
from support.docs import ROOT

pytestmark = pytest.mark.slow

HOUR = 3600
USER = "potash"
PLACE = "opt/potash"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"

ENTER = """
set -e
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
exec chroot "$0" "$@"
"""
AS_USER = f"""
cd /{PLACE}
exec setpriv --reuid {USER} --regid {USER} --init-groups \
  env HOME=/home/{USER} PATH=/{PLACE}/.venv/bin:/usr/local/bin:/usr/bin:/bin sh -ec "$0"
"""


def silent(*_: object) -> None:
    """Nobody is told what is being done."""


def execute(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HOUR,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


class Tree:
    """A Debian in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def as_root(self, *command: str) -> str:
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER]
        return execute(*enter, str(self.root), *command, **self._pip())

    def as_user(self, code: str) -> str:
        return self.as_root("sh", "-c", AS_USER, code)

    def _pip(self) -> dict[str, str]:
        """How this machine's pip reaches packages, as build arguments would say it."""
        wanted = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT", "PIP_PROXY")
        told = {name: os.environ[name] for name in wanted if name in os.environ}
        return {**told, "PIP_CERT": f"/{CERTIFICATES}.here"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """What the image's base has, and the checkout in it."""
    missing = [tool for tool in ("apt-get", "unshare", "setpriv", "wget") if not shutil.which(tool)]
    if os.geteuid() or missing:
        pytest.skip(f"a tree cannot be made without {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("debian")
    root = folder / "root"
    try:
        address = packages.mirror()
        keyring = find_keyring(folder / "keyring", silent)
        apt = Apt(folder / "apt", source_lines(address, keyring))
        apt.run("update")
        apt.run("download", "debootstrap")
    except PackagesUnavailable as error:
        pytest.skip(f"no Debian can be downloaded here: {error}")
    (package,) = (folder / "apt").glob("debootstrap_*.deb")
    execute("dpkg-deb", "-x", str(package), str(folder / "tool"))
    command = ["sh", str(folder / "tool/usr/sbin/debootstrap"), "--variant=minbase"]
    command += ["--include=ca-certificates", f"--keyring={keyring}", RELEASE, str(root), address]
    execute(*command, DEBOOTSTRAP_DIR=str(folder / "tool/usr/share/debootstrap"))
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy(f"/{CERTIFICATES}", root / f"{CERTIFICATES}.here")
    kept = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in kept.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (root / PLACE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / PLACE / name)
    yield Tree(root)
    shutil.rmtree(folder)


def test_the_script_makes_a_machine_that_runs_everything(tree: Tree) -> None:
    said = tree.as_root("sh", f"/{PLACE}/docker/setup.sh", "system")
    assert "qemu-system-x86" in said
    tree.as_root("chown", "-R", f"{USER}:{USER}", f"/{PLACE}")
    tree.as_user("docker/setup.sh checkout")
    demo = tree.as_user("potash demo")
    assert demo.splitlines()[-1] == "equal"
    assert tree.as_user("id -un; ls ~/.cache/potash/vm/trees | wc -l").split() == [USER, "1"]
    # Again, for the compiler: a program is built, run in a guest, and compared.
    loaded = tree.as_user(
        "potash serve --socket /run/potash/drive --size 64M >/dev/null & serve=$!\n"
        "trap 'kill $serve' EXIT\n"
        "while ! test -S /run/potash/drive; do sleep 0.1; done\n"
        "EXAMPLE=grep NVME_DEVICE=vfio-user:/run/potash/drive make example/load\n"
        "potash guest --socket /run/potash/drive -- nvme list\n"
    )
    assert "equal" in loaded and "/dev/nvme0n1" in loaded
    tests = tree.as_user("pytest -q tests/host/test_example_index.py tests/vm/test_guest.py")
    assert " passed" in tests and "skipped" not in tests

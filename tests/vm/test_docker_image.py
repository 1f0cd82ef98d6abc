"""`docker/build.sh` builds the image, and the compose file's two services run in two containers.

    pytest -m slow tests/vm/test_docker_image.py

Five minutes, 15 GB of disk for as long, packages from Debian's archive and pip's index, and root:
buildah stands in for a container engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.docs import ROOT

pytestmark = pytest.mark.slow

IMAGE = "localhost/potash"
MINUTE = 60
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
USER = 1000
"""Of the image's user, who is to own the volumes."""

WITH_PID = 'echo $$ >"$0"; exec "$@"'
"""Runs a command, and writes its process down first: a signal to `buildah run` kills outright what
it runs."""


class Buildah:
    """Images and containers in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        settings = folder / "storage.conf"
        settings.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
        )
        self.environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": str(settings),
            "STORAGE_DRIVER": "vfs",
        }

    def execute(self, *command: str, minutes: float = 3) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=minutes * MINUTE,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def running(self, container: str, service: dict[str, Any], volumes: Path) -> list[str]:
        """The command that runs another one in a container, as the service describes."""
        command = ["buildah", "run", "--user", service["user"]]
        command += [f"--cap-drop={capability}" for capability in service["cap_drop"]]
        for volume in service["volumes"]:
            command += ["--volume", f"{volumes}/{volume}"]
        return [*command, container, "--"]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """With the image."""
    missing = [tool for tool in ("buildah", "debootstrap") if not shutil.which(tool)]
    if os.geteuid() or missing:
        pytest.skip(f"no image can be built without {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("containers")
    made = Buildah(folder)
    options = [
        f"--build-arg={name}={os.environ[name]}"
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
        if name in os.environ
    ]
    if CERTIFICATES.exists():
        options.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    try:
        made.execute(str(ROOT / "docker" / "build.sh"), *options, minutes=30)
        yield made
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def containers(buildah: Buildah) -> Iterator[list[str]]:
    """One for each service."""
    names = [buildah.execute("buildah", "from", IMAGE).split()[-1] for _ in ("device", "guest")]
    yield names
    buildah.execute("buildah", "rm", *names)


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for name in ("socket", "drive"):
        (tmp_path / name).mkdir(mode=0o700)
        os.chown(tmp_path / name, USER, USER)
    return tmp_path


def test_the_services_run_in_two_containers(
    buildah: Buildah, containers: list[str], volumes: Path
) -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    device, guest = (
        buildah.running(container, services[name], volumes)
        for container, name in zip(containers, ("device", "guest"), strict=True)
    )
    demo = buildah.execute(*guest, "potash", "demo")
    assert demo.splitlines()[-1] == "equal"

    note = "/run/potash/pid"
    serving = [*device, "sh", "-c", WITH_PID, note, *services["device"]["command"], "--json"]
    with subprocess.Popen(
        serving, env=buildah.environment, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None and served.stdout.readline(), "it listens"
        process = int((volumes / "socket" / "pid").read_text())
        try:
            asked = [*services["guest"]["entrypoint"], "nvme", "list"]
            for _ in ("a guest", "the next one"):
                assert "/dev/nvme0n1" in buildah.execute(*guest, *asked)
        finally:
            assert b"serve" in Path(f"/proc/{process}/cmdline").read_bytes()
            os.kill(process, signal.SIGTERM)
            served.wait(MINUTE)
    assert served.returncode == 0
    assert not (volumes / "socket" / "drive").exists(), "and takes its socket with it"
    assert (volumes / "drive" / "drive").exists()

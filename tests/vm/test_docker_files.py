"""The Dockerfile, the compose file and the script agree, and ask for nothing that they should
not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from potash.cli.device.guest import guest
from potash.cli.device.serve import serve
from potash.vm.packages import BACKPORTS, QEMU, RELEASE
from potash.vm.qemu import PROGRAM
from support.docs import ROOT

DOCKER = ROOT / "docker"
SCRIPT = DOCKER / "setup.sh"


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    """Its instructions, in their order."""
    text = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    described: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return described


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose["services"]
    return found


def given(dockerfile: list[tuple[str, str]], word: str) -> list[str]:
    return [rest for one, rest in dockerfile if one == word]


def test_the_image_is_debian_13_and_built_by_the_script(dockerfile: list[tuple[str, str]]) -> None:
    assert given(dockerfile, "FROM") == [f"debian:{RELEASE}-slim"]
    runs = given(dockerfile, "RUN")
    assert [run.split()[-1] for run in runs if run.split()[0].endswith("setup.sh")] == [
        "system",
        "checkout",
    ]


def test_the_image_runs_as_the_user_that_the_script_makes(
    dockerfile: list[tuple[str, str]],
) -> None:
    text = SCRIPT.read_text()
    (user,) = given(dockerfile, "USER")
    assert f"NEW_USER={user}\n" in text
    order = [word for word, rest in dockerfile if word == "USER" or rest.endswith("checkout")]
    assert order == ["USER", "RUN"]
    assert not given(dockerfile, "EXPOSE")


def test_what_the_script_installs_is_what_the_guest_needs() -> None:
    text = SCRIPT.read_text()
    assert f"RELEASE={RELEASE}\n" in text and f"{RELEASE}-backports" == BACKPORTS
    assert f'FROM_BACKPORTS="{" ".join(QEMU.packages)}"' in text
    assert PROGRAM.startswith("qemu-system-x86")
    # The tools that bring the guest's Linux, and the keyring that they check it with.
    for package in ("dpkg-dev", "debian-archive-keyring", "python3-venv", "clang", "make"):
        assert package in text


def test_the_script_is_a_shell_s_and_says_how_it_is_called() -> None:
    assert SCRIPT.stat().st_mode & 0o111
    assert subprocess.run(["sh", "-n", str(SCRIPT)], check=False).returncode == 0
    done = subprocess.run(["sh", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "say 'system' or 'checkout'" in done.stderr


ONE = "http://one/debian"


@pytest.mark.parametrize(
    "lists",
    [
        {"sources.list": f"# none\ndeb [arch=amd64 signed-by=/k] {ONE} trixie main\n"},
        {"sources.list.d/x.list": f"deb {ONE} trixie main contrib\n"},
        {
            "sources.list.d/debian.sources": "Types: deb\nURIs: http://one/debian\n"
            "Suites: trixie trixie-updates\nComponents: main\n\n"
            "Types: deb\nURIs: http://two/debian-security\nSuites: trixie-security\n"
        },
    ],
)
def test_the_archive_is_the_one_that_apt_names(tmp_path: Path, lists: dict[str, str]) -> None:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    script = SCRIPT.read_text().replace("/etc/apt", str(tmp_path)).partition("case ")[0]
    done = subprocess.run(
        ["sh", "-c", f"{script}\narchive"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "http://one/debian\n"


def test_no_service_has_a_port_a_privilege_or_a_folder_of_the_host(
    services: dict[str, dict[str, Any]], compose: dict[str, Any]
) -> None:
    assert set(services) == {"device", "guest"}
    for service in services.values():
        assert service["user"] == "potash" and service["network_mode"] == "none"
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"ports", "expose", "privileged", "cap_add", "devices", "pid"} & set(service)
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"]


def test_device_and_guest_share_a_socket_and_nothing_else(
    services: dict[str, dict[str, Any]],
) -> None:
    device, guest_ = (set(services[name]["volumes"]) for name in ("device", "guest"))
    assert device & guest_ == {"socket:/run/potash"}
    served = services["device"]["command"]
    used = services["guest"]["entrypoint"]
    at = served[served.index("--socket") + 1]
    assert used[used.index("--socket") + 1] == at and at.startswith("/run/potash/")
    assert at in services["device"]["healthcheck"]["test"]
    assert services["guest"]["depends_on"]["device"]["condition"] == "service_healthy"


def test_the_services_commands_are_ones_that_there_are(services: dict[str, dict[str, Any]]) -> None:
    for command, words in (
        (serve, services["device"]["command"]),
        (guest, services["guest"]["entrypoint"]),
    ):
        known = {name for parameter in command.params for name in parameter.opts}
        assert words[:2] == ["potash", command.name]
        assert {word for word in words if word.startswith("--") and word != "--"} <= known


def test_the_folders_of_the_volumes_are_the_user_s(services: dict[str, dict[str, Any]]) -> None:
    (line,) = re.findall(r"install -d -m 0700 .* (/run/\S+ \S+)$", SCRIPT.read_text(), re.MULTILINE)
    places = {volume.split(":")[1] for one in services.values() for volume in one["volumes"]}
    assert places == set(line.split())


def test_what_git_does_not_keep_is_not_in_the_image() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "build"} <= set(ignored)

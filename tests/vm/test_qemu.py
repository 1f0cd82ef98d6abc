"""Which QEMU will do, and what is said to one."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from potash.vm import qemu
from potash.vm.errors import GuestError, GuestTimeout
from potash.vm.qemu import Accelerator, Shape, machine_arguments, parse_version, suitable
from potash.vm.qmp import Qmp

CLIENT = 'name "vfio-user-pci", bus PCI, desc "VFIO over socket PCI device assignment"\n'
NVME = 'name "nvme", bus PCI, desc "Non-Volatile Memory Express"\n'


@pytest.mark.parametrize(
    ("version", "devices", "expected"),
    [
        ("QEMU emulator version 10.1.1 (Debian 1:10.1.1+ds-1)", CLIENT, True),
        ("QEMU emulator version 11.0.0", NVME + CLIENT, True),
        ("QEMU emulator version 10.1.0", CLIENT, False),
        ("QEMU emulator version 9.2.4", CLIENT, False),
        ("QEMU emulator version 10.2.0", NVME, False),
        ("something else", CLIENT, False),
    ],
)
def test_a_qemu_will_do_from_10_1_1_on_and_with_the_client(
    version: str, devices: str, expected: bool
) -> None:
    assert suitable(version, devices) is expected


def test_a_version_s_parts_are_numbers() -> None:
    assert parse_version("QEMU emulator version 10.10.2 (v)") == (10, 10, 2)
    assert parse_version("QEMU emulator") is None


def fake_qemu(folder: Path, version: str, code: int = 0) -> None:
    path = folder / qemu.PROGRAM
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "QEMU emulator version {version}"\n'
        f"else echo '{CLIENT.strip()}'; fi\nexit {code}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_an_installed_qemu_is_used_when_it_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_qemu(tmp_path, "10.2.1")
    found = qemu.installed()
    assert found is not None
    assert found.command == (str(tmp_path / qemu.PROGRAM),)
    assert found.version == "QEMU emulator version 10.2.1"


@pytest.mark.parametrize(("version", "code"), [("7.2.0", 0), ("10.2.1", 1)])
def test_an_installed_qemu_that_will_not_do_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: int
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_qemu(tmp_path, version, code)
    assert qemu.installed() is None


def test_the_machine_s_memory_can_be_shared_and_its_slots_are_free() -> None:
    words = machine_arguments(Path("/k"), Path("/i"), Accelerator.TCG, Shape(512, 2))
    assert "memory-backend-memfd,share=on,id=ram,size=512M" in words
    assert words[words.index("-M") + 1].split(",")[:2] == ["q35", "memory-backend=ram"]
    assert words[words.index("-smp") + 1] == "2"
    ports = {f"pcie-root-port,id=rp{n},slot={n + 1},chassis={n + 1}" for n in (0, 1)}
    assert {f"{port},pref64-reserve=4G" for port in ports} <= set(words)


@contextmanager
def played_monitor(*answers: bytes) -> Iterator[tuple[Qmp, list[dict[str, object]]]]:
    """A client of a QEMU that greets, takes the capabilities, and then says what the test wants."""
    ours, theirs = socket.socketpair()
    asked: list[dict[str, object]] = []

    def play() -> None:
        with theirs, theirs.makefile("rb") as lines:
            theirs.sendall(b'{"QMP": {"version": {}, "capabilities": []}}\r\n')
            for answer in (b'{"return": {}}\r\n', *answers):
                asked.append(json.loads(lines.readline()))
                theirs.sendall(answer)
            lines.read()

    thread = threading.Thread(target=play)
    with ours:
        thread.start()
        client = Qmp(ours)
        client.negotiate()
        yield client, asked
    thread.join(30)


def test_a_command_is_one_object_and_events_are_passed_over() -> None:
    events = b'{"event": "RESUME", "timestamp": {}}\r\n{"event"'
    with played_monitor(events + b': "STOP"}\r\n{"return": {"status": "running"}}\r\n') as (
        qmp,
        asked,
    ):
        assert qmp.execute("query-status", {"a-b": 1}) == {"status": "running"}
    assert asked[0] == {"execute": "qmp_capabilities", "arguments": {}}
    assert asked[1] == {"execute": "query-status", "arguments": {"a-b": 1}}


def test_a_refusal_is_qemu_s_own_sentence() -> None:
    answer = b'{"error": {"class": "GenericError", "desc": "Bus \'rp9\' not found"}}\r\n'
    with (
        played_monitor(answer) as (qmp, _),
        pytest.raises(GuestError, match="refuses device_add: Bus 'rp9' not found"),
    ):
        qmp.execute("device_add")


def test_a_monitor_that_does_not_answer_or_has_gone_is_told_apart() -> None:
    with played_monitor(b"") as (qmp, _), pytest.raises(GuestTimeout, match="does not answer"):
        qmp.execute("stop", limit=0.1)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(GuestError, match="QEMU has ended"):
        Qmp(ours).negotiate()
